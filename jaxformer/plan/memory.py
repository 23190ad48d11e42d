"""What a training step needs of each device's memory, by what it is for."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxformer.plan.layout import layout_of
from jaxformer.plan.liveness import peak
from jaxformer.plan.program import Value
from jaxformer.plan.trace import TracedStep

_ATTENTION = ("functional/attention/", "splash_attention")
_LOSS = ("functional/losses/cross_entropy.py", "models/heads/", "training/loss.py")
GAPS = (0.05, 0.2)
"""What gaps between arrays add to a peak by the compiler: in the middle of the recipes of
`benchmarks/plan_receipts.py`, and at most in nine of ten."""
ERROR = 0.1
"""How far the closed form is from the compiler's peak at most, there."""


class Buffer(NamedTuple):
    """An array at the moment at which a step needs most."""

    bytes: int
    """What a device holds of it."""
    text: str
    """What it is: "bfloat16[16, 8192, 14336] of dot_general"."""
    source: str
    """The line that asks for it: "functional/derivatives.py:80"."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one device at the moment at which a step needs most."""

    parts: dict[str, int]
    """Bytes by what they are for."""
    buffers: tuple[Buffer, ...]
    """The temporary arrays, largest first."""
    assumptions: tuple[str, ...]
    """What the estimate takes for granted."""

    @property
    def peak(self) -> int:
        """Bytes in all."""
        return sum(self.parts.values())

    def verdict(self, usable: float) -> str:
        """Whether it fits into so many bytes: "fits", "may not fit" or "does not fit"."""
        if self.peak > usable:
            return "does not fit"
        return "fits" if (1 + GAPS[1]) * self.peak <= usable else "may not fit"

    def cannot_fit(self, usable: float) -> bool:
        """Whether it is too much for so many bytes even if the closed form says too much."""
        return self.peak > (1 + ERROR) * usable


def estimate(step: TracedStep) -> MemoryEstimate:
    """The memory that a training step needs, from its trace alone.

    State and batch are exact: their shapes and shardings. The rest are the arrays that exist at the
    same time in the traced program, as `plan.liveness` says.

    Args:
        step: The step.

    Returns:
        The estimate.
    """
    program, state = step.train_program, step.train_program.state_shapes
    layout = layout_of(step.slice.chip)
    held = layout.bytes_of_tree
    parts = {
        "parameters": held(state.params),
        "optimizer": held(state.opt_state),
        "ema": held(state.ema),
        "batch": held(step.batch),
        "other models": held(program.loss.parameters),
    }
    found = peak(step.program, layout)
    shapes = _gradient_shapes(program.param_shardings, program.abstract_model.shapes)
    for value, maker, size in found.arrays:
        part = _purpose(value, maker, shapes)
        parts[part] = parts.get(part, 0) + size
    buffers = [
        Buffer(size, f"{value.dtype}{list(value.shape)} of {maker}", value.source)
        for value, maker, size in found.arrays
    ]
    buffers.sort(key=lambda buffer: -buffer.bytes)
    return MemoryEstimate({k: n for k, n in parts.items() if n}, tuple(buffers), _said(step))


def cache_bytes(step: TracedStep, rows: int, length: int) -> int:
    """The caches with which a model generates: keys and values of all layers, on each device.

    Args:
        step: Any step of the model on the mesh.
        rows: Rows that are continued at the same time, all devices together.
        length: Tokens of a row, prompt included.

    Returns:
        Bytes on each device.
    """
    config = step.config.model
    stack = config.stacks[-1]
    windows = [min(window or length, length) for window in stack.windows]
    slots = stack.num_layers // len(windows) * sum(windows)
    widths = stack.kv_heads * (stack.head_width + stack.value_width)
    if config.is_encoder_decoder:
        slots += stack.num_layers * length
    sizes = step.mesh_sizes
    cut = sizes["data"] * sizes["fsdp"] * (sizes["tensor"] if stack.kv_heads > 1 else 1)
    return slots * widths * rows * stack.dtype.itemsize // cut


def _gradient_shapes(shardings, shapes) -> set[tuple[int, ...]]:
    """The shapes of gradients, cut like their parameters and before they are summed."""
    cut = {shardings[name].shard_shape(x.shape) for name, x in shapes.items()}
    return cut | {x.shape for x in shapes.values()} | {x.shape[1:] for x in shapes.values()}


def _purpose(value: Value, maker: str, gradients: set[tuple[int, ...]]) -> str:
    """What an array is for."""
    if maker == "cast":
        return "parameters in the compute dtype"
    if value.shape in gradients and value.dtype.itemsize == 4 and len(value.shape) > 1:
        return "gradients"
    if maker == "reshard":
        return "gathered parameters"
    if maker == "saved by the loop":
        return "saved activations"
    if maker == "pallas_call" or value.source.startswith(_ATTENTION):
        return "attention"
    if value.source.startswith(_LOSS):
        return "loss"
    return "activations of one layer"


def _said(step: TracedStep) -> tuple[str, ...]:
    """What the estimate takes for granted."""
    said = ["the compiler packs what exists at the same time without gaps"]
    if step.slice.chip.kind == "gpu":
        said.append("no compiler for GPUs runs here: nothing confirms the closed form")
        said.append("communication buffers and the CUDA context come on top")
    return tuple(said)
