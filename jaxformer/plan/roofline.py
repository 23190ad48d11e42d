r"""How long a step takes: what the matrix units, the memory and each link of the mesh need for it.

.. math:: t = \max(t_c, t_l) + (1 - o) \min(t_c, t_l) + t_m,
          \qquad t_c = \frac{P}{e_p F} + \frac{A}{e_a F}, \quad t_l = \sum_a t_a + t_n

P and A are the FLOPs of products and of attention, recomputation included, F is the chip's peak,
t_a what the links along a mesh axis need, t_n the network between slices or machines, t_m the
optimizer's passes over the state. The three constants are fitted, see `plan.published`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxformer.distributed.chips import CHIPS, Chip
from jaxformer.plan.collectives import Collective
from jaxformer.plan.links import Link, links
from jaxformer.plan.program import Operation, each_operation
from jaxformer.plan.shardings import scattered
from jaxformer.plan.slices import Slice
from jaxformer.plan.trace import TracedStep
from jaxformer.plan.traffic import collectives
from jaxformer.training.logging.report import bytes_per_device

NETWORK = "network"
_ATTENTION = ("functional/attention/", "splash_attention")
_SECONDS_OF_A_DAY = 86_400


@dataclass(frozen=True)
class Shares:
    """Which part of the datasheet's peaks a step reaches."""

    products: float
    """Of the peak FLOP/s, in products with parameters and all that is fused with them."""
    attention: float
    """Of the peak FLOP/s, in attention."""
    overlap: float
    """Of the shorter of computation and communication, what runs beside the longer."""
    memory: float = 0.8
    """Of the memory bandwidth, in elementwise passes: an assumption, which binds nothing here."""
    links: float = 0.8
    """Of the links' bandwidth, in collectives: an assumption."""


@dataclass(frozen=True)
class Work:
    """What a step does."""

    products: float
    """FLOPs of one device in products with parameters, recomputation included."""
    attention: float
    """FLOPs of one device in attention, over the pairs that the mask allows, both passes."""
    state_bytes: float
    """Bytes that the optimizer reads and writes on one device."""
    collectives: tuple[Collective, ...]
    """What is sent."""
    tokens: int
    """Tokens of the batch, all devices together."""
    useful: float
    """FLOPs of the model for the whole batch, without recomputation and with causal saving."""


@dataclass(frozen=True)
class StepTime:
    """The time of a step."""

    terms: dict[str, float]
    """Seconds of each resource, by itself: compute, memory, the links of each mesh axis, the
    network."""
    seconds: float
    """Of the whole step."""
    mfu: float
    """The model's FLOPs over what the chips could do in that time."""
    tokens_per_second: float
    """All chips together."""

    @property
    def binding(self) -> str:
        """The resource that needs the most time."""
        return max(self.terms, key=self.terms.__getitem__)

    def days(self, steps: int) -> float:
        """The days of so many steps."""
        return self.seconds * steps / _SECONDS_OF_A_DAY


def step_time(step: TracedStep) -> StepTime:
    """The time of a traced step on its slice."""
    return time_of(work_of(step), step.slice, step.mesh_sizes)


def time_of(
    work: Work, slice_: Slice, mesh: Mapping[str, int], shares: Shares | None = None
) -> StepTime:
    """The time of a step.

    Args:
        work: What it does.
        slice_: The chips.
        mesh: The devices along each axis of the mesh.
        shares: What it reaches of the peaks; None: those fitted for the kind of chip.

    Returns:
        The time.
    """
    chip, shares = slice_.chip, shares or shares_of(slice_.chip)
    peak = chip.peak_flops.value
    terms = {"compute": work.products / (shares.products * peak)}
    terms["compute"] += work.attention / (shares.attention * peak)
    terms["memory"] = work.state_bytes / (shares.memory * chip.memory_bandwidth.value)
    terms |= _communication(work.collectives, links(slice_, mesh), shares.links)
    sent = sum(seconds for name, seconds in terms.items() if name not in ("compute", "memory"))
    longer, shorter = max(terms["compute"], sent), min(terms["compute"], sent)
    seconds = longer + (1 - shares.overlap) * shorter + terms["memory"]
    everything = slice_.num_devices * peak * seconds
    return StepTime(terms, seconds, work.useful / everything, work.tokens / seconds)


def _communication(
    sent: Sequence[Collective], joined: Mapping[str, Link], share: float
) -> dict[str, float]:
    """Seconds of the links of each axis, and of the network."""
    terms: dict[str, float] = {}
    for collective in sent:
        used = [joined[axis] for axis in collective.axes]
        inner, outer = (prod(getattr(link, name) for link in used) for name in ("inner", "outer"))
        passes = 2 if collective.kind == "all-reduce" else 1
        if inner > 1:
            name = " + ".join(f"{axis} links" for axis in collective.axes)
            bandwidth = sum(link.bandwidth for link in used if link.inner > 1)
            seconds = passes * collective.bytes * (inner - 1) / inner / (share * bandwidth)
            terms[name] = terms.get(name, 0.0) + seconds
        if outer > 1:
            # Each device of a slice sends its own part to its twins in the others.
            part, network = collective.bytes / inner, max(link.network for link in used)
            seconds = passes * part * (outer - 1) / outer / (share * network)
            terms[NETWORK] = terms.get(NETWORK, 0.0) + seconds
    return terms


def work_of(step: TracedStep) -> Work:
    """What a traced step does: products are counted in the trace, with those made again."""
    config, devices = step.config, prod(step.mesh_sizes.values())
    flops = config.model.flops(config.row_lengths)
    passes = _attention_passes(step)
    attention = flops.causal_attention * passes
    if step.teacher is not None:
        lengths = step.teacher.row_lengths(config.data.lengths)
        attention += step.teacher.flops(lengths).causal_attention
    state = step.train_program.state_shapes
    written = bytes_per_device((state.params, state.opt_state, state.ema))
    return Work(
        products=_products(step),
        attention=attention * step.tokens / devices,
        # Read and written; and the gradient, read for its norm and for the update.
        state_bytes=2 * written + 2 * bytes_per_device(state.params),
        collectives=tuple(collectives(step)),
        tokens=step.tokens,
        useful=flops.training(causal=True) * step.tokens,
    )


def _products(step: TracedStep) -> float:
    """FLOPs of one device in products outside of attention."""
    total = 0.0

    def visit(op: Operation, times: int) -> None:
        nonlocal total
        if op.name == "dot_general" and not op.results[0].source.startswith(_ATTENTION):
            (contracted, _), _ = op.equation.params["dimension_numbers"]
            factor = prod(op.operands[0].shape[axis] for axis in contracted)
            # A gradient that is scattered is computed whole by each device for its own rows.
            total += 2.0 * times * factor * prod(op.results[0].shape) * scattered(op)

    each_operation(step.program, visit)
    return total


def _attention_passes(step: TracedStep) -> float:
    """Forward passes' worth of attention in a step: the backward pass is 2.5 of them, or 3.5."""
    forward, backward = 1.0, 2.5
    kernels = 0

    def visit(op: Operation, times: int) -> None:
        nonlocal kernels
        kernels += times if op.name == "pallas_call" else 0

    each_operation(step.program, visit)
    model, parts = step.config.model, step.config.train.gradient_accumulation
    layers = sum(stack.num_layers for stack in model.stacks) * parts
    if step.teacher is not None:  # its kernels run once, in the forward pass alone
        kernels -= sum(stack.num_layers for stack in step.teacher.stacks) * parts
    if kernels > 0:
        # The TPU kernel's backward pass computes the scores for queries and for keys: 7 products
        # beside the forward pass's 2. Runs beyond three in a layer are forward passes made again.
        return forward + max(kernels / layers - 3, 0) + 3.5
    made_again = any(stack.remat != "none" for stack in model.stacks)
    return forward + (1.0 if made_again else 0.0) + backward


_OF_PRODUCTS = {"v6e": 0.62, "tpu7x": 0.78, "h200": 0.69}
"""Of the chips that published rows are about; other TPUs and GPUs have the mean of their kind."""
_ATTENTION_SHARE = 0.25
_OVERLAP = 0.5


def shares_of(chip: Chip) -> Shares:
    """What a step reaches of a chip's peaks: fitted by `benchmarks/plan_trust.py`."""
    known = {name: share for name, share in _OF_PRODUCTS.items() if CHIPS[name].kind == chip.kind}
    mean = sum(known.values()) / len(known)
    return Shares(known.get(chip.name, mean), _ATTENTION_SHARE, _OVERLAP)
