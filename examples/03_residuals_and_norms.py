# %% [markdown]
# # Residuals and norms
#
# Layer norm compared with batch norm when rows have different lengths; what each residual
# arrangement computes; and why post-norm needs a warm-up, from the gradients at initialisation.

# %%
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from jaxformer.functional import LayerNorm, layer_norm, rms_norm
from jaxformer.models import AbstractModel, DecoderConfig
from jaxformer.nn import MLP, BranchNorm, Parallel, PostNorm, PreNorm, SandwichNorm, TokenEmbeddings

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## Layer norm by hand
#
# $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}\, \gamma + \beta$$
#
# over the channels of one token. For $x = (1, 2, 3, 6)$ the mean is 3 and the variance $(4 + 1 + 0
# + 9) / 4 = 3.5$.

# %%
x = jnp.array([1.0, 2.0, 3.0, 6.0])
normalised = layer_norm(x, None, None, eps=1e-6)
print("layer norm:", np.asarray(normalised), " by hand:", np.array([-2, -1, 0, 3]) / np.sqrt(3.5))
np.testing.assert_allclose(normalised, np.array([-2, -1, 0, 3]) / np.sqrt(3.5), rtol=1e-5)
# RMS norm divides by the root of the mean square, (1 + 4 + 9 + 36) / 4 = 12.5, and does not
# subtract the mean.
print("RMS norm:  ", np.asarray(rms_norm(x, None, eps=1e-6, unit_offset=False)))
np.testing.assert_allclose(
    rms_norm(x, None, eps=1e-6, unit_offset=False), x / np.sqrt(12.5), rtol=1e-5
)


# %% [markdown]
# ## Rows of different lengths
#
# Batch norm takes its mean and variance over all tokens of the batch, for each channel. So the
# result of a row depends on the rows next to it, and on the padding that a long neighbour causes.
# Layer norm reads one token at a time. Here a row of 3 tokens is normalised together with a row of
# 3, and with a row of 9, where it is padded with zeros.


# %%
def batch_norm(batch):
    """`[B, T, D]` to mean 0 and variance 1 in each channel, over rows and tokens."""
    mean, variance = batch.mean(axis=(0, 1)), batch.var(axis=(0, 1))
    return (batch - mean) / np.sqrt(variance + 1e-6)


def padded(*rows):
    """Rows of tokens as one batch, with zeros at the ends of the shorter ones."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows])


rng = np.random.default_rng(0)
row, short, long = (rng.normal(1.0, 1.0, (length, 4)) for length in (3, 3, 9))
first = {}
for name, batch in {"a row of 3": padded(row, short), "a row of 9": padded(row, long)}.items():
    first[name] = {
        "batch norm": batch_norm(batch)[0, :3],
        "layer norm": np.asarray(layer_norm(jnp.asarray(batch), None, None, eps=1e-6))[0, :3],
    }
changes = {
    norm: np.abs(first["a row of 3"][norm] - first["a row of 9"][norm]).max()
    for norm in ("batch norm", "layer norm")
}
print("the same row beside a longer one changes by:", {k: f"{v:.3f}" for k, v in changes.items()})
assert changes["layer norm"] == 0
assert changes["batch norm"] > 0.3

figure, grid = plt.subplots(2, 2, figsize=(8, 4.2), layout="constrained", sharex=True, sharey=True)
for axes_of_norm, norm in zip(grid, changes, strict=True):
    for axes, beside in zip(axes_of_norm, first, strict=True):
        values = first[beside][norm]
        image = axes.imshow(values, cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
        for (token, channel), value in np.ndenumerate(values):
            ink = "white" if abs(value) > 1.2 else "black"
            axes.text(channel, token, f"{value:.2f}", ha="center", va="center", color=ink)
        axes.set_title(f"{norm}, beside {beside}")
        axes.set(xticks=range(4), yticks=range(3))
figure.supxlabel("channel")
figure.supylabel("token")
figure.colorbar(image, ax=grid, label="value")

# %% [markdown]
# ## Five residual arrangements
#
# `residual=` of a config chooses where the norms are. With maps $f$, $g$ for the sublayers and $n$
# for a norm:
#
# | | the block |
# | --- | --- |
# | `PreNorm` (GPT-2, Llama) | $y = x + f(n_1 x)$, then $y + g(n_2 y)$ |
# | `PostNorm` (2017, BERT) | $y = n_1(x + f(x))$, then $n_2(y + g(y))$ |
# | `BranchNorm` (OLMo 2) | $y = x + n_1(f(x))$, then $y + n_2(g(y))$ |
# | `SandwichNorm` (Gemma 2) | $y = x + n_2(f(n_1 x))$, then $y + n_4(g(n_3 y))$ |
# | `Parallel` (GPT-J) | $x + f(n x) + g(n x)$ |

# %%
x = jnp.array([[1.0, -2.0, 4.0]])
norm = partial(layer_norm, scale=None, bias=None, eps=1e-6)
f, g = (lambda x: 3.0 * x[:, ::-1]), (lambda x: x**2)
y = x + f(norm(x))
np.testing.assert_allclose(PreNorm()(x, (f, g), (norm, norm)), y + g(norm(y)))
y = norm(x + f(x))
np.testing.assert_allclose(PostNorm()(x, (f, g), (norm, norm)), norm(y + g(y)))
y = x + norm(f(x))
np.testing.assert_allclose(BranchNorm()(x, (f, g), (norm, norm)), y + norm(g(y)))
y = x + norm(f(norm(x)))
np.testing.assert_allclose(SandwichNorm()(x, (f, g), (norm,) * 4), y + norm(g(norm(y))))
np.testing.assert_allclose(Parallel()(x, (f, g), (norm,)), x + f(norm(x)) + g(norm(x)))
print("all five are as written")

# %% [markdown]
# ## Gradients at initialisation
#
# [Xiong et al. (2020)](https://arxiv.org/abs/2002.04745) explain the warm-up of the 2017
# Transformer by the gradients of the first step: with post-norm those of the last layer are large,
# regardless of the depth; with pre-norm they shrink in deeper models, by $1 / \sqrt L$. Here is the
# gradient of the second matrix of each feed-forward layer, in models that differ in nothing else.

# %%
VOCABULARY = 32
base = DecoderConfig(
    vocab_size=VOCABULARY,
    num_layers=12,
    model_dim=32,
    num_heads=2,
    mlp_dim=128,
    norm=LayerNorm(eps=1e-5),
    feed_forward=MLP(activation="relu", gated=False),
    embeddings=TokenEmbeddings(scale=32**0.5),
    init_std=32**-0.5,  # so that scaled embeddings have unit variance
    depth_scaled_init=False,
    compute_dtype="float32",
)
sampler = np.random.default_rng(0)
chain = sampler.dirichlet(np.full(VOCABULARY, 0.05), VOCABULARY)
entropy = -np.mean(np.sum(chain * np.log(chain + 1e-30), axis=1))
cumulative = chain.cumsum(axis=1)


def batch(step, rows=16, length=17):
    """Tokens of a Markov chain, each of which depends on the one before."""
    draws = np.random.default_rng(step)
    tokens = draws.integers(0, VOCABULARY, (rows, 1))
    for _ in range(length - 1):
        below = cumulative[tokens[:, -1]] < draws.random((rows, 1))
        tokens = np.concatenate(
            [tokens, np.minimum(below.sum(axis=1), VOCABULARY - 1)[:, None]], axis=1
        )
    tokens = tokens.astype(np.int32)
    weights = np.ones((rows, length - 1), np.float32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}


def mean_loss(abstract_model, params, batch):
    """The loss per token."""
    _, sums = abstract_model.module(params).loss(batch)
    return sums["language_model"].loss / sums["language_model"].weight


def feed_forward_gradients(config, keys):
    """The norm of the gradient of each layer's last matrix, as a mean over fresh models."""
    abstract_model = AbstractModel(config.build)
    gradient = jax.jit(jax.grad(partial(mean_loss, abstract_model)))
    norms = []
    for key in keys:
        gradients = gradient(abstract_model.init(key), batch(0))
        (name,) = (name for name in gradients if name.endswith("down.kernel"))
        norms.append(jnp.sqrt(jnp.sum(gradients[name] ** 2, axis=(1, 2))))
    return jnp.mean(jnp.stack(norms), axis=0)


keys = jax.random.split(jax.random.key(0), 4)
norms = {
    (residual, depth): feed_forward_gradients(
        replace(base, residual=residual, num_layers=depth), keys
    )
    for residual in (PostNorm(), PreNorm())
    for depth in (4, 12)
}
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (residual, depth), values in norms.items():
    style = "o-" if isinstance(residual, PostNorm) else "s--"
    label = f"{type(residual).__name__}, {depth} layers"
    axes.plot(range(1, depth + 1), values, style, label=label)
axes.set(
    xlabel="layer",
    ylabel="gradient norm",
    ylim=0,
    title="Gradients of the feed-forward layers before the first step",
)
axes.legend()
for (residual, depth), values in norms.items():
    name = type(residual).__name__
    print(f"{name:8} {depth:2} layers: first {values[0]:.3f}, last {values[-1]:.3f}")
post, pre = norms[PostNorm(), 12], norms[PreNorm(), 12]
assert abs(post[-1] / norms[PostNorm(), 4][-1] - 1) < 0.1  # regardless of the depth
assert abs(pre[-1] / norms[PreNorm(), 4][-1] * np.sqrt(12 / 4) - 1) < 0.1  # 1 / sqrt(L)
assert post[-1] > 3 * pre[-1]

# %% [markdown]
# ## Training with and without a warm-up
#
# Adam divides gradients by their size, so its first steps have the full learning rate in every
# weight. A post-norm model of 6 layers does not recover from that here, at a rate of 0.01; with a
# warm-up over half of the steps it learns. The pre-norm model learns either way. This is one seed
# of a small model; `jaxformer lab` has the experiment with more.

# %%
STEPS = 150


adam = optax.scale_by_adam(b2=0.98)


def train(config, schedules):
    """The losses of the steps with each schedule."""
    abstract_model = AbstractModel(config.build)

    @jax.jit
    def step(params, state, batch, rate):
        loss, gradients = jax.value_and_grad(partial(mean_loss, abstract_model))(params, batch)
        updates, state = adam.update(gradients, state)
        return jax.tree.map(lambda w, u: w - rate * u, params, updates), state, loss

    for schedule in schedules:
        params = abstract_model.init(jax.random.key(1))
        state, losses = adam.init(params), []
        for number in range(STEPS):
            params, state, loss = step(params, state, batch(number), schedule[number])
            losses.append(loss)
        yield np.array(losses)


rate = 1e-2
constant = np.full(STEPS, rate, np.float32)
rising = (rate * np.minimum(np.arange(STEPS) / (STEPS // 2), 1.0)).astype(np.float32)
curves = {
    (residual, warm_up): losses
    for residual in (PostNorm(), PreNorm())
    for warm_up, losses in zip(
        (False, True),
        train(replace(base, residual=residual, num_layers=6), (constant, rising)),
        strict=True,
    )
}
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (residual, warm_up), losses in curves.items():
    label = f"{type(residual).__name__}, {'with' if warm_up else 'without'} warm-up"
    style = "-" if warm_up else ":"
    color = "C0" if isinstance(residual, PostNorm) else "C1"
    axes.plot(losses, style, color=color, label=label)
    print(f"{label:26} mean loss of the last 10 steps {losses[-10:].mean():.3f}")
axes.axhline(entropy, color="grey", linewidth=1, label="entropy of the chain")
axes.set(
    xlabel="step", ylabel="loss (nats)", ylim=(1, 5), title="6 layers, Adam, learning rate 0.01"
)
axes.legend()
last = {curve: losses[-10:].mean() for curve, losses in curves.items()}
assert last[PostNorm(), False] > last[PostNorm(), True] + 0.5
assert abs(last[PreNorm(), False] - last[PreNorm(), True]) < 0.3

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
