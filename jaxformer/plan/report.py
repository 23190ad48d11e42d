"""A plan: the memory and speed of a job on a slice."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.distributed.slices import Slice
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.plan import compiler, search
from jaxformer.plan.compiler import CompiledStep
from jaxformer.plan.memory import MemoryEstimate
from jaxformer.plan.program import Operation, each_operation
from jaxformer.plan.roofline import StepTime, step_time
from jaxformer.plan.search import Candidate
from jaxformer.plan.trace import (
    TracedStep,
    check,
    check_without_mesh,
    checkpoint_model,
    stages_of,
    teacher_of,
)
from jaxformer.training.logging.report import bytes_per_device, short_bytes

Progress = Callable[[str], None]


class StageTime(NamedTuple):
    """The time of a stage; a run without a batch-size ramp has one stage."""

    rows: int
    """Rows per batch."""
    lengths: Mapping[str, int]
    steps: int | None
    """The number of steps, or None if the experiment does not define it."""
    step: StepTime

    @property
    def days(self) -> float | None:
        """Days for all steps, or None if their number is unknown."""
        return None if self.steps is None else self.step.days(self.steps)

    @property
    def batch_text(self) -> str:
        """The shape of a batch: "1,024 rows of 4,096"."""
        return _batch_text(self.rows, self.lengths)


@dataclass(frozen=True)
class Plan:
    """The memory and speed of a job on a slice."""

    asked: Config
    """The original experiment."""
    impossible: str
    """Why the experiment's mesh, for which the best one is planned, is impossible; or ""."""
    config: Config
    """The planned experiment, with concrete mesh sizes."""
    slice: Slice
    memory: MemoryEstimate
    """The estimated memory per device, for the stage that needs most."""
    stages: tuple[StageTime, ...]
    notes: tuple[str, ...]
    """Notes about what the figures leave out and how special cases are counted."""
    compiled: CompiledStep | None
    """The result of the TPU compiler, or None if it did not run."""
    unconfirmed: str
    """Why the compiler did not run, or ""."""
    largest_batch: int
    """The largest batch size in rows that fits on this mesh, or 0."""
    best: Candidate | None
    """The fastest mesh that fits for this batch, if any."""
    price: float | None = None
    """Dollars per chip and hour, if known."""

    @property
    def peak_bytes(self) -> int:
        """Peak memory, from the compiler if it ran."""
        return self.memory.peak if self.compiled is None else self.compiled.peak_bytes

    @property
    def needed_bytes(self) -> int:
        """The memory that must be available; from the compiler it includes gaps between arrays."""
        return self.memory.peak if self.compiled is None else self.compiled.assigned_bytes

    @property
    def verdict(self) -> str:
        """Whether it fits: "fits", "does not fit", or "may not fit" if no compiler ran."""
        if self.compiled is None:
            return self.memory.verdict(self.slice.chip.memory.value)
        return "fits" if self.fits else "does not fit"

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        estimated = self.memory.peak <= self.slice.chip.memory.value
        return estimated if self.compiled is None else self.compiled.fits

    @property
    def step(self) -> StepTime:
        """The time of a step, in the last stage."""
        return self.stages[-1].step

    @property
    def days(self) -> float | None:
        """Days for all steps, or None if their number is unknown."""
        days = [stage.days for stage in self.stages]
        return None if None in days else sum(days)

    @property
    def dollars(self) -> float | None:
        """The price of all steps, if known."""
        known = self.days is not None and self.price is not None
        return self.days * 24 * self.slice.chips * self.price if known else None

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """The price of a million tokens in the last stage, if known."""
        if self.price is None:
            return None
        return self.slice.chips * self.price / 3600 * 1e6 / self.step.tokens_per_second

    @property
    def best_options(self) -> str:
        """The options of `jaxformer train` for the best mesh, or ""."""
        if self.best is None:
            return ""
        config = self.best.config
        parts = self.best.config.train.gradient_accumulation
        options = [
            f"--mesh.{axis} {size}"
            for axis, size in vars(config.mesh).items()
            if axis not in ("sequence", "expert") or size > 1
        ]
        options += _remat_options(self.asked.model, config.model, "--model")
        if parts != self.asked.train.gradient_accumulation:
            options.append(f"--train.gradient-accumulation {parts}")
        return " ".join(options)

    def as_json(self) -> dict[str, Any]:
        """Returns the plan as JSON-serializable data; bytes are per device, times in seconds."""
        compiled = self.compiled and dataclasses.asdict(self.compiled)
        if compiled:
            compiled["assigned_bytes"] = self.compiled.assigned_bytes
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
            "compiled": compiled,
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
            "best": self.best and {"options": self.best_options, "why": self.best.why},
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
    """Plans a job."""
    impossible = "" if found else _why_impossible(config, slice_)
    if impossible:
        progress("the mesh of the experiment is impossible; searching for the fastest one")
        found = search.winner(config, slice_)
    planned = found.config if found else config
    progress(f"tracing a step for {slice_.num_devices} devices")
    traced, memory = search.largest_stage(planned, slice_)
    stages = []
    for stage, steps in stages_of(planned):
        time = step_time(search.stage_step(stage, traced))
        stages.append(StageTime(stage.data.batch_size, stage.row_lengths, steps, time))
    progress("searching for the largest batch")
    largest = search.largest_batch(planned, slice_)
    if found is None:
        progress("searching for the fastest mesh")
        found = next(iter(search.best(config, slice_)), None)
    compiled, unconfirmed = _compiled(traced, compiling, progress)
    return Plan(
        asked=config,
        impossible=impossible,
        config=dataclasses.replace(planned, mesh=traced.config.mesh),
        slice=slice_,
        memory=memory,
        stages=tuple(stages),
        notes=(*_ramp_note(stages, traced), *notes_of(traced)),
        compiled=compiled,
        unconfirmed=unconfirmed,
        largest_batch=largest,
        best=found,
    )


def _why_impossible(config: Config, slice_: Slice) -> str:
    """Returns why the experiment's mesh is impossible on the chips, or ""."""
    check_without_mesh(config)
    try:
        check(config, slice_)
    except ConfigError as error:
        return str(error)
    return ""


def _remat_options(old: ModelConfig, new: ModelConfig, option: str) -> list[str]:
    """Returns the options that change the rematerialization policy of each part of a model."""
    if old.parts:
        pairs = [(part, new.parts[name], f"{option}.{name}") for name, part in old.parts.items()]
        return [option for pair in pairs for option in _remat_options(*pair)]
    return [f"{option}.remat {new.remat}"] if new.remat != old.remat else []


def _compiled(
    traced: TracedStep, compiling: bool, progress: Progress
) -> tuple[CompiledStep | None, str]:
    """Returns the result of the compiler, or why it did not run."""
    if traced.slice.chip.kind == "gpu":
        return None, "the compiler for GPUs needs a GPU"
    if not compiling:
        return None, "--no-compile"
    if not compiler.is_installed():
        return None, compiler.INSTALL
    progress(f"compiling for {traced.slice.name}, which takes a minute or two")
    return compiler.compile_step(traced.config, traced.slice), ""


def _batch_text(rows: int, lengths: Mapping[str, int]) -> str:
    return f"{rows:,} rows of {' + '.join(f'{size:,}' for size in lengths.values())}"


def _ramp_note(stages: list[StageTime], largest_stage: TracedStep) -> Iterator[str]:
    """Describes how the figures of a batch-size ramp are counted."""
    if len(stages) == 1:
        return
    most = _batch_text(largest_stage.config.data.batch_size, largest_stage.config.row_lengths)
    days = [stage.days for stage in stages]
    total = "" if None in days else f" ({' + '.join(f'{each:,.1f}' for each in days)})"
    yield (
        f"a ramp of {len(stages)} stages: memory is that of {most}, which needs most; the step is "
        f"that of the last stage; days are the sum of all{total}"
    )


def notes_of(step: TracedStep) -> Iterator[str]:
    """Returns notes about what the figures leave out and how special cases are counted."""
    config = step.config
    _, unknown = teacher_of(config.train)
    if unknown:
        yield f"the memory and time of the teacher are not counted: {unknown}"
    if config.train.preference is not None:
        yield _reference_note(step)
    if config.train.steps is None:
        yield (
            f"days are not known: train.epochs = {config.train.epochs:g} counts rows of the data, "
            "which are not read; give --train.steps"
        )
    if {"inputs", "images"} <= {*config.model.required}:
        yield "tokens count text only; images count in time and memory only"
    if offloaded := _offloaded_bytes(step):
        yield (
            f"{short_bytes(offloaded)} of activations of each device are offloaded to its host; "
            "the time of the copies is not counted"
        )


def _reference_note(step: TracedStep) -> str:
    """Describes the cost of a preference reference, which runs only before the first step."""
    text = "the reference's log-probabilities are computed before the first step, whose time"
    name = step.config.train.preference.reference
    if name is None:
        return f"{text} is not counted; the reference is the model itself and needs no more memory"
    model, unknown = checkpoint_model(name, "train.preference.reference")
    if model is None:
        return f"{text} and memory are not counted: {unknown}"
    structure = AbstractModel(model.build)
    cut = parameter_shardings(step.train_program.mesh, structure.axes, structure.shapes)
    size = bytes_per_device([x.update(sharding=cut[n]) for n, x in structure.shapes.items()])
    return (
        f"{text} is not counted; until then its parameters take {short_bytes(size)} of each "
        "device in addition to the state"
    )


def _offloaded_bytes(step: TracedStep) -> int:
    """Returns the bytes that a device offloads to its host for one micro-batch."""
    total = 0

    def visit(op: Operation, times: int) -> None:
        nonlocal total
        if op.name == "device_put":
            total += times * sum(value.bytes for value in op.results if value.on_host)

    each_operation(step.program, visit)
    return total // step.config.train.gradient_accumulation
