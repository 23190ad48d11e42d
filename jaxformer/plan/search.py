"""Which mesh, rematerialisation and accumulation train an experiment fastest on a slice.

Every mesh that divides the model is ranked by a closed form. The best are traced, in this order,
until enough of them fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

from jaxformer.config import Config, validate
from jaxformer.distributed.chips import Chip
from jaxformer.distributed.sharding import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.plan.closed_form import kept_bytes, layer_products, sent
from jaxformer.plan.memory import MemoryEstimate, estimate
from jaxformer.plan.roofline import StepTime, Work, step_time, time_of
from jaxformer.plan.slices import Slice, slices_of
from jaxformer.plan.trace import trace_step

REMAT = ("none", "dots", "full")
MOST_TRACES = 8
"""How many candidates are traced before the search gives up."""
WANTED = 2
"""How many are compared: the winner and the next."""
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
    """How long a step takes."""
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
        words.append(f"remat {_remat_of(self.config.model)}")
        return ", ".join(words + ([f"{parts} parts"] if parts > 1 else []))


def evaluate(config: Config, slice_: Slice) -> Candidate:
    """The memory and time of an experiment as it stands."""
    step = trace_step(config, slice_)
    return Candidate(step.config, slice_, estimate(step), step_time(step))


def best(config: Config, slice_: Slice) -> list[Candidate]:
    """The fastest ways to train an experiment on a slice, of those that fit.

    The batch of a step stays what the recipe says; a batch that does not fit is cut into parts.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        The best first; empty where none fits.
    """
    ranked = sorted(_candidates(config, slice_), key=partial(_rough_time, slice_=slice_))
    found: list[Candidate] = []
    for each in ranked[:MOST_TRACES]:
        candidate = evaluate(each, slice_)
        found += [candidate] if candidate.fits else []
        if len(found) == WANTED:
            break
    found.sort(key=lambda candidate: candidate.step.seconds)
    if found:
        found[0] = replace(found[0], why=_reason(*found))
    return found


def largest_batch(config: Config, slice_: Slice) -> int:
    """The most rows of a batch that fit, with the mesh and rematerialisation as they are.

    Memory grows with the rows of a part, about in proportion: two traces tell how fast, and the
    others confirm.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        Rows, a multiple of what the mesh cuts them into; 0 where not even one for each device fits.
    """
    sizes = config.mesh.sizes(slice_.num_devices)
    unit = sizes[0] * sizes[1] * config.train.gradient_accumulation
    limit = slice_.chip.memory.value

    def needed(units: int) -> int:
        rows = replace(config, data=replace(config.data, batch_size=units * unit))
        return estimate(trace_step(rows, slice_)).peak

    one, two = needed(1), needed(2)
    if one > limit:
        return 0
    units = max(1, int(1 + (limit - one) / max(two - one, 1)))
    while units > 1 and (found := needed(units)) > limit:
        fitting = 1 + (units - 1) * (limit - one) / (found - one)
        units = max(1, min(int(fitting), units - 1))
    return units * unit


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


def with_remat(model: ModelConfig, remat: str) -> ModelConfig:
    """A model, all parts of it, with another rematerialisation."""
    return model.each_part(lambda part: part.with_fields(remat=remat))


def _candidates(config: Config, slice_: Slice) -> Iterator[Config]:
    """Every mesh, rematerialisation and accumulation whose state and kept activations fit."""
    for mesh in _meshes(slice_.num_devices):
        # A layer waits for its sums: over a network their latency, not modelled here, is too long.
        if mesh.tensor > (slice_.chip.link_domain or mesh.tensor):
            continue
        placed = replace(config, mesh=mesh)
        if not _divides(placed, slice_):
            continue
        for remat in REMAT:
            changed = replace(placed, model=with_remat(config.model, remat))
            parts = _fewest_parts(changed, slice_)
            if parts is not None:
                train = replace(config.train, gradient_accumulation=parts)
                yield replace(changed, train=train)


def _meshes(devices: int) -> Iterator[MeshConfig]:
    """Every way to spread so many devices over the axes."""
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    for tensor in divisors:
        for fsdp in divisors:
            if devices % (tensor * fsdp) == 0:
                yield MeshConfig(devices // (tensor * fsdp), fsdp, tensor)


def _divides(config: Config, slice_: Slice) -> bool:
    try:
        validate(config, slice_.num_devices)
    except ConfigError:
        return False
    return True


def _fewest_parts(config: Config, slice_: Slice) -> int | None:
    """Into how many parts a batch is cut at least; None where even single rows do not fit."""
    mesh, model = config.mesh, config.model
    own = 4 * _STATE_BYTES * _parameters(model) / (mesh.fsdp * mesh.tensor)
    free = slice_.chip.memory.value - own
    rows = config.data.batch_size // (mesh.data * mesh.fsdp)
    parts = config.train.gradient_accumulation
    while rows % parts == 0 and rows // parts >= 1:
        tokens = rows // parts * max(config.row_lengths.values())
        if sum(kept_bytes(stack, tokens, mesh.tensor) for stack in model.stacks) < free:
            return parts
        parts *= 2
    return None


def _rough_time(config: Config, slice_: Slice) -> float:
    """Seconds of a step, in closed form."""
    model, mesh = config.model, vars(config.mesh)
    tokens = config.data.batch_size * config.row_lengths["inputs"]
    flops, devices = model.flops(config.row_lengths), prod(mesh.values())
    remat = _remat_of(model)
    again = sum(
        2 * stack.num_layers * (sum((p := layer_products(stack)).values()) - p["down"])
        for stack in model.stacks
    )
    parameters, parts = _parameters(model), config.train.gradient_accumulation
    stack = max(model.stacks, key=lambda each: each.num_layers)
    sizes = {"parameters": parameters, "tokens": tokens, "parts": parts}
    work = Work(
        products=(3 * flops.products + (again if remat == "full" else 0)) * tokens / devices,
        attention=flops.causal_attention * (4.5 + (remat != "none")) * tokens / devices,
        state_bytes=32 * parameters / (mesh["fsdp"] * mesh["tensor"]),
        collectives=sent(stack, mesh, **sizes, again=remat == "full"),
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


@lru_cache(maxsize=8)
def _count(build) -> int:
    return sum(prod(x.shape) for x in AbstractModel(build).shapes.values())


def _parameters(model: ModelConfig) -> int:
    """Parameters of a model; how it is rematerialised changes none."""
    return _count(with_remat(model, "none").build)


def _remat_of(model: ModelConfig) -> str:
    return str(model.stacks[0].remat)


def _widest_tensor(model: ModelConfig) -> int:
    """The most devices over which heads can be cut."""
    return min(stack.num_heads for stack in model.stacks)
