"""A plan: what a job needs and how fast it goes on a slice, by closed form and by the compiler."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxformer.config import Config
from jaxformer.distributed.sharding import check_slices
from jaxformer.plan import compiler, search
from jaxformer.plan.compiler import CompiledStep
from jaxformer.plan.memory import MemoryEstimate, estimate
from jaxformer.plan.roofline import StepTime, step_time
from jaxformer.plan.search import Candidate
from jaxformer.plan.slices import Slice
from jaxformer.plan.trace import TracedStep, trace_step

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is known of a job on a slice before it runs."""

    config: Config
    """The experiment, with the sizes of its mesh."""
    slice: Slice
    """The chips."""
    memory: MemoryEstimate
    """Memory of each device, in closed form."""
    step: StepTime
    """The time of a step."""
    compiled: CompiledStep | None
    """What the TPU compiler says; None: it was not asked."""
    unconfirmed: str
    """Why the compiler was not asked; "" where it was."""
    largest_batch: int
    """The most rows of a batch that fit on this mesh; 0: none does."""
    best: Candidate | None
    """The fastest mesh for this batch that fits; None: none does."""

    @property
    def peak_bytes(self) -> int:
        """The most memory in use: by the compiler, where it was asked."""
        return self.memory.peak if self.compiled is None else self.compiled.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        closed = self.memory.peak <= self.slice.chip.memory.value
        return closed if self.compiled is None else self.compiled.fits

    @property
    def days(self) -> float | None:
        """Days of all steps of the experiment; None where it has no number of steps."""
        steps = self.config.train.steps
        return None if steps is None else self.step.days(steps)

    @property
    def best_options(self) -> str:
        """The options of `jaxformer train` that choose the best mesh; "" where there is none."""
        if self.best is None:
            return ""
        config, train = self.best.config, self.best.config.train
        options = [f"--mesh.{axis} {size}" for axis, size in vars(config.mesh).items()]
        remat = getattr(config.model, "remat", None)
        if remat != getattr(self.config.model, "remat", None):
            options.append(f"--model.remat {remat}")
        if train.gradient_accumulation != self.config.train.gradient_accumulation:
            options.append(f"--train.gradient-accumulation {train.gradient_accumulation}")
        return " ".join(options)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data. Bytes are of one device, times in seconds."""
        best = self.best
        return {
            "chips": self.slice.name,
            "devices": self.slice.num_devices,
            "hosts": self.slice.hosts,
            "mesh": dict(vars(self.config.mesh)),
            "rows": self.config.data.batch_size,
            "lengths": dict(self.config.row_lengths),
            "fits": self.fits,
            "usable_bytes": self.slice.chip.memory.value,
            "peak_bytes": self.peak_bytes,
            "predicted_bytes": self.memory.peak,
            "parts": dict(self.memory.parts),
            "assumptions": list(self.memory.assumptions),
            "compiled": self.compiled and dataclasses.asdict(self.compiled),
            "unconfirmed": self.unconfirmed,
            "largest_batch": self.largest_batch,
            "step_seconds": self.step.seconds,
            "terms": dict(self.step.terms),
            "binding": self.step.binding,
            "mfu_causal": self.step.mfu,
            "tokens_per_second": self.step.tokens_per_second,
            "days": self.days,
            "best": best and {"options": self.best_options, "why": best.why},
            "chip": {name: figure._asdict() for name, figure in self.slice.chip.figures.items()},
        }


def plan(
    config: Config,
    slice_: Slice,
    found: Candidate | None = None,
    *,
    compiling: bool,
    progress: Progress,
) -> Plan:
    """Plans a job.

    Args:
        config: The experiment.
        slice_: The chips.
        found: The best that was found already; None: it is searched for.
        compiling: Whether to ask the TPU compiler, which takes minutes.
        progress: Is told what happens next.

    Returns:
        The plan.

    Raises:
        ConfigError: The experiment does not fit together, or not on so many devices.
    """
    check_slices(config.mesh.sizes(slice_.num_devices)[0], slice_.num_slices)
    progress(f"tracing a step for {slice_.num_devices} devices")
    traced = trace_step(config, slice_)
    memory, step = estimate(traced), step_time(traced)
    progress("searching for the largest batch")
    largest = search.largest_batch(config, slice_)
    if found is None:
        progress("searching for the fastest mesh")
        found = next(iter(search.best(config, slice_)), None)
    compiled, unconfirmed = _confirmed(traced, compiling, progress)
    return Plan(
        config=traced.config,
        slice=slice_,
        memory=memory,
        step=step,
        compiled=compiled,
        unconfirmed=unconfirmed,
        largest_batch=largest,
        best=found,
    )


def _confirmed(
    traced: TracedStep, compiling: bool, progress: Progress
) -> tuple[CompiledStep | None, str]:
    """What the compiler says, or why it is not asked."""
    if traced.slice.chip.kind == "gpu":
        return None, "no compiler for GPUs runs on a machine without one"
    if not compiling:
        return None, "--no-compile"
    if not compiler.is_installed():
        return None, compiler.INSTALL
    progress(f"compiling for {traced.slice.name}, which takes minutes")
    return compiler.compile_step(traced.config, traced.slice), ""
