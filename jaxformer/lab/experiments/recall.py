"""Recall over a distance: how attention, a recurrence and a convolution learn repeating rows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.checks import at_least, check_field, check_fields, check_types
from jaxformer.functional import rms_norm, sinusoidal_code
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.experiments.mixers import Mixer, mixers
from jaxformer.lab.experiments.report import Report


@dataclass(frozen=True)
class RecallConfig:
    """The settings of the recall experiment."""

    distances: tuple[int, ...] = (4, 8, 12, 16, 24)
    """Periods at which rows repeat, in increasing order; training draws from 4 to the last."""
    width: int = 64
    """The width d."""
    num_layers: int = 2
    """Layers."""
    num_heads: int = 4
    """Number of attention heads."""
    kernel_size: int = 7
    """Kernel size of a convolution in tokens (k)."""
    steps: int = 800
    """Number of updates of each model."""
    batch_size: int = 32
    """Rows per batch."""
    learning_rate: float = 3e-3
    """Peak learning rate of Adam, decayed to 0 by a cosine."""
    seed: int = 0
    """Seed of the parameters and the rows."""

    def __post_init__(self):
        check_types(self)
        sizes = ("width", "num_layers", "num_heads", "kernel_size", "steps", "batch_size")
        check_fields(self, **dict.fromkeys(sizes, at_least(1)))
        rising = list(self.distances) == sorted(set(self.distances)) and len(self.distances) >= 2
        right = rising and self.distances[0] >= 4
        check_field(self, "distances", right, "two or more in increasing order, from 4")
        fits = self.width % self.num_heads == 0 and self.width % 2 == 0
        check_field(self, "width", fits, f"even, and a multiple of num_heads = {self.num_heads}")

    @property
    def vocab_size(self) -> int:
        """Number of symbols: a third more than a row can contain."""
        return self.distances[-1] + self.distances[-1] // 3

    @property
    def length(self) -> int:
        """Tokens per row: twice the longest period."""
        return 2 * self.distances[-1]


class Recall(NamedTuple):
    """The results of a model with one kind of layer."""

    mixer: Mixer
    accuracy: np.ndarray
    """float64 `[distances]`: the fraction of correct predictions once a row repeats."""
    curve: np.ndarray
    """float32 `[steps]`: the loss of each batch, in nats per predictable token."""
    num_parameters: int
    """Number of parameters in the mixing layers."""
    seconds: float
    """Seconds per update, after the first ten."""


def repeating_rows(
    rng: np.random.Generator, rows: int, length: int, vocab_size: int, distances: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows that repeat a random sequence of distinct symbols, after one of the distances.

    Returns tokens int32 `[rows, T + 1]`, and weights float32 `[rows, T]`, which are 1 where earlier
    tokens determine the next one.
    """
    tokens = np.empty((rows, length + 1), np.int32)
    weights = np.zeros((rows, length), np.float32)
    for row, distance in enumerate(rng.choice(np.asarray(distances), rows)):
        tokens[row] = np.resize(rng.permutation(vocab_size)[:distance], length + 1)
        weights[row, distance:] = 1.0
    return tokens, weights


def train_recall(mixer: Mixer, config: RecallConfig) -> Recall:
    """Trains a model with this layer and measures its recall at each distance."""
    parameters = _init(mixer, config)
    optimizer = optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.steps))
    loss = partial(_loss, mixer)

    @jax.jit
    def update(parameters, state, tokens, weights):
        value, gradients = jax.value_and_grad(loss)(parameters, tokens, weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, value

    rng = np.random.default_rng(config.seed)
    drawn = (config.batch_size, config.length, config.vocab_size)
    every = range(4, config.distances[-1] + 1)
    state = optimizer.init(parameters)
    curve = []
    started = 0.0
    for step in range(config.steps):
        if step == min(10, config.steps - 1):
            started = time.perf_counter()
        rows = repeating_rows(rng, *drawn, every)
        parameters, state, value = update(parameters, state, *rows)
        curve.append(value)
    jax.block_until_ready(parameters)
    seconds = (time.perf_counter() - started) / max(config.steps - 10, 1)
    predict = jax.jit(partial(_logits, mixer))
    accuracy = []
    for distance in config.distances:
        tokens, weights = repeating_rows(rng, 128, *drawn[1:], [distance])
        right = np.asarray(predict(parameters, tokens[:, :-1])).argmax(-1) == tokens[:, 1:]
        accuracy.append(float(np.average(right, weights=weights)))
    size = sum(x.size for layer in parameters["layers"] for x in layer["mixer"].values())
    return Recall(mixer, np.array(accuracy), np.array(curve), size, seconds)


def recall_report(config: RecallConfig) -> Report:
    """Reports over which distances attention, a GRU and a convolution recall symbols."""
    compared = mixers(config.num_heads, config.kernel_size)
    found = [train_recall(each, config) for each in compared if "blockwise" not in each.name]
    reach = config.num_layers * (config.kernel_size - 1)
    header = ["layer", "sequential", "path", "parameters", "ms a step"]
    header += [f"distance {distance}" for distance in config.distances]
    rows = [
        [
            each.mixer.name.removesuffix(", reference"),
            each.mixer.steps,
            each.mixer.path,
            each.num_parameters,
            1e3 * each.seconds,
            *each.accuracy.tolist(),
        ]
        for each in found
    ]
    last = config.distances[-1]
    shares = ", ".join(f"{row[0]} {row[-1]:.0%}" for row in rows)
    return Report(
        name="recall",
        title="Recall over a distance",
        setting=(
            f"Rows of {config.length} tokens repeat after 4 to {last}; a model that finds the "
            "previous occurrence of the current token can predict the next one. Models of "
            f"{config.num_layers} layers, d = {config.width}, differ only in the mixing layer and "
            f"are trained for {config.steps} steps of {config.batch_size} rows. The table shows "
            "the fraction of correct predictions on new rows, once they repeat."
        ),
        finding=(
            f"At distance {last}: {shares}; a guess among the symbols of a row is right in "
            f"{1 / last:.0%}. Attention reaches any token in one step; {config.num_layers} "
            f"convolutions of {config.kernel_size} see {reach} tokens back and no further; the GRU "
            "has to store everything in one state."
        ),
        header=header,
        rows=rows,
        figure=_draw(found, config, reach),
    )


def _init(mixer: Mixer, config: RecallConfig) -> dict:
    width = config.width
    keys = iter(jax.random.split(jax.random.key(config.seed), 99))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    layers = [
        {
            "mixer": mixer.init(next(keys), width),
            "up": normal(width, 2 * width),
            "down": normal(2 * width, width),
        }
        for _ in range(config.num_layers)
    ]
    table = jax.random.normal(next(keys), (config.vocab_size, width))
    return {"table": table, "layers": layers, "head": normal(width, config.vocab_size)}


def _logits(mixer: Mixer, parameters: dict, inputs_BT: jax.Array) -> jax.Array:
    """Returns logits `[B, T, V]` of pre-norm blocks with a mixer and a feed-forward layer."""
    norm = partial(rms_norm, scale=None, eps=1e-6, unit_offset=False)
    x_BTD = parameters["table"][inputs_BT]
    options = {"model_dim": x_BTD.shape[-1], "theta": 1e4, "layout": "interleaved"}
    x_BTD = x_BTD + sinusoidal_code(jnp.arange(x_BTD.shape[1]), **options)[None]
    for layer in parameters["layers"]:
        x_BTD = x_BTD + mixer.apply(layer["mixer"], norm(x_BTD))
        x_BTD = x_BTD + jax.nn.relu(norm(x_BTD) @ layer["up"]) @ layer["down"]
    return norm(x_BTD) @ parameters["head"]


def _loss(mixer: Mixer, parameters: dict, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    logits = _logits(mixer, parameters, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.sum(losses * weights) / jnp.sum(weights)


def _draw(found: Sequence[Recall], config: RecallConfig, reach: int):
    title = f"Rows that repeat: {config.num_layers} layers, d = {config.width}"
    figure, ((left, right),) = canvas(title, (11, 4.2), 1, 2)
    x, y = "distance to the last occurrence (tokens)", "fraction of correct predictions"
    frame(left, "Recall", x, y)
    frame(right, "Training", "step", "loss (nats per token)")
    for colour, each in zip(COLOURS, found, strict=False):
        label = each.mixer.name.removesuffix(", reference")
        left.plot(config.distances, each.accuracy, color=colour, marker="o", label=label)
        width = max(1, len(each.curve) // 50)
        smooth = np.convolve(each.curve, np.ones(width) / width, "valid")
        right.plot(np.arange(len(smooth)) + width, smooth, color=colour, label=label)
    label = f"{reach}: receptive field of the convolutions"
    left.axvline(reach, color="#777777", linestyle=":", label=label)
    left.set_ylim(0, 1.03)
    left.set_xticks(config.distances)
    right.set_ylim(bottom=0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
