"""Searches for the fastest mesh, rematerialization and gradient accumulation on a slice.

All meshes that divide the model are sorted by `time_of`. Their memory is estimated in this order
until enough of them fit.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, isqrt, log2
from operator import le
from typing import Any

from jaxformer.config import Config
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed.chips import GIB, Chip
from jaxformer.distributed.sharding import MeshConfig, row_shards
from jaxformer.distributed.slices import Slice, slices_of
from jaxformer.errors import ConfigError
from jaxformer.io.components import with_values
from jaxformer.models.model import ModelConfig
from jaxformer.nn.config import RematNames
from jaxformer.plan.closed_form import (
    exchanged_heads,
    expert_parameter_count,
    parameter_count,
    saved_bytes,
    with_remat,
    work_of,
)
from jaxformer.plan.memory import MemoryEstimate, estimate
from jaxformer.plan.roofline import StepTime, step_time, time_of
from jaxformer.plan.trace import TracedStep, check, stages_of, trace_step

REMAT = ("none", "dots", "full")
"""Rematerialization policies to try in addition to that of the experiment."""
MOST_TRACES = 8
"""Maximum number of candidates to trace before giving up."""
WANTED = 2
"""Number of candidates that have to fit: the best and the second best."""
_STATE = ("parameters", "optimizer", "ema", "other models", "gradients")
"""The parts of `MemoryEstimate` that do not depend on the batch size."""
_FLOAT_BYTES = 4
_FULL = 0.9
"""The fraction of used memory at which the search for the largest batch ends."""


@dataclass(frozen=True)
class Candidate:
    """A way to train an experiment on a slice."""

    config: Config
    """The experiment with its mesh, rematerialisation and gradient accumulation."""
    slice: Slice
    memory: MemoryEstimate
    step: StepTime
    """The time of a step; with a ramp, of the last stage."""
    why: str = ""
    """Why it is faster than the next one."""

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory of a device."""
        return self.memory.peak <= self.slice.chip.memory.value

    @property
    def name(self) -> str:
        """A short description: "fsdp 64, remat full"."""
        sizes = vars(self.config.mesh)
        parts = self.config.train.gradient_accumulation
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
    """Estimates the memory and time of an experiment with its own mesh."""
    step, memory = largest_stage(config, slice_)
    last = stage_step(stages_of(config)[-1].config, step)
    return Candidate(replace(config, mesh=step.config.mesh), slice_, memory, step_time(last))


def largest_stage(config: Config, slice_: Slice) -> tuple[TracedStep, MemoryEstimate]:
    """Returns the stage of a run that needs the most memory."""
    shapes = {_shape(stage.config): stage.config for stage in stages_of(config)}
    # A stage whose rows are neither more nor longer than another's needs no more memory.
    largest = [
        stage
        for shape, stage in shapes.items()
        if not any(other != shape and all(map(le, shape, other)) for other in shapes)
    ]
    steps = [trace_step(stage, slice_) for stage in largest]
    return max(((step, estimate(step)) for step in steps), key=lambda found: found[1].peak)


def stage_step(stage: Config, known: TracedStep) -> TracedStep:
    """Returns the traced step of a stage, reusing `known` if it has the same shape."""
    return known if _shape(stage) == _shape(known.config) else trace_step(stage, known.slice)


def best(config: Config, slice_: Slice) -> list[Candidate]:
    """Returns the fastest ways to train an experiment on a slice that fit in memory.

    The batch size stays that of the experiment. A batch that does not fit is split into parts.
    """
    return _ranked(_traced(config, slice_))


def _traced(config: Config, slice_: Slice) -> list[Candidate]:
    """Traces candidates, fastest first, until enough of them fit."""

    def order(each: Config) -> float:
        """The time of a step without a trace; with a ramp, of the last stage."""
        return time_of(work_of(each, slice_), slice_, vars(each.mesh)).seconds

    waiting = sorted(_candidates(config, slice_), key=order)
    traced: list[Candidate] = []
    while waiting and len(traced) < MOST_TRACES and sum(x.fits for x in traced) < WANTED:
        traced.append(evaluate(waiting.pop(0), slice_))
        if traced[-1].fits:
            continue
        # A candidate that needs as much memory is not worth a trace; the smallest one is.
        excess = traced[-1].memory.peak / slice_.chip.memory.value
        most = _rough_bytes(traced[-1].config) / excess
        least = min(waiting, key=_rough_bytes, default=None)
        waiting = [each for each in waiting if _rough_bytes(each) < most or each is least]
        smaller = _in_more_parts(traced[-1])
        if smaller is not None:
            insort(waiting, smaller, key=order)
    return traced


def _ranked(traced: list[Candidate]) -> list[Candidate]:
    """Returns the candidates that fit, fastest first."""
    found = sorted((x for x in traced if x.fits), key=lambda candidate: candidate.step.seconds)
    return [replace(found[0], why=_reason(*found[:2])), *found[1:]] if found else []


def winner(config: Config, slice_: Slice) -> Candidate:
    """Returns the fastest way to train an experiment on a slice, or raises ConfigError."""
    traced = _traced(config, slice_)
    if found := _ranked(traced):
        return found[0]
    available = slice_.chip.memory.value / GIB
    if traced:
        nearest = min(traced, key=lambda candidate: candidate.memory.peak)
        raise ConfigError(
            f"chips = {slice_.name!r}: this config does not fit on any mesh in the "
            f"{available:.2f} GiB of a device; the smallest traced candidate, "
            f"{nearest.name}, needs {nearest.memory.peak / GIB:.2f}; take more chips, a chip with "
            f"more memory, or a smaller batch{_or_pad(config, slice_)}"
        )
    meshes = _meshes(config.model, slice_)
    if any(_passes(check, replace(config, mesh=mesh), slice_) for mesh in meshes):
        raise ConfigError(
            f"chips = {slice_.name!r}: the state of this config does not fit on any mesh in the "
            f"{available:.2f} GiB of a device; take more chips, or a chip with more "
            f"memory{_or_pad(config, slice_)}"
        )
    raise ConfigError(_why_not_divided(config, slice_))


def _or_pad(config: Config, slice_: Slice) -> str:
    """Suggests a padded vocabulary size if the actual one cannot be sharded over all devices."""
    size = getattr(config.model, "vocab_size", 0)
    devices = slice_.num_devices
    if size % devices == 0:
        return ""
    padded = -(-size // devices) * devices
    return (
        f", or pad the vocabulary of {size}, which cannot be sharded over {devices} devices: "
        f"--model.vocab_size {padded}"
    )


def _why_not_divided(config: Config, slice_: Slice) -> str:
    """Returns an error that names a batch size that some mesh can divide."""
    # Some mesh divides the model, since full replication does.
    parts = config.train.gradient_accumulation
    devices = slice_.num_devices
    model = config.model
    meshes = [
        mesh
        for mesh in _meshes(model, slice_)
        if mesh.sequence == 1 and _passes(check_mesh, model, vars(mesh))
    ]
    least = parts * min(row_shards(vars(mesh)) for mesh in meshes)
    phase = next(phase for phase in config.data.phases if phase.batch_size % least)
    return (
        f"{phase.field}.batch_size = {phase.batch_size}: must be a multiple of {least}, so that "
        f"every one of the {devices} devices of {slice_.name} has the same number of rows; change "
        "the batch size, or take fewer chips"
    )


def smallest(config: Config, chip: Chip) -> Candidate:
    """Returns the best candidate on the smallest slice that an experiment fits on."""
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
        f"chips = {chip.name!r}: no slice is large enough for this config with data.batch_size = "
        f"{config.data.batch_size}; take a chip with more memory, or a larger batch"
    )


def _candidates(config: Config, slice_: Slice) -> Iterator[Config]:
    """Yields every mesh, remat policy and accumulation whose state and saved activations fit."""
    model = config.model
    models = [with_remat(model, remat) for remat in REMAT]
    models += [model] if model not in models else []
    for mesh in _meshes(model, slice_):
        placed = replace(config, mesh=mesh)
        if not _passes(check, placed, slice_):
            continue
        for each in models:
            changed = replace(placed, model=each)
            parts = _fewest_parts(changed, slice_)
            if parts is not None:
                yield _with_parts(changed, parts)


def _meshes(model: ModelConfig, slice_: Slice) -> Iterator[MeshConfig]:
    """Yields every way to distribute the devices of a slice over the mesh axes."""
    devices = slice_.num_devices
    # Layers wait for tensor-parallel reductions, and network latency is not modelled.
    most_tensor = slice_.chip.link_domain or devices
    most_expert = devices if expert_parameter_count(model) else 1
    for tensor, expert, sequence, fsdp in _divisors(devices, 4):
        data = devices // (tensor * expert * sequence * fsdp)
        if tensor <= most_tensor and expert <= most_expert and data % slice_.num_slices == 0:
            yield MeshConfig(data, fsdp, tensor, sequence, expert)


def _divisors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields every tuple of `count` factors whose product divides a number."""
    if count == 0:
        yield ()
        return
    for size in range(1, number + 1):
        if number % size == 0:
            for others in _divisors(number // size, count - 1):
                yield size, *others


def _passes(test: Callable, *arguments: Any) -> bool:
    """Whether a check, such as that a mesh divides the batch and the model, raises no error."""
    try:
        test(*arguments)
    except ConfigError:
        return False
    return True


def _fewest_parts(config: Config, slice_: Slice) -> int | None:
    """Returns the fewest micro-batches whose saved activations fit, or None if there are none."""
    parts = config.train.gradient_accumulation
    rows = [stage.config.data.batch_size for stage in stages_of(config)]
    while all(count % (parts * row_shards(vars(config.mesh))) == 0 for count in rows):
        if _rough_bytes(_with_parts(config, parts)) < slice_.chip.memory.value:
            return parts
        if _compares_rows(config.model):
            return None
        parts *= 2
    return None


def _rough_bytes(config: Config) -> float:
    """The state, the saved activations and those of one layer, which are most of the memory."""
    mesh, model = config.mesh, config.model
    experts = expert_parameter_count(model)
    resident = parameter_count(model) - experts + experts / mesh.expert
    parts = config.train.gradient_accumulation * row_shards(vars(mesh)) * mesh.sequence
    tokens = 0
    for stage, _ in stages_of(config):
        longest = stage.data.sequences_per_row * max(stage.row_lengths.values())
        tokens = max(tokens, stage.data.batch_size * longest // parts)
    found = 4 * _FLOAT_BYTES * resident / (mesh.fsdp * mesh.tensor)
    for stack in model.stacks:
        layer = saved_bytes(stack.with_fields(remat="none"), tokens, mesh.tensor)
        found += saved_bytes(stack, tokens, mesh.tensor) + layer / stack.num_layers
        exchanged = exchanged_heads(stack, mesh.sequence, mesh.tensor)
        heads = mesh.sequence * stack.kv_heads if exchanged is None else exchanged
        keys = tokens * heads * (stack.head_width + stack.value_width) / mesh.tensor  # and values
        found += (mesh.sequence > 1) * 2 * keys * stack.dtype.itemsize  # with their gradients
    return found


def _in_more_parts(candidate: Candidate) -> Config | None:
    """Splits the batch of a candidate that does not fit further, or returns None."""
    # All memory except the state is proportional to the rows of a micro-batch.
    config = candidate.config
    limit = candidate.slice.chip.memory.value
    state = sum(candidate.memory.parts.get(name, 0) for name in _STATE)
    if state >= limit or _compares_rows(config.model):
        return None
    factor = 2 ** ceil(log2((candidate.memory.peak - state) / (limit - state)))
    smaller = _with_parts(config, factor * config.train.gradient_accumulation)
    return smaller if _passes(check, smaller, candidate.slice) else None


def _with_parts(config: Config, parts: int) -> Config:
    return with_values(config, {"train.gradient_accumulation": parts})


def _compares_rows(model: ModelConfig) -> bool:
    """Whether the loss depends on how a batch is split."""
    return any(head.compares_rows for head in model.heads)


def _reason(winner: Candidate, other: Candidate | None = None) -> str:
    """Describes why the fastest candidate is faster than the second best."""
    if other is None:
        return f"{winner.name}: the only traced candidate that fits"
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
    """Returns the rows and the row lengths of a batch."""
    return config.data.batch_size, *config.row_lengths.values()


def largest_batch(config: Config, slice_: Slice) -> int:
    """Returns the largest batch size in rows that fits with the given mesh and rematerialization.

    Memory grows about linearly with the rows of a micro-batch: two estimates give the slope, and
    further ones confirm the result.
    """
    sizes = config.mesh.axis_sizes(slice_.num_devices)
    unit = row_shards(sizes) * config.train.gradient_accumulation
    limit = slice_.chip.memory.value

    def needed(units: int) -> int:
        rows = replace(config, data=config.data.without_ramp(batch_size=units * unit))
        return estimate(trace_step(rows, slice_)).peak

    def extrapolated(units: int, found: int) -> int:
        """Linearly extrapolates from the memory of 1 and of `units` units to the limit."""
        # The first rows of a small model fit on the chip and would suggest any number.
        return min(1 + int((units - 1) * (limit - one) / max(found - one, 1)), 16 * units)

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
