# %% [markdown]
# # Looking inside a model
#
# A decoder of two layers learns to continue sequences that repeat. How does it do that? Its
# activations have names, those of TransformerLens: `with_cache` records them, `with_hooks` replaces
# them. [Looking inside](../looking-inside.md) has the same for models with their weights,
# `jaxformer.run_with_cache` and `run_with_hooks`.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

from jaxformer.functional.activations import with_cache, with_hooks
from jaxformer.functional.hooks import replace_with, zero_head
from jaxformer.models import AbstractModel, DecoderConfig

# %% [markdown]
# ## A task that needs to look back
#
# Each row repeats a random sequence whose length is random too, so that no fixed distance helps:
# the model has to find where the current token occurred before, and to copy what came after it.

# %%
VOCABULARY, LENGTH = 24, 24


def batch(seed, rows=64):
    """Rows that repeat after 6 to 11 tokens; the loss counts the tokens that can be known."""
    draws = np.random.default_rng(seed)
    tokens = np.empty((rows, LENGTH + 1), np.int32)
    weights = np.zeros((rows, LENGTH), np.float32)
    for row in range(rows):
        period = draws.integers(6, 12)
        tokens[row] = np.resize(draws.permutation(VOCABULARY)[:period], LENGTH + 1)
        weights[row, period:] = 1.0
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}


config = DecoderConfig(
    vocab_size=VOCABULARY,
    num_layers=2,
    model_dim=64,
    num_heads=4,
    mlp_dim=128,
    init_std=64**-0.5,
    compute_dtype="float32",
    scan_layers=False,
)
abstract_model = AbstractModel(config.build)
STEPS = 300
optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, STEPS))


def mean_loss(params, batch):
    """The loss per token that counts."""
    _, sums = abstract_model.module(params).loss(batch)
    return sums["language_model"].loss / sums["language_model"].weight


@jax.jit
def step(params, state, batch):
    loss, gradients = jax.value_and_grad(mean_loss)(params, batch)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


params = abstract_model.init(jax.random.key(0))
state, losses = optimizer.init(params), []
for number in range(STEPS):
    params, state, loss = step(params, state, batch(number))
    losses.append(float(loss))
print(f"loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last")
assert losses[-1] < 0.2

# %% [markdown]
# ## What the heads look at
#
# One pattern is enough: the attention weights of both layers on new rows.

# %%
test = batch(10**6)
loss, cache = jax.jit(with_cache(mean_loss, "blocks.*.attn.hook_pattern"))(params, test)
patterns = np.stack([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(2)])
print("recorded:", {name: array.shape for name, array in cache.items()})

tokens, counted = test["inputs"], test["weights"] > 0
rows, times = np.nonzero(counted)
periods = counted.argmax(axis=1)
before_it = patterns[:, rows, :, times, times - 1].mean(axis=0)
after_match = patterns[:, rows, :, times, times - periods[rows] + 1].mean(axis=0)
for layer in range(2):
    print(f"layer {layer}, weight on the token before:   ", before_it[layer].round(2))
    print("         on what followed the same token: ", after_match[layer].round(2))
assert before_it[0].max() > 0.4
assert after_match[1].max() > 0.5

# %%
figure, grid = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained", sharex=True, sharey=True)
for (layer, head), axes in np.ndenumerate(grid):
    image = axes.imshow(patterns[layer, 0, head], cmap="Blues", vmin=0, vmax=1)
    axes.set_title(f"layer {layer}, head {head}")
figure.supxlabel("key position")
figure.supylabel("query position")
figure.suptitle(f"Attention patterns on a row that repeats after {periods[0]} tokens")
figure.colorbar(image, ax=grid, label="weight")

# %% [markdown]
# In layer 0 a head looks at the token before: it writes into each position the token in front of
# it. In layer 1 a head looks for a position whose predecessor is the current token, and copies the
# token there: an *induction head* ([Olsson et al., 2022](https://arxiv.org/abs/2209.11895)). In the
# pictures it is a line parallel to the diagonal.
#
# ## Which heads matter
#
# A weight says where a head looks, not whether it matters. Ablation does: one head at a time is set
# to zero.

# %%
HEADS = [[(layer, head) for head in range(4)] for layer in range(2)]


@jax.jit
def without(params, batch):
    """The loss without each head, `[layers, heads]`."""

    def loss_without(layer, head):
        hooks = {f"blocks.{layer}.attn.hook_z": zero_head(head)}
        return with_hooks(mean_loss, hooks)(params, batch)

    return jnp.array([[loss_without(*head) for head in heads] for heads in HEADS])


ablated = np.asarray(without(params, test))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
places = np.arange(4)
for layer in range(2):
    axes.bar(places + 0.4 * layer - 0.2, ablated[layer], 0.38, label=f"layer {layer}")
axes.axhline(float(loss), color="black", linewidth=1, label="nothing removed")
axes.set(
    xlabel="head set to zero", ylabel="loss (nats)", xticks=places, title="Loss without one head"
)
axes.legend()
layer, head = np.unravel_index(ablated.argmax(), ablated.shape)
print(f"head {head} of layer {layer} matters most: loss {loss:.3f} -> {ablated.max():.3f}")
assert ablated.max() > float(loss) + 0.3

# %% [markdown]
# ## Patching: where the information is
#
# Change one token early in the row, at its first occurrence only, and the prediction changes where
# the token would have come next. Then put back the residual stream of the unchanged run, at one
# position before one layer. Where that restores the prediction, the information passes.


# %%
def logits(params, inputs):
    """`[B, T, V]`."""
    return abstract_model.module(params).scores({"inputs": inputs})["language_model"]


period = int(periods[0])
clean = tokens[:1]
corrupted = clean.copy()
corrupted[0, 3] = next(token for token in range(VOCABULARY) if token not in clean[0])
asked, answer = period + 2, clean[0, 3]  # after the second occurrence of the token before it
NAMES = [f"blocks.{layer}.hook_resid_pre" for layer in range(2)] + ["blocks.1.hook_resid_post"]
_, clean_cache = jax.jit(with_cache(logits, NAMES))(params, clean)


@jax.jit
def restored(place, values):
    """The logit of the answer, with the clean stream at one place before each layer in turn."""

    def at_place(value):
        return lambda x: x.at[:, place].set(value[:, place])

    runs = [with_hooks(logits, {name: at_place(values[name])})(params, corrupted) for name in NAMES]
    return jnp.stack([run[0, asked, answer] for run in runs])


before, after = (
    float(scores[asked, answer])
    for scores in jax.jit(logits)(params, np.concatenate([corrupted, clean]))
)
effects = np.stack([restored(place, clean_cache) for place in range(asked + 1)], axis=1)
effects = (effects - before) / (after - before)
figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
image = axes.imshow(effects, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
axes.set_yticks(range(3), ["before layer 0", "before layer 1", "after layer 1"])
axes.set_xticks(
    range(asked + 1), [f"{place}\n{token}" for place, token in enumerate(clean[0, : asked + 1])]
)
axes.set(
    xlabel="position, and its token",
    title="Share of the answer's logit that patching restores",
)
figure.colorbar(image, label="share restored")
print(
    "before layer 0 it is at position 3:",
    effects[0].round(2)[3],
    "; after layer 1 at the end:",
    effects[2].round(2)[-1],
)
assert effects[0, 3] > 0.99
assert effects[2, -1] > 0.99

# %% [markdown]
# ## Gradients by activations
#
# Hooks are part of a pure function, so `jax.grad` goes through them. The gradient of the right
# answers' logits by the outputs of the heads of layer 1, times those outputs, estimates all four
# ablations at once.


# %%
def answers(params, batch):
    """The mean logit of the right tokens, beyond that of all tokens."""
    scores = logits(params, batch["inputs"])
    right = jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1)[..., 0]
    return jnp.average(right - scores.mean(axis=-1), weights=batch["weights"])


NAME = "blocks.1.attn.hook_z"
whole, cache = jax.jit(with_cache(answers, NAME))(params, test)
gradient = jax.jit(jax.grad(lambda z: with_hooks(answers, {NAME: replace_with(z)})(params, test)))(
    cache[NAME]
)
estimate = np.asarray((gradient * cache[NAME]).sum(axis=(0, 1, 3)))
removed = [jax.jit(with_hooks(answers, {NAME: zero_head(head)}))(params, test) for head in range(4)]
measured = float(whole) - np.array(removed)
print(f"mean logit of the right token {float(whole):.2f}; what each head adds to it:")
print("estimated:", estimate.round(2), " measured:", measured.round(2))

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
