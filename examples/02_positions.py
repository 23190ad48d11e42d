# %% [markdown]
# # Positions
#
# "I am a kid" with $d = 4$, worked through; then a comparison of the schemes. `jaxformer lab
# positions` draws more of them, with more numbers.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from jaxformer.functional import (
    RoPE,
    alibi_bias,
    alibi_slopes,
    apply_rope,
    attention,
    binary_code,
    inverse_frequencies,
    sinusoidal_code,
    t5_bucket,
)

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## "I am a kid"
#
# The 2017 Transformer adds to the embedding of the word at position $p$ the code
#
# $$PE(p)_{2i} = \sin(p\, w_i), \qquad PE(p)_{2i+1} = \cos(p\, w_i), \qquad w_i = 10000^{-2i/d}$$
#
# With $d = 4$ there are two frequencies, $w_0 = 1$ and $w_1 = 0.01$.

# %%
words = ["I", "am", "a", "kid"]
code = sinusoidal_code(jnp.arange(4), model_dim=4, theta=10_000.0, layout="interleaved")
by_hand = np.array([[np.sin(p), np.cos(p), np.sin(p / 100), np.cos(p / 100)] for p in range(4)])
np.testing.assert_allclose(code, by_hand, atol=1e-6)

embeddings = np.array(
    [[0.2, -0.4, 0.1, 0.5], [0.7, 0.1, -0.3, 0.2], [-0.1, 0.6, 0.4, -0.2], [0.3, 0.3, -0.5, 0.8]]
)
print("word  embedding                 code                      input")
for word, embedding, row in zip(words, embeddings, np.asarray(code), strict=True):
    columns = (
        " ".join(f"{x:5.2f}" for x in values) for values in (embedding, row, embedding + row)
    )
    print(f"{word:4}  {'   '.join(columns)}")
np.testing.assert_allclose(code[1], [0.8415, 0.5403, 0.0100, 1.0000], atol=1e-4)

# %% [markdown]
# The code of position 0 alternates 0 and 1, for any $d$.
#
# ### Position 1000
#
# The formula is the same far out: a pair turns by $w_i$ at each position, so at 1000 it stands at
# $1000\, w_i$, without its whole turns. With $d = 4$ the fast pair has made $1000 / 2\pi = 159.15$
# turns; the last 0.15 of one are $1000 - 159 \cdot 2\pi = 0.974$ radians, so its two channels are
# $\sin 0.974 = 0.827$ and $\cos 0.974 = 0.562$. The slow pair stands at $1000 \cdot 0.01 = 10$
# radians: 1.59 turns, $\sin 10 = -0.544$ and $\cos 10 = -0.839$.

# %%
far = np.asarray(sinusoidal_code(jnp.array([1000]), model_dim=4, theta=1e4, layout="interleaved"))
print("PE(1000), d = 4:", far[0])
np.testing.assert_allclose(far[0], [0.8269, 0.5624, -0.5440, -0.8391], atol=1e-4)
print("pair   w_i        2 pi / w_i   turns to 1000   rest (radians)     sin     cos")
for pair in (0, 1, 8, 16, 32, 63):
    w = 10_000 ** (-2 * pair / 128)
    turns, rest = divmod(1000 * w, 2 * np.pi)
    print(
        f"{pair:4}  {w:9.6f} {2 * np.pi / w:12,.1f} {1000 * w / (2 * np.pi):15.3f} {rest:16.3f} "
        f"{np.sin(rest):7.3f} {np.cos(rest):7.3f}"
    )

# %% [markdown]
# Between 999 and 1000 the fastest pair turns by a radian, the slowest of 128 channels by 0.0001:
# the fast ones tell neighbours apart, the slow ones encode the place in the text. Fifty positions
# with 128 channels: fast waves on the left, slow ones on the right, where the code hardly changes.

# %%
codes = np.asarray(sinusoidal_code(jnp.arange(50), model_dim=128, theta=1e4, layout="interleaved"))
figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
image = axes.imshow(codes, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
axes.set(xlabel="channel", ylabel="position", title="Sinusoidal codes, d = 128")
figure.colorbar(image, label="value")
waves = 2 * np.pi / inverse_frequencies(1e4, 128)
print(f"wavelengths: {waves[0]:.3f} to {waves[-1]:,.0f} positions; 20,000 pi is {2e4 * np.pi:,.0f}")

# %% [markdown]
# ## Binary digits jump, sinusoids glide
#
# The binary digits of the index are codes too, with frequencies of powers of 2. But from 7 to 8
# four digits change at once, and from 8 to 9 one. The sinusoidal code moves by the same distance at
# each step.

# %%
positions = jnp.arange(16)
bits = np.asarray(binary_code(positions, num_bits=5))
smooth = np.asarray(sinusoidal_code(positions, model_dim=128, theta=1e4, layout="interleaved"))
steps = {
    "binary": np.linalg.norm(np.diff(bits, axis=0), axis=1),
    "sinusoidal": np.linalg.norm(np.diff(smooth, axis=0), axis=1),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.imshow(bits.T, cmap="Blues", aspect="auto")
left.set(xlabel="position", ylabel="digit", title="Binary codes (dark: 1)", yticks=range(5))
for name, marker in (("binary", "o-"), ("sinusoidal", "s-")):
    right.plot(range(1, 16), steps[name], marker, label=name)
right.set(
    xlabel="position p", ylabel="distance", title="From the code of p - 1 to that of p", ylim=0
)
right.legend()
assert steps["binary"][7] == 2.0  # the root of the 4 digits that change from 7 to 8
assert steps["sinusoidal"].std() < 1e-5

# %% [markdown]
# ## The inner product of two codes depends on their distance
#
# $$\langle PE(m), PE(n) \rangle = \sum_i \cos w_i (m - n)$$
#
# because $PE(p + k)$ is $PE(p)$ with each pair of channels rotated by $k w_i$.

# %%
products = codes @ codes.T
frequencies = inverse_frequencies(1e4, 128)
distances = np.arange(50)
formula = np.cos(np.outer(distances, frequencies)).sum(axis=1)
for m in (0, 7, 30):
    np.testing.assert_allclose(products[m, m:], formula[: 50 - m], atol=2e-4)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
image = left.imshow(products, cmap="viridis")
left.set(xlabel="position n", ylabel="position m", title=r"$\langle PE(m), PE(n) \rangle$")
figure.colorbar(image, label="inner product")
right.plot(distances, formula)
right.set(
    xlabel="distance m - n", ylabel="inner product", title="The sum of cos $w_i (m - n)$", ylim=0
)

# %% [markdown]
# A score is not this inner product. With positions added to embeddings, $q \cdot k$ has four terms:
#
# $$(x_m + p_m)^\top A (x_n + p_n) =
# x_m^\top A x_n + x_m^\top A p_n + p_m^\top A x_n + p_m^\top A p_n$$
#
# with $A = W^Q W^{K\top}$, and even the last depends on $m$ and $n$ separately, since $A$ mixes the
# pairs of channels: the score is absolute. Move a pair of words through the text and its score
# changes. RoPE rotates queries and keys *after* the projections, so there it does not.

# %%
width, shifts = 128, np.arange(0, 48)
keys = jax.random.split(jax.random.key(0), 4)
x_m, x_n = (jax.random.normal(key, (width,)) for key in keys[:2])
W_Q, W_K = (jax.random.normal(key, (width, width)) * width**-0.5 for key in keys[2:])
added, rotated = [], []
rope = RoPE(theta=10_000.0)
for shift in shifts:
    m, n = shift + 2, shift
    added.append(float((x_m + codes[m]) @ W_Q @ W_K.T @ (x_n + codes[n])))
    query, key = ((x @ W)[None, None, None] for x, W in ((x_m, W_Q), (x_n, W_K)))
    query, key = rope.rotate(query, key, jnp.array([[m]]), jnp.array([[n]]))
    rotated.append(float((query * key).sum()))
four = [x_m @ W_Q @ W_K.T @ x_n, x_m @ W_Q @ W_K.T @ codes[0], codes[2] @ W_Q @ W_K.T @ x_n]
four.append(codes[2] @ W_Q @ W_K.T @ codes[0])
print("the four terms at m = 2, n = 0:", np.array(four), "sum:", float(sum(four)))
np.testing.assert_allclose(sum(four), added[0], rtol=1e-4)
print(f"spread of the score over shifts: added {np.std(added):.2f}, RoPE {np.std(rotated):.1e}")
assert np.std(rotated) < 1e-4 < np.std(added)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(shifts, added, "o-", markersize=3, label="sinusoidal codes, added")
axes.plot(shifts, rotated, "s-", markersize=3, label="RoPE")
axes.set(
    xlabel="shift of both words",
    ylabel="score $q \\cdot k$",
    title="The same two words, two positions apart",
)
axes.legend()

# %% [markdown]
# ## RoPE is a rotation
#
# $R_p$ turns pair $i$ of the channels by $p\, w_i$. Rotations keep lengths, and $R_m^\top R_n =
# R_{n-m}$.


# %%
def rotate(x, position):
    """`x` `[H]` at a position."""
    frequencies = inverse_frequencies(1e4, x.shape[-1])
    places = jnp.array([[position]])
    return apply_rope(x[None, None, None], places, frequencies, layout="half")[0, 0, 0]


vector, other = (jax.random.normal(key, (64,)) for key in keys[:2])
np.testing.assert_allclose(
    jnp.linalg.norm(rotate(vector, 1234)), jnp.linalg.norm(vector), rtol=1e-6
)
np.testing.assert_allclose(
    rotate(vector, 5) @ rotate(other, 12), vector @ rotate(other, 7), rtol=1e-5
)

pairs = np.array([rotate(jnp.array([1.0, 0.0]), p) for p in range(6)])
figure, axes = plt.subplots(figsize=(3.8, 3.8), layout="constrained")
for p, (x, y) in enumerate(pairs):
    axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": f"C{p}"})
    axes.text(1.2 * x, 1.2 * y, f"p = {p}", ha="center", va="center", color=f"C{p}")
axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal", xlabel="channel 0", ylabel="channel 1")
axes.set_title("The fastest pair, 1 radian a position")

# %% [markdown]
# ## ALiBi and T5 add to the score
#
# ALiBi subtracts the distance times a slope of the head, $2^{-8 h / N}$. T5 learns one number for
# each head and bucket of the distance: exact up to 16, then ever wider, and a single bucket above
# 128.

# %%
np.testing.assert_allclose(alibi_slopes(8), [2.0**-h for h in range(1, 9)])
places = jnp.arange(12)[None]
bias = np.asarray(alibi_bias(alibi_slopes(8), places, places))[0, 1]
grid = jnp.arange(180)
buckets = t5_bucket(-grid, num_buckets=32, max_distance=128, bidirectional=False)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
shown = np.where(np.tri(12, dtype=bool), bias, np.nan)
image = left.imshow(shown, cmap="viridis")
left.set(xlabel="key", ylabel="query", title="ALiBi, head 2 of 8: slope 1/4")
figure.colorbar(image, label="added to the score")
right.step(grid, buckets, where="post")
right.set(xlabel="distance to the key", ylabel="bucket", title="T5's buckets, causal")
assert shown[11, 0] == -11 / 4
assert buckets[15] == 15
assert buckets[128] == buckets[179] == 31

# %% [markdown]
# ## Without positions two equal words are one
#
# "a dog bit a dog": without positions the two dogs get the same output, bit for bit. With RoPE they
# do not.

# %%
names = ["a", "dog", "bit", "a", "dog"]
table = {
    name: jax.random.normal(jax.random.key(i), (1, 16)) for i, name in enumerate(sorted(set(names)))
}
x = jnp.stack([table[name] for name in names])[None]
ids = jnp.arange(5)[None]
query, key = RoPE(theta=10_000.0).rotate(x, x, ids, ids)
for name, (q, k) in {"no positions": (x, x), "RoPE": (query, key)}.items():
    output = attention(q, k, x)[0, :, 0]
    apart = float(jnp.abs(output[1] - output[4]).max())
    print(f"{name:12}: the outputs of the two dogs differ by {apart:.4f}")
    assert (apart == 0) == (name == "no positions")

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
