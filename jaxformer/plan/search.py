"""The search for the fastest mesh, rematerialisation and gradient accumulation on a slice.

All meshes that divide the model are sorted by `time_of`. The memory of the first ones is estimated,
in this order, until enough of them fit.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, isqrt, log2
from operator import le

from jaxformer.config import Config
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed.chips import GIB, Chip
from jaxformer.distributed.sharding import MeshConfig
from jaxformer.distributed.slices import Slice, slices_of
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig
from jaxformer.nn.config import RematNames
from jaxformer.plan.closed_form import parameter_count, saved_bytes, with_remat, work_of
from jaxformer.plan.memory import MemoryEstimate, estimate
from jaxformer.plan.roofline import StepTime, step_time, time_of
from jaxformer.plan.trace import TracedStep, check, stages_of, trace_step

REMAT = ("none", "dots", "full")
"""What is tried in addition to the experiment's own."""
MOST_TRACES = 8
"""How many candidates are traced before the search gives up."""
WANTED = 2
"""How many candidates have to fit: the best and the next."""
_STATE = ("parameters", "optimizer", "ema", "other models", "gradients")
"""The parts of `MemoryEstimate` that do not depend on the batch size."""
_FLOAT_BYTES = 4
_FULL = 0.9
"""The fraction of memory at which the search for the largest batch ends."""


@dataclass(frozen=True)
class Candidate:
    """A way to train an experiment on a slice."""

    config: Config
    """The experiment with its mesh, rematerialisation and gradient accumulation."""
    slice: Slice
    """The chips."""
    memory: MemoryEstimate
    """The memory of a device."""
    step: StepTime
    """The time of a step; of the last one of a ramp."""
    why: str = ""
    """Why it is faster than the next one."""

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory of a device."""
        return self.memory.peak <= self.slice.chip.memory.value

    @property
    def name(self) -> str:
        """A short description: "fsdp 64, remat full"."""
        sizes, parts = vars(self.config.mesh), self.config.train.gradient_accumulation
        found = [f"{axis} {size}" for axis, size in sizes.items() if size > 1] or ["one device"]
        found.append(remat_text(self.config.model))
        return ", ".join(found + ([f"{parts} parts"] if parts > 1 else []))


def remat_text(model: ModelConfig) -> str:
    """How a model is rematerialised: "remat dots"."""
    found = []
    for remat in dict.fromkeys(stack.remat for stack in model.stacks):
        if isinstance(remat, RematNames):
            names = {"save": remat.save, "offload": remat.offload}
            named = [f"{how} {' + '.join(which)}" for how, which in names.items() if which]
            found.append(" ".join(named) or "full")
        else:
            found.append(remat)
    return f"remat {' and '.join(found)}"


def evaluate(config: Config, slice_: Slice) -> Candidate:
    """The memory and time of an experiment with its own mesh."""
    step, memory = neediest(config, slice_)
    last = stage_step(stages_of(config)[-1].config, step)
    return Candidate(replace(config, mesh=step.config.mesh), slice_, memory, step_time(last))


def neediest(config: Config, slice_: Slice) -> tuple[TracedStep, MemoryEstimate]:
    """The stage of a run that needs the most memory."""
    shapes = {_shape(stage.config): stage.config for stage in stages_of(config)}
    # A stage with no more rows than another and no longer ones needs no more memory.
    largest = [
        stage
        for shape, stage in shapes.items()
        if not any(other != shape and all(map(le, shape, other)) for other in shapes)
    ]
    steps = [trace_step(stage, slice_) for stage in largest]
    return max(((step, estimate(step)) for step in steps), key=lambda found: found[1].peak)


def stage_step(stage: Config, known: TracedStep) -> TracedStep:
    """The step of a stage; `known` if that has the same shape."""
    return known if _shape(stage) == _shape(known.config) else trace_step(stage, known.slice)


def best(config: Config, slice_: Slice) -> list[Candidate]:
    """The fastest ways to train an experiment on a slice, of those that fit.

    The batch size stays that of the experiment. A batch that does not fit is split into parts.
    """
    return _ranked(_traced(config, slice_))


def _traced(config: Config, slice_: Slice) -> list[Candidate]:
    """The candidates whose memory is estimated, until enough of them fit."""
    order = partial(_seconds, slice_=slice_)
    waiting = sorted(_candidates(config, slice_), key=order)
    traced: list[Candidate] = []
    while waiting and len(traced) < MOST_TRACES and sum(x.fits for x in traced) < WANTED:
        traced.append(evaluate(waiting.pop(0), slice_))
        smaller = None if traced[-1].fits else _in_more_parts(traced[-1])
        if smaller is not None:
            insort(waiting, smaller, key=order)
    return traced


def _ranked(traced: list[Candidate]) -> list[Candidate]:
    """Those that fit, fastest first."""
    found = sorted((x for x in traced if x.fits), key=lambda candidate: candidate.step.seconds)
    return [replace(found[0], why=_reason(*found[:2])), *found[1:]] if found else []


def winner(config: Config, slice_: Slice) -> Candidate:
    """The fastest way to train an experiment on a slice."""
    traced = _traced(config, slice_)
    if found := _ranked(traced):
        return found[0]
    available = slice_.chip.memory.value / GIB
    if traced:
        nearest = min(traced, key=lambda candidate: candidate.memory.peak)
        raise ConfigError(
            f"chips = {slice_.name!r}: no mesh holds this config in the {available:.2f} GiB of a "
            f"device; the smallest of those that were traced, {nearest.name}, needs "
            f"{nearest.memory.peak / GIB:.2f}; take more chips, a chip with more memory, or a "
            f"smaller batch{_or_pad(config, slice_)}"
        )
    if any(_divides(replace(config, mesh=mesh), slice_) for mesh in _meshes(slice_)):
        raise ConfigError(
            f"chips = {slice_.name!r}: no mesh holds the state of this config in the "
            f"{available:.2f} GiB of a device; take more chips, or a chip with more memory"
            f"{_or_pad(config, slice_)}"
        )
    raise ConfigError(_why_not_divided(config, slice_))


def _or_pad(config: Config, slice_: Slice) -> str:
    """The size of the vocabulary that all devices can share, if they cannot share its own."""
    size, devices = getattr(config.model, "vocab_size", 0), slice_.num_devices
    if size % devices == 0:
        return ""
    padded = -(-size // devices) * devices
    return (
        f", or pad the vocabulary of {size}, which {devices} devices cannot share: "
        f"--model.vocab_size {padded}"
    )


def _why_not_divided(config: Config, slice_: Slice) -> str:
    """Which batch size a mesh can divide."""
    # Some mesh divides the model: one with a copy on each device does.
    parts, devices = config.train.gradient_accumulation, slice_.num_devices
    meshes = [mesh for mesh in _meshes(slice_) if _divides_model(config.model, mesh)]
    least = parts * min(mesh.data * mesh.fsdp for mesh in meshes)
    phase = next(phase for phase in config.data.phases if phase.batch_size % least)
    return (
        f"{phase.field}.batch_size = {phase.batch_size}: must be a multiple of {least}, so that "
        f"every one of the {devices} devices of {slice_.name} has the same number of rows; change "
        "the batch size, or take fewer chips"
    )


def smallest(config: Config, chip: Chip) -> Candidate:
    """The best candidate on the smallest slice that holds an experiment."""
    least = 2 * _FLOAT_BYTES * parameter_count(config.model)  # parameters and gradients
    most_tensor = min(stack.num_heads for stack in config.model.stacks)
    for slice_ in slices_of(chip):
        if least / slice_.num_devices > chip.memory.value:
            continue
        if slice_.num_devices > config.data.batch_size * most_tensor:
            break
        if found := best(config, slice_):
            return found[0]
    raise ConfigError(
        f"chips = {chip.name!r}: no slice holds this config with data.batch_size = "
        f"{config.data.batch_size}; take a chip with more memory, or a larger batch"
    )


def _candidates(config: Config, slice_: Slice) -> Iterator[Config]:
    """Every mesh, rematerialisation and accumulation whose state and saved activations fit."""
    model = config.model
    models = [with_remat(model, remat) for remat in REMAT]
    models += [model] if model not in models else []
    for mesh in _meshes(slice_):
        placed = replace(config, mesh=mesh)
        if not _divides(placed, slice_):
            continue
        for each in models:
            changed = replace(placed, model=each)
            parts = _fewest_parts(changed, slice_)
            if parts is not None:
                yield _with_parts(changed, parts)


def _meshes(slice_: Slice) -> Iterator[MeshConfig]:
    """Every way to spread the devices of a slice over the axes."""
    devices = slice_.num_devices
    # A layer waits for its sums, and the latency of a network is not modelled.
    widest = slice_.chip.link_domain or devices
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    for tensor in (size for size in divisors if size <= widest):
        for fsdp in divisors:
            data, rest = divmod(devices, tensor * fsdp)
            if not rest and data % slice_.num_slices == 0:
                yield MeshConfig(data, fsdp, tensor)


def _divides(config: Config, slice_: Slice) -> bool:
    """Whether the mesh divides the batch and the model."""
    try:
        check(config, slice_)
    except ConfigError:
        return False
    return True


def _divides_model(model: ModelConfig, mesh: MeshConfig) -> bool:
    """Whether the mesh divides the model."""
    try:
        check_mesh(model, vars(mesh))
    except ConfigError:
        return False
    return True


def _fewest_parts(config: Config, slice_: Slice) -> int | None:
    """The fewest parts of a batch whose saved activations fit; None if single rows do not."""
    mesh, model, stages = config.mesh, config.model, stages_of(config)
    state = 4 * _FLOAT_BYTES * parameter_count(model) / (mesh.fsdp * mesh.tensor)
    free = slice_.chip.memory.value - state
    rows = [stage.config.data.batch_size // (mesh.data * mesh.fsdp) for stage in stages]
    tokens = [_longest_row(stage.config) * count for stage, count in zip(stages, rows, strict=True)]
    parts = config.train.gradient_accumulation
    while all(count % parts == 0 for count in rows):
        saved = (saved_bytes(stack, max(tokens) // parts, mesh.tensor) for stack in model.stacks)
        if sum(saved) < free:
            return parts
        if _compares_rows(model):
            return None
        parts *= 2
    return None


def _in_more_parts(candidate: Candidate) -> Config | None:
    """A candidate that does not fit, with its batch split so that it may; None if it cannot."""
    # All but the state is proportional to the rows of a part.
    config, limit = candidate.config, candidate.slice.chip.memory.value
    state = sum(candidate.memory.parts.get(name, 0) for name in _STATE)
    if state >= limit or _compares_rows(config.model):
        return None
    factor = 2 ** ceil(log2((candidate.memory.peak - state) / (limit - state)))
    smaller = _with_parts(config, factor * config.train.gradient_accumulation)
    return smaller if _divides(smaller, candidate.slice) else None


def _with_parts(config: Config, parts: int) -> Config:
    return replace(config, train=replace(config.train, gradient_accumulation=parts))


def _compares_rows(model: ModelConfig) -> bool:
    """Whether the loss depends on how a batch is split."""
    return any(head.compares_rows for head in model.heads)


def _longest_row(config: Config) -> int:
    return config.data.sequences_per_row * max(config.row_lengths.values())


def _seconds(config: Config, slice_: Slice) -> float:
    """The time of a step without its trace; of the last one of a ramp."""
    return time_of(work_of(config, slice_), slice_, vars(config.mesh)).seconds


def _reason(winner: Candidate, other: Candidate | None = None) -> str:
    """Why the fastest candidate is faster than the next."""
    if other is None:
        return f"{winner.name}: the only one that fits of those that were traced"
    slower = other.step.seconds / winner.step.seconds - 1
    more = {
        name: seconds - winner.step.terms.get(name, 0.0)
        for name, seconds in other.step.terms.items()
    }
    term = max(more, key=more.__getitem__)
    return (
        f"the next, {other.name}, takes {slower:.1%} longer: {more[term]:.3g} s more of {term}; "
        f"it is bound by {other.step.binding}"
    )


def _shape(config: Config) -> tuple[int, ...]:
    """The rows and the lengths of a batch."""
    return config.data.batch_size, *config.row_lengths.values()


def largest_batch(config: Config, slice_: Slice) -> int:
    """The most rows of a batch that fit, with the mesh and rematerialisation as they are.

    Memory grows about linearly with the rows of a part: two estimates give the slope, and further
    ones confirm the result.
    """
    sizes = config.mesh.sizes(slice_.num_devices)
    unit = sizes[0] * sizes[1] * config.train.gradient_accumulation
    limit = slice_.chip.memory.value

    def needed(units: int) -> int:
        rows = replace(config, data=config.data.without_ramp(batch_size=units * unit))
        return estimate(trace_step(rows, slice_)).peak

    def extrapolated(units: int, found: int) -> int:
        """Where the line through the memory of 1 and of `units` units meets the limit."""
        return 1 + int((units - 1) * (limit - one) / max(found - one, 1))

    if (one := needed(1)) > limit:
        return 0
    fitting, used, too_many = 1, one, None
    units = extrapolated(2, needed(2))
    while fitting < units and used < _FULL * limit:
        if (found := needed(units)) > limit:
            too_many = units
        else:
            fitting, used = units, found
        units = extrapolated(units, found)
        if too_many is not None and not fitting < units < too_many:
            units = isqrt(fitting * too_many)
    return fitting * unit
