"""Which mesh, rematerialisation and accumulation train an experiment fastest on a slice.

Every mesh that divides the model is ranked by a closed form. The best are traced, in this order,
until enough of them fit.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil, log2, prod
from operator import le

from jaxformer.config import Config
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed.chips import GIB, Chip
from jaxformer.distributed.sharding import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.remat import Remat
from jaxformer.plan.closed_form import kept_bytes, made_again, sent
from jaxformer.plan.memory import MemoryEstimate, estimate
from jaxformer.plan.notes import remat_in_words
from jaxformer.plan.roofline import StepTime, Work, step_time, time_of
from jaxformer.plan.slices import Slice, slices_of
from jaxformer.plan.trace import TracedStep, check, stages_of, trace_step

REMAT = ("none", "dots", "full")
"""What is tried besides the recipe's own."""
MOST_TRACES = 8
"""How many candidates are traced before the search gives up."""
WANTED = 2
"""How many are compared: the winner and the next."""
_STATE = ("parameters", "optimizer", "ema", "other models", "gradients")
"""What needs as much memory however a batch is cut, see `plan.memory`."""
_STATE_BYTES = 4
"""Of a float32 parameter; the least that a step has of it is this and its gradient."""


@dataclass(frozen=True)
class Candidate:
    """A way to train an experiment on a slice."""

    config: Config
    """The experiment with its mesh, rematerialisation and accumulation."""
    slice: Slice
    """The chips."""
    memory: MemoryEstimate
    """What a device needs."""
    step: StepTime
    """How long a step takes; the last one, where batches grow."""
    why: str = ""
    """Why it is better than the next one."""

    @property
    def fits(self) -> bool:
        """Whether the memory of a device is enough."""
        return self.memory.peak <= self.slice.chip.memory.value

    @property
    def name(self) -> str:
        """The mesh, rematerialisation and accumulation in a few words."""
        mesh = self.config.mesh
        sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
        words = [f"{axis} {size}" for axis, size in sizes.items() if size > 1] or ["one device"]
        parts = self.config.train.gradient_accumulation
        words.append(remat_in_words(self.config.model))
        return ", ".join(words + ([f"{parts} parts"] if parts > 1 else []))


def evaluate(config: Config, slice_: Slice) -> Candidate:
    """The memory and time of an experiment as it stands."""
    step, memory = neediest(config, slice_)
    last = stage_step(stages_of(config)[-1].config, step)
    return Candidate(replace(config, mesh=step.config.mesh), slice_, memory, step_time(last))


def neediest(config: Config, slice_: Slice) -> tuple[TracedStep, MemoryEstimate]:
    """The stage of a run that needs most memory.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        Its step, and what that needs.
    """
    shapes = {_shape(stage.config): stage.config for stage in stages_of(config)}
    # A stage with no more rows than another, and no longer ones, needs no more memory.
    largest = [
        stage
        for shape, stage in shapes.items()
        if not any(other != shape and all(map(le, shape, other)) for other in shapes)
    ]
    steps = [trace_step(stage, slice_) for stage in largest]
    return max(((step, estimate(step)) for step in steps), key=lambda found: found[1].peak)


def stage_step(stage: Config, known: TracedStep) -> TracedStep:
    """The step of a stage: one that is traced already, where that has the same shape."""
    return known if _shape(stage) == _shape(known.config) else trace_step(stage, known.slice)


def best(config: Config, slice_: Slice) -> list[Candidate]:
    """The fastest ways to train an experiment on a slice, of those that fit.

    The batch of a step stays what the recipe says; a batch that does not fit is cut into parts.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        The best first; empty where none fits.
    """
    return _ranked(_traced(config, slice_))


def _traced(config: Config, slice_: Slice) -> list[Candidate]:
    """The candidates that are traced, until enough of them fit."""
    order = partial(_rough_time, slice_=slice_)
    waiting = sorted(_candidates(config, slice_), key=order)
    traced: list[Candidate] = []
    while waiting and len(traced) < MOST_TRACES and sum(x.fits for x in traced) < WANTED:
        traced.append(evaluate(waiting.pop(0), slice_))
        smaller = None if traced[-1].fits else _in_more_parts(traced[-1])
        if smaller is not None:
            insort(waiting, smaller, key=order)
    return traced


def _ranked(traced: list[Candidate]) -> list[Candidate]:
    """Those that fit, the best first, with why it is."""
    found = sorted((x for x in traced if x.fits), key=lambda candidate: candidate.step.seconds)
    return [replace(found[0], why=_reason(*found[:2])), *found[1:]] if found else []


def winner(config: Config, slice_: Slice) -> Candidate:
    """The best way to train an experiment on a slice.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        The candidate.

    Raises:
        ConfigError: There is none; names what would have to change.
    """
    traced = _traced(config, slice_)
    if found := _ranked(traced):
        return found[0]
    if traced:
        nearest = min(traced, key=lambda candidate: candidate.memory.peak)
        raise ConfigError(
            f"chips = {slice_.name!r}: no mesh holds this recipe in the "
            f"{slice_.chip.memory.value / GIB:.2f} GiB of a device; the nearest of those that were "
            f"traced, {nearest.name}, needs {nearest.memory.peak / GIB:.2f}; take more chips, a "
            f"chip with more memory, or a smaller batch{_or_pad(config, slice_)}"
        )
    raise ConfigError(_why_none(config, slice_))


def _or_pad(config: Config, slice_: Slice) -> str:
    """Says how large the vocabulary has to be for all devices to share it, unless they can."""
    size, devices = getattr(config.model, "vocab_size", 0), slice_.num_devices
    if size % devices == 0:
        return ""
    padded = -(-size // devices) * devices
    return (
        f", or pad the vocabulary of {size}, which {devices} devices cannot share: "
        f"--model.vocab_size {padded}"
    )


def _why_none(config: Config, slice_: Slice) -> str:
    """What would have to change where there is no candidate."""
    devices, meshes = slice_.num_devices, list(_meshes(slice_))
    if any(_divides(replace(config, mesh=mesh), slice_) for mesh in meshes):
        return (
            f"chips = {slice_.name!r}: no mesh holds the state of this recipe in the "
            f"{slice_.chip.memory.value / GIB:.2f} GiB of a device; take more chips, or one with "
            f"more memory{_or_pad(config, slice_)}"
        )
    # Some mesh divides the model: a copy on each device cuts nothing.
    parts = config.train.gradient_accumulation
    least = parts * min(m.data * m.fsdp for m in meshes if _cuts(config.model, m))
    phase = next(phase for phase in config.data.phases if phase.batch_size % least)
    return (
        f"{phase.field}.batch_size = {phase.batch_size}: must be a multiple of {least} for any "
        f"mesh of the {devices} devices of {slice_.name}, where every device takes the same number "
        "of rows; give such a batch, or take fewer chips"
    )


def smallest(config: Config, chip: Chip) -> Candidate:
    """The best candidate on the smallest slice that holds an experiment.

    Args:
        config: The experiment.
        chip: The chip.

    Returns:
        The candidate, with its slice.

    Raises:
        ConfigError: No slice of this chip holds it.
    """
    least = 2 * _STATE_BYTES * _parameters(config.model)
    for slice_ in slices_of(chip):
        if least / slice_.num_devices > chip.memory.value:
            continue
        if slice_.num_devices > config.data.batch_size * _widest_tensor(config.model):
            break
        if found := best(config, slice_):
            return found[0]
    raise ConfigError(
        f"chips = {chip.name!r}: no slice holds this recipe with data.batch_size = "
        f"{config.data.batch_size}; take a chip with more memory, or a larger batch"
    )


def with_remat(model: ModelConfig, remat: Remat) -> ModelConfig:
    """A model, all parts of it, with another rematerialisation."""
    return model.each_part(lambda part: part.with_fields(remat=remat))


def _candidates(config: Config, slice_: Slice) -> Iterator[Config]:
    """Every mesh, rematerialisation and accumulation whose state and kept activations fit."""
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
                train = replace(config.train, gradient_accumulation=parts)
                yield replace(changed, train=train)


def _meshes(slice_: Slice) -> Iterator[MeshConfig]:
    """Every way to spread the devices of a slice over the axes."""
    devices = slice_.num_devices
    # A layer waits for its sums: over a network their latency, not modelled here, is too long.
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


def _cuts(model: ModelConfig, mesh: MeshConfig) -> bool:
    """Whether the mesh divides the model."""
    try:
        check_mesh(model, vars(mesh))
    except ConfigError:
        return False
    return True


def _fewest_parts(config: Config, slice_: Slice) -> int | None:
    """Into how many parts a batch is cut at least; None where even single rows do not fit."""
    mesh, model, stages = config.mesh, config.model, stages_of(config)
    own = 4 * _STATE_BYTES * _parameters(model) / (mesh.fsdp * mesh.tensor)
    free = slice_.chip.memory.value - own
    rows = [stage.config.data.batch_size // (mesh.data * mesh.fsdp) for stage in stages]
    tokens = [_longest_row(stage.config) * count for stage, count in zip(stages, rows, strict=True)]
    parts = config.train.gradient_accumulation
    while all(count % parts == 0 for count in rows):
        kept = (kept_bytes(stack, max(tokens) // parts, mesh.tensor) for stack in model.stacks)
        if sum(kept) < free:
            return parts
        if any(head.compares_rows for head in model.heads):
            return None  # in other parts it would learn something else
        parts *= 2
    return None


def _in_more_parts(candidate: Candidate) -> Config | None:
    """A candidate that does not fit, with its batch cut until it may, if that is any help."""
    # What is not the state shrinks in proportion.
    config, limit = candidate.config, candidate.slice.chip.memory.value
    state = sum(candidate.memory.parts.get(name, 0) for name in _STATE)
    if state >= limit or any(head.compares_rows for head in config.model.heads):
        return None
    factor = 2 ** ceil(log2((candidate.memory.peak - state) / (limit - state)))
    parts = factor * config.train.gradient_accumulation
    train = replace(config.train, gradient_accumulation=parts)
    smaller = replace(config, train=train)
    return smaller if _divides(smaller, candidate.slice) else None


def _longest_row(config: Config) -> int:
    return config.data.sequences_per_row * max(config.row_lengths.values())


def _rough_time(config: Config, slice_: Slice) -> float:
    """Seconds of a step, in closed form; of the last one, where batches grow."""
    model, mesh = config.model, vars(config.mesh)
    tokens = config.data.num_sequences * config.row_lengths["inputs"]
    flops, devices = model.flops(config.row_lengths), prod(mesh.values())
    again = sum(map(made_again, model.stacks))
    parameters, parts = _parameters(model), config.train.gradient_accumulation
    stack = max(model.stacks, key=lambda each: each.num_layers)
    sizes = {"parameters": parameters, "tokens": tokens, "parts": parts}
    passes = 4.5 + any(stack.remat != "none" for stack in model.stacks)
    work = Work(
        products=(3 * flops.products + again) * tokens / devices,
        attention=flops.causal_attention * passes * tokens / devices,
        state_bytes=32 * parameters / (mesh["fsdp"] * mesh["tensor"]),
        collectives=sent(stack, mesh, **sizes, again=again > 0),
        tokens=tokens,
        useful=flops.training(causal=True) * tokens,
    )
    return time_of(work, slice_, mesh).seconds


def _reason(winner: Candidate, other: Candidate | None = None) -> str:
    """Why the winner wins."""
    if other is None:
        return f"{winner.name}: the only one that fits of those that were traced"
    slower = other.step.seconds / winner.step.seconds - 1
    term = max(
        other.step.terms,
        key=lambda name: other.step.terms[name] - winner.step.terms.get(name, 0.0),
    )
    more = other.step.terms[term] - winner.step.terms.get(term, 0.0)
    return (
        f"the next, {other.name}, takes {slower:.1%} longer: {more:.3g} s more of {term}; "
        f"{other.step.binding} binds it"
    )


def _shape(config: Config) -> tuple[int, ...]:
    """The rows and the lengths of a batch."""
    return config.data.batch_size, *config.row_lengths.values()


@lru_cache(maxsize=8)
def _count(build) -> int:
    return sum(prod(x.shape) for x in AbstractModel(build).shapes.values())


def _parameters(model: ModelConfig) -> int:
    """Parameters of a model; how it is rematerialised changes none."""
    return _count(with_remat(model, "none").build)


def _widest_tensor(model: ModelConfig) -> int:
    """The most devices over which heads can be cut."""
    return min(stack.num_heads for stack in model.stacks)
