"""Time and memory against sequence length for attention, a recurrence and a convolution."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import at_least, check_field, check_fields, check_types
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.experiments.mixers import Mixer, mixers
from jaxformer.lab.experiments.report import Report


@dataclass(frozen=True)
class CostConfig:
    """The settings of the cost experiment."""

    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    """The lengths n to measure, in tokens."""
    width: int = 256
    """The width d."""
    num_heads: int = 4
    """Number of attention heads."""
    kernel_size: int = 7
    """Kernel size of the convolution in tokens (k)."""
    rounds: int = 5
    """Number of measurements per layer, in turns; the fastest counts."""
    backward: bool = True
    """Also measure the backward pass."""

    def __post_init__(self):
        check_types(self)
        sizes = ("width", "num_heads", "kernel_size", "rounds")
        check_fields(self, **dict.fromkeys(sizes, at_least(1)))
        rising = list(self.lengths) == sorted(set(self.lengths)) and len(self.lengths) >= 2
        right = rising and self.lengths[0] >= 1
        check_field(self, "lengths", right, "two or more positive lengths in increasing order")
        fits = self.width % self.num_heads == 0
        check_field(self, "num_heads", fits, f"a divisor of width = {self.width}")


class Cost(NamedTuple):
    """The cost of a layer at each length."""

    mixer: Mixer
    seconds: np.ndarray
    """float64 `[lengths]`: the fastest time of a pass."""
    num_bytes: np.ndarray
    """int64 `[lengths]`: the temporary memory of the compiled program."""

    def exponents(self, lengths: Sequence[int]) -> tuple[float, float]:
        """Returns a and b of time ~ n^a and memory ~ n^b between the two longest lengths."""
        step = np.log(lengths[-1] / lengths[-2])
        measured = (np.maximum(values, 1e-12) for values in (self.seconds, self.num_bytes))
        time_, memory = (float(np.log(values[-1] / values[-2]) / step) for values in measured)
        return time_, memory


def measure_costs(config: CostConfig) -> list[Cost]:
    """Measures each layer at each length, in turns, so that background load affects all of them."""
    compared = mixers(config.num_heads, config.kernel_size)
    passes = [[_compiled(mixer, config, n) for n in config.lengths] for mixer in compared]
    seconds = np.zeros((config.rounds, len(compared), len(config.lengths)))
    for number in range(config.rounds):
        for row, programs in enumerate(passes):
            for column, (run, _) in enumerate(programs):
                start = time.perf_counter()
                run()
                seconds[number, row, column] = time.perf_counter() - start
    fastest = seconds.min(axis=0)
    return [
        Cost(mixer, fastest[row], np.array([size for _, size in passes[row]], np.int64))
        for row, mixer in enumerate(compared)
    ]


def _compiled(mixer: Mixer, config: CostConfig, length: int) -> tuple[Callable[[], None], int]:
    """Returns a function that runs one pass to completion, and its temporary bytes."""
    keys = jax.random.split(jax.random.key(0))
    parameters = mixer.init(keys[0], config.width)
    x_BTD = jax.random.normal(keys[1], (1, length, config.width))

    def total(parameters, x):
        return jnp.sum(jnp.square(mixer.apply(parameters, x)))

    function = jax.grad(total, argnums=(0, 1)) if config.backward else mixer.apply
    program = jax.jit(function).lower(parameters, x_BTD).compile()

    def run() -> None:
        jax.block_until_ready(program(parameters, x_BTD))

    run()
    return run, int(program.memory_analysis().temp_size_in_bytes)


def cost_report(config: CostConfig) -> Report:
    """Reports how time and memory grow with the length."""
    costs = measure_costs(config)
    lengths = config.lengths
    what = "forward and backward" if config.backward else "forward"
    header = ["layer", "work", "sequential", "path"]
    header += [f"ms, n = {n}" for n in lengths] + ["time ~ n^a, a ="]
    header += [f"MB, n = {n}" for n in lengths] + ["memory ~ n^b, b ="]
    growth = [cost.exponents(lengths) for cost in costs]
    rows = []
    for cost, exponents in zip(costs, growth, strict=True):
        mixer = cost.mixer
        times = [*(1e3 * cost.seconds).tolist(), round(exponents[0], 2)]
        sizes = [*(cost.num_bytes / 1e6).tolist(), round(exponents[1], 2)]
        rows.append([mixer.name, mixer.work, mixer.steps, mixer.path, *times, *sizes])
    reference, blockwise = costs[:2]
    saved = reference.num_bytes[-1] / max(blockwise.num_bytes[-1], 1)
    return Report(
        name="cost",
        title="Time and memory against the length",
        setting=(
            f"One layer of width d = {config.width}, a {what} pass of one row of n tokens, float32 "
            f"on {jax.devices()[0].device_kind}; the fastest of {config.rounds} rounds in which "
            "all take turns. Memory is the temporary memory of the compiled program."
        ),
        finding=(
            f"From n = {lengths[-2]} to {lengths[-1]} the time of attention grows as "
            f"n^{growth[0][0]:.1f} and its memory as n^{growth[0][1]:.1f}; blockwise, memory grows "
            f"as n^{growth[1][1]:.1f} and is {saved:.1f} times smaller at n = {lengths[-1]}. The "
            f"GRU and the convolution grow as n^{growth[2][0]:.1f} and n^{growth[3][0]:.1f} in "
            "time; the GRU takes n steps one after another."
        ),
        header=header,
        rows=rows,
        figure=_draw(costs, config, what),
    )


def _draw(costs: Sequence[Cost], config: CostConfig, what: str):
    title = f"One layer, d = {config.width}, {what}, against the length n"
    figure, ((left, right),) = canvas(title, (11, 4.6), 1, 2)
    lengths = np.array(config.lengths)
    frame(left, "Time", "length n (tokens)", "milliseconds")
    frame(right, "Temporary memory", "length n (tokens)", "MB")
    for colour, cost in zip(COLOURS, costs, strict=False):
        line = {"color": colour, "marker": "o", "markersize": 4, "label": cost.mixer.name}
        left.plot(lengths, 1e3 * cost.seconds, **line)
        right.plot(lengths, np.maximum(cost.num_bytes, 1) / 1e6, **line)
    for axes, values in ((left, 1e3 * costs[0].seconds), (right, costs[0].num_bytes / 1e6)):
        for power, style in ((1, ":"), (2, "--")):
            guide = values[-1] * (lengths / lengths[-1]) ** float(power)
            label = "n" if power == 1 else "n²"
            axes.plot(lengths, guide, color="#777777", linestyle=style, linewidth=1, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [str(n) for n in lengths])
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
