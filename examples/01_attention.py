# %% [markdown]
# # Attention
#
# Scaled dot-product attention on a table of four words: first by hand, then with `attention`. Then
# masks, heads, the reason for the scale, and what attention costs.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from jaxformer.functional import attention, causal
from jaxformer.nn import MLP

np.set_printoptions(precision=3, suppress=True)


def show(axes, values, title, words, highest=1.0):
    """Draws a matrix over queries and keys, with its numbers."""
    axes.imshow(values, cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_xticks(range(len(words)), words)
    axes.set_yticks(range(len(words)), words)
    axes.set(xlabel="key", ylabel="query")
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if value > highest / 2 else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink)
    axes.set_title(title)


# %% [markdown]
# ## Queries, keys and values of four words
#
# Each word is a row of $X$, here with $d = 4$ channels. Three matrices map it to a query, a key and
# a value, with $d_k = d_v = 2$ channels each: $Q = X W^Q$, $K = X W^K$, $V = X W^V$.

# %%
words = ["the", "dog", "chased", "cats"]
X = np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 2]], float)
W_Q = np.array([[0, 0], [1, 0], [0, 2], [0, 0]], float)
W_K = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], float)
W_V = np.array([[1, 0], [0, 1], [0, 0], [0, 2]], float)
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
for word, query, key, value in zip(words, Q, K, V, strict=True):
    print(f"{word:7} q = {query}  k = {key}  v = {value}")

# %% [markdown]
# The query of the verb is $q = (0, 2)$, so its score with each key is twice the key's second
# channel: 0, 4, 0 and 6. Divided by $\sqrt{d_k} = \sqrt 2$ and put through a softmax, these are the
# weights with which it reads the values:
#
# $$\mathrm{softmax}\left(\frac{(0, 4, 0, 6)}{\sqrt 2}\right) = (0.011, 0.191, 0.011, 0.786)$$

# %%
scores = Q @ K.T
exponentials = np.exp(scores / np.sqrt(2))
weights = exponentials / exponentials.sum(axis=1, keepdims=True)
output = weights @ V
print("scores of 'chased': ", scores[2])
print("weights of 'chased':", weights[2])
print("output of 'chased': ", output[2])
assert scores[2].tolist() == [0, 4, 0, 6]
np.testing.assert_allclose(weights[2], [0.0113, 0.1912, 0.0113, 0.7863], atol=1e-4)


# %% [markdown]
# `attention` takes `[B, T, N, H]`: batch, tokens, heads, channels of a head. It gives the same
# numbers.


# %%
def heads(rows):
    """`[T, H]` as one example with one head."""
    return jnp.asarray(rows, jnp.float32)[None, :, None]


ours, ours_weights = attention(heads(Q), heads(K), heads(V), return_weights=True)
np.testing.assert_allclose(ours[0, :, 0], output, rtol=1e-6)
np.testing.assert_allclose(ours_weights[0, 0], weights, rtol=1e-5)
print(ours[0, :, 0])

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
show(left, scores, r"scores $QK^\top$", words, highest=6.0)
show(right, weights, r"weights softmax$(QK^\top / \sqrt{d_k})$", words)

# %% [markdown]
# 'the' has the query $(0, 0)$: all its scores are 0, and it reads the mean of all values.

# %% [markdown]
# ## A mask acts before the softmax
#
# A decoder may not look ahead. `causal()` removes the later keys *before* the softmax, so each row
# still sums to 1. Multiplying the weights by zero *after* it is another function: the rest of a row
# sums to less than 1, and depends on the very tokens that should be hidden.

# %%
masked = attention(heads(Q), heads(K), heads(V), mask=causal(), return_weights=True)[1][0, 0]
multiplied = weights * np.tril(np.ones((4, 4)))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
show(left, np.asarray(masked), "masked before the softmax", words)
show(right, multiplied, "multiplied by 0 after the softmax", words)
print("sums of rows, before:", masked.sum(axis=1), " after:", multiplied.sum(axis=1))

# %% [markdown]
# Change the last word. The causal weights of the first three do not change, but the multiplied ones
# do:

# %%
X_changed = X.copy()
X_changed[3] = [0, 1, 0, 0]
scores_changed = (X_changed @ W_Q) @ (X_changed @ W_K).T / np.sqrt(2)
changed = np.exp(scores_changed) / np.exp(scores_changed).sum(axis=1, keepdims=True)
changed *= np.tril(np.ones((4, 4)))
Q_changed, K_changed = X_changed @ W_Q, X_changed @ W_K
kept = attention(heads(Q_changed), heads(K_changed), heads(V), mask=causal(), return_weights=True)
np.testing.assert_allclose(kept[1][0, 0, :3], masked[:3], atol=1e-7)
leak = np.abs(changed[:3] - multiplied[:3]).max()
print(f"largest change of a weight of the first three words: before 0, after {leak:.3f}")
assert leak > 0.1

# %% [markdown]
# ## Why the scale
#
# If the channels of a query and a key are independent, with mean 0 and variance 1, their product
# has variance $d_k$. Unscaled, the softmax of such scores is nearly one-hot for wide heads, and its
# gradient vanishes.

# %%
widths = [4, 16, 64, 256, 1024]
rng = np.random.default_rng(0)
samples = {d: [rng.normal(size=(2000, d)) for _ in "qk"] for d in widths}
products = {d: (query * key).sum(axis=1) for d, (query, key) in samples.items()}
largest = {"without": [], "with": []}
for d in widths:
    rows = products[d].reshape(-1, 16)  # 16 keys for a query
    for name, scale in (("without", 1.0), ("with", d**-0.5)):
        largest[name].append(float(jax.nn.softmax(rows * scale, axis=-1).max(axis=-1).mean()))
for d in widths:
    variance = products[d].var()
    print(f"d_k = {d:4}: variance of q.k {variance:8.1f}, of q.k / sqrt(d_k) {variance / d:.2f}")
    assert abs(variance / d - 1) < 0.15

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.loglog(widths, [products[d].var() for d in widths], "o-", label="$q \\cdot k$")
left.loglog(
    widths, [products[d].var() / d for d in widths], "s-", label="$q \\cdot k / \\sqrt{d_k}$"
)
left.set(xlabel="$d_k$", ylabel="variance", title="Variance of a score")
right.semilogx(widths, largest["without"], "o-", label="without the scale")
right.semilogx(widths, largest["with"], "s-", label="with the scale")
right.set(xlabel="$d_k$", ylabel="mean largest weight", title="Softmax over 16 keys", ylim=(0, 1))
for axes in (left, right):
    axes.legend()

# %% [markdown]
# ## Without positions, attention has no order
#
# Permute the words and the outputs are permuted in the same way, so two equal words cannot be told
# apart. [Positions](02_positions.md) change that.

# %%
order = [2, 0, 3, 1]
shuffled = attention(heads(Q[order]), heads(K[order]), heads(V[order]))
np.testing.assert_allclose(shuffled[0, :, 0], ours[0, order, 0], rtol=1e-6)

# %% [markdown]
# ## Heads, and how many parameters they have
#
# A layer of width $d$ with $h$ heads has $h$ times the matrices above, and $W^O$, which brings the
# heads together:
#
# | | shape | parameters |
# | --- | --- | --- |
# | $W^Q$, $W^K$ | $d \times h\, d_k$ | $d\, h\, d_k$ each |
# | $W^V$ | $d \times h\, d_v$ | $d\, h\, d_v$ |
# | $W^O$ | $h\, d_v \times d$ | $h\, d_v\, d$ |
#
# With $d_k = d_v = d / h$ the four together have $4 d^2$ parameters, regardless of the number of
# heads, and none of them depends on the lengths $n$ of the queries and $m$ of the keys.

# %%
from jaxformer.models import AbstractModel, DecoderConfig


def projection_sizes(d, num_heads, num_kv_heads=None):
    """The parameters of the attention projections of one layer."""
    config = DecoderConfig(
        vocab_size=8,
        num_layers=1,
        model_dim=d,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        mlp_dim=8,
    )
    shapes = AbstractModel(config.build).shapes
    return {
        name: next(x for path, x in shapes.items() if f"attention.{name}.kernel" in path)
        for name in ("query", "key", "value", "output")
    }


for d, num_heads, num_kv_heads in ((512, 8, 8), (512, 16, 16), (4096, 32, 8)):
    sizes = projection_sizes(d, num_heads, num_kv_heads)
    width = d // num_heads
    assert sizes["query"].size == d * num_heads * width
    assert sizes["key"].size == sizes["value"].size == d * num_kv_heads * width
    total = sum(x.size for x in sizes.values())
    assert total == 2 * d * d + 2 * d * num_kv_heads * width
    listed = ", ".join(f"{name} {x.shape[1:]}" for name, x in sizes.items())
    print(f"d = {d}, {num_heads} heads, {num_kv_heads} of keys and values: {total:,}: {listed}")

# %% [markdown]
# ### One matrix for queries and keys, and none for values
#
# A score reads $W^Q$ and $W^K$ only through their product: $q_i \cdot k_j = x_i^\top W^{QK} x_j$
# with $W^{QK} = W^Q W^{K\top}$, a bilinear form of $d \times d$. In the same way a head's output
# reads $W^V$ and $W^O$ through $W^{VO} = W^V W^O$. So two matrices would do, and each head would be
# the same function. But a product of $d \times d_k$ and $d_k \times d$ has rank $d_k$:
#
# | for one head | parameters | multiply-adds for $n$ tokens |
# | --- | --- | --- |
# | $W^Q$ and $W^K$ | $2\, d\, d_k$ | $2\, n\, d\, d_k + n^2 d_k$ |
# | $W^{QK}$ | $d^2$ | $n\, d^2 + n^2 d$ |
# | $W^V$ and $W^O$ | $2\, d\, d_v$ | $2\, n\, d\, d_v + n^2 d_v$ |
# | no $W^V$: the values are $x$, and $W^{VO}$ is $d \times d$ | $d^2$ | $n\, d^2 + n^2 d$ |
#
# With $d_k = d / h$ one $W^{QK}$ has $h / 2$ times the parameters of $W^Q$ and $W^K$, and the
# scores of a head take $h$ times the work. In return keys and values are $x$ itself, the same for
# all heads: a cache would hold $d$ numbers a token in place of $2 h\, d_k = 2 d$. For one head of
# full width, $d_k = d$, one matrix has half of the parameters of two.

# %%
W_QK = W_Q @ W_K.T
np.testing.assert_allclose(X @ W_QK @ X.T, scores)
print(f"W^QK has the shape {W_QK.shape} and the rank {np.linalg.matrix_rank(W_QK)}")
mixed, _ = attention(heads(X @ W_QK), heads(X), heads(X), scale=2**-0.5, return_weights=True)
np.testing.assert_allclose(mixed[0, :, 0] @ W_V, output, rtol=1e-5)  # values x, and W^V afterwards
print("d, heads: parameters of W^Q and W^K, of one W^QK a head, with W^V and W^O, of two matrices")
for d, num_heads in ((512, 1), (512, 8), (4096, 32)):
    width = d // num_heads
    pair, bilinear = 2 * d * width * num_heads, d * d * num_heads
    sizes = projection_sizes(d, num_heads)
    assert pair == sizes["query"].size + sizes["key"].size
    print(f"{d:5}, {num_heads:2}: {pair:11,}  {bilinear:13,}  {2 * pair:11,}  {2 * bilinear:13,}")

# %% [markdown]
# The products need no more than this: $n$ queries and $m$ keys of one width $d_k$, and a value for
# each key, whose width $d_v$ may be another. Cross-attention is this case, with queries from one
# text and keys and values from another.

# %%
n, m, d_k, d_v = 3, 5, 2, 7
result = attention(jnp.ones((1, n, 1, d_k)), jnp.ones((1, m, 1, d_k)), jnp.ones((1, m, 1, d_v)))
print(f"queries [{n}, {d_k}], keys [{m}, {d_k}], values [{m}, {d_v}]: {result[0, :, 0].shape}")
assert result.shape == (1, n, 1, d_v)

# %% [markdown]
# ## What it costs
#
# The scores of $n$ queries and $m$ keys take $n\, m\, d_k$ multiply-adds for each head and the
# weighted sum of the values $n\, m\, d_v$, so self-attention grows with $n^2 d$; the projections
# and the feed-forward layer grow with $n\, d^2$. They are equal where $n$ is several times $d$.

# %%
config = DecoderConfig(
    vocab_size=50257,
    num_layers=12,
    model_dim=768,
    num_heads=12,
    mlp_dim=3072,
    feed_forward=MLP(gated=False),
)
lengths = 2 ** np.arange(7, 16)
flops = [config.flops({"inputs": int(n)}) for n in lengths]
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.loglog(
    lengths,
    [n * f.products for n, f in zip(lengths, flops, strict=True)],
    "o-",
    label="projections, feed-forward, logits: $n d^2$",
)
axes.loglog(
    lengths,
    [n * f.attention for n, f in zip(lengths, flops, strict=True)],
    "s-",
    label="scores and weighted sums: $n^2 d$",
)
axes.set(xlabel="tokens n", ylabel="FLOPs of a forward pass", title="A model of GPT-2's size")
axes.legend()
by_hand = 12 * 2 * 2 * 768 * 1024  # layers x (QK and weights x V) x 2 FLOPs x d x keys
assert flops[3].attention == by_hand
share = flops[3].attention / flops[3].products
print(f"n = 1024: attention takes {share:.1%} of the FLOPs of the products with parameters")

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
