"""A plan: what a job needs and how fast it goes on a slice, by closed form and by the compiler."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig
from jaxformer.plan import batch, compiler, search
from jaxformer.plan.compiler import CompiledStep
from jaxformer.plan.memory import MemoryEstimate
from jaxformer.plan.notes import notes_of
from jaxformer.plan.roofline import StepTime, step_time
from jaxformer.plan.search import Candidate
from jaxformer.plan.slices import Slice
from jaxformer.plan.trace import TracedStep, check, check_without_mesh, stages_of

Progress = Callable[[str], None]


class StageTime(NamedTuple):
    """How long the steps of a stage take; a run without a ramp is one stage."""

    rows: int
    """Of a step."""
    lengths: Mapping[str, int]
    """Tokens of a row."""
    steps: int | None
    """How many it has; None: the experiment does not say."""
    step: StepTime
    """The time of each."""

    @property
    def days(self) -> float | None:
        """Days of all of them; None where their number is not known."""
        return None if self.steps is None else self.step.days(self.steps)

    @property
    def words(self) -> str:
        """The shape of a batch: "1,024 rows of 4,096"."""
        return f"{self.rows:,} rows of {' + '.join(f'{size:,}' for size in self.lengths.values())}"


@dataclass(frozen=True)
class Plan:
    """What is known of a job on a slice before it runs."""

    asked: Config
    """The experiment as it was given."""
    impossible: str
    """Why its own mesh cannot be on these chips, so that the best one is planned; "": it can."""
    config: Config
    """The experiment as it is planned, with the sizes of its mesh."""
    slice: Slice
    """The chips."""
    memory: MemoryEstimate
    """Memory of each device, in closed form; of the stage that needs most."""
    stages: tuple[StageTime, ...]
    """The time of the steps of each stage."""
    notes: tuple[str, ...]
    """What was counted in a way of its own, and what was not."""
    compiled: CompiledStep | None
    """What the TPU compiler says; None: it was not asked."""
    unconfirmed: str
    """Why the compiler was not asked; "" where it was."""
    largest_batch: int
    """The most rows of a batch that fit on this mesh; 0: none does."""
    best: Candidate | None
    """The fastest mesh for this batch that fits; None: none does."""
    price: float | None = None
    """Dollars for a chip and hour; None: not known."""

    @property
    def peak_bytes(self) -> int:
        """The most memory in use: by the compiler, where it was asked."""
        return self.memory.peak if self.compiled is None else self.compiled.peak_bytes

    @property
    def needed_bytes(self) -> int:
        """The memory that decides: by the compiler with the gaps between arrays, else the peak."""
        return self.memory.peak if self.compiled is None else self.compiled.assigned_bytes

    @property
    def verdict(self) -> str:
        """Whether it fits: "fits", "may not fit" where no compiler was asked, "does not fit"."""
        if self.compiled is None:
            return self.memory.verdict(self.slice.chip.memory.value)
        return "fits" if self.fits else "does not fit"

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        closed = self.memory.peak <= self.slice.chip.memory.value
        return closed if self.compiled is None else self.compiled.fits

    @property
    def step(self) -> StepTime:
        """The time of a step; of the last one, where batches grow."""
        return self.stages[-1].step

    @property
    def days(self) -> float | None:
        """Days of all steps of the experiment; None where it has no number of steps."""
        days = [stage.days for stage in self.stages]
        return None if None in days else sum(days)

    @property
    def dollars(self) -> float | None:
        """The price of all steps; None where it or their number is not known."""
        known = self.days is not None and self.price is not None
        return self.days * 24 * self.slice.chips * self.price if known else None

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """The price of a million tokens at the speed of the last stage; None: not known."""
        if self.price is None:
            return None
        return self.slice.chips * self.price / 3600 * 1e6 / self.step.tokens_per_second

    @property
    def best_options(self) -> str:
        """The options of `jaxformer train` that choose the best mesh; "" where there is none."""
        if self.best is None:
            return ""
        config, train = self.best.config, self.best.config.train
        options = [f"--mesh.{axis} {size}" for axis, size in vars(config.mesh).items()]
        options += _remat_options(self.asked.model, config.model, "--model")
        if train.gradient_accumulation != self.asked.train.gradient_accumulation:
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
            "own_mesh_impossible": self.impossible,
            "rows": self.config.data.batch_size,
            "lengths": dict(self.config.row_lengths),
            "fits": self.fits,
            "usable_bytes": self.slice.chip.memory.value,
            "needed_bytes": self.needed_bytes,
            "peak_bytes": self.peak_bytes,
            "predicted_bytes": self.memory.peak,
            "parts": dict(self.memory.parts),
            "assumptions": list(self.memory.assumptions),
            "compiled": self.compiled
            and dataclasses.asdict(self.compiled)
            | {"assigned_bytes": self.compiled.assigned_bytes},
            "unconfirmed": self.unconfirmed,
            "largest_batch": self.largest_batch,
            "step_seconds": self.step.seconds,
            "terms": dict(self.step.terms),
            "binding": self.step.binding,
            "mfu_causal": self.step.mfu,
            "tokens_per_second": self.step.tokens_per_second,
            "days": self.days,
            "price_per_chip_hour": self.price,
            "dollars": self.dollars,
            "dollars_per_million_tokens": self.dollars_per_million_tokens,
            "stages": [
                {
                    "rows": stage.rows,
                    "lengths": dict(stage.lengths),
                    "steps": stage.steps,
                    "step_seconds": stage.step.seconds,
                    "tokens_per_second": stage.step.tokens_per_second,
                    "days": stage.days,
                }
                for stage in self.stages
            ],
            "notes": list(self.notes),
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
        config: The experiment. Where its own mesh is impossible on the chips, the best one is
            planned.
        slice_: The chips.
        found: The candidate to plan in place of the experiment's own mesh; None: its own.
        compiling: Whether to ask the TPU compiler, which takes a minute or two.
        progress: Is told what happens next.

    Returns:
        The plan.

    Raises:
        ConfigError: The experiment does not fit together, or no mesh of the chips holds it.
    """
    impossible = "" if found else _impossible(config, slice_)
    if impossible:
        progress("its own mesh is impossible; searching for the fastest one")
        found = search.winner(config, slice_)
    planned = found.config if found else config
    progress(f"tracing a step for {slice_.num_devices} devices")
    traced, memory = search.neediest(planned, slice_)
    stages = tuple(
        StageTime(
            stage.data.batch_size,
            stage.row_lengths,
            steps,
            step_time(search.stage_step(stage, traced)),
        )
        for stage, steps in stages_of(planned)
    )
    progress("searching for the largest batch")
    largest = batch.largest_batch(planned, slice_)
    if found is None:
        progress("searching for the fastest mesh")
        found = next(iter(search.best(config, slice_)), None)
    compiled, unconfirmed = _confirmed(traced, compiling, progress)
    return Plan(
        asked=config,
        impossible=impossible,
        config=dataclasses.replace(planned, mesh=traced.config.mesh),
        slice=slice_,
        memory=memory,
        stages=stages,
        notes=tuple(_ramp_note(stages, traced)) + tuple(notes_of(traced)),
        compiled=compiled,
        unconfirmed=unconfirmed,
        largest_batch=largest,
        best=found,
    )


def _impossible(config: Config, slice_: Slice) -> str:
    """Why the experiment's own mesh cannot be on the chips; "": it can."""
    check_without_mesh(config)
    try:
        check(config, slice_)
    except ConfigError as error:
        return str(error)
    return ""


def _ramp_note(stages: tuple[StageTime, ...], neediest: TracedStep) -> Iterator[str]:
    """How the figures of a ramp are counted."""
    if len(stages) == 1:
        return
    rows, lengths = neediest.config.data.batch_size, neediest.config.row_lengths
    most = StageTime(rows, lengths, None, stages[-1].step).words
    days = [stage.days for stage in stages]
    total = "" if None in days else f" ({' + '.join(f'{each:,.1f}' for each in days)})"
    yield (
        f"a ramp of {len(stages)} stages: memory is that of {most}, which needs most; the step is "
        f"that of the last; days are the sum of all{total}"
    )


def _remat_options(old: ModelConfig, new: ModelConfig, option: str) -> list[str]:
    """The options that change how each part of a model is rematerialised."""
    if old.parts:
        pairs = [(part, new.parts[name], f"{option}.{name}") for name, part in old.parts.items()]
        return [option for pair in pairs for option in _remat_options(*pair)]
    return [f"{option}.remat {new.remat}"] if new.remat != old.remat else []


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
    progress(f"compiling for {traced.slice.name}, which takes a minute or two")
    return compiler.compile_step(traced.config, traced.slice), ""
