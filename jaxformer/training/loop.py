"""The training loop: set up, restore or initialize, step, evaluate, save and conclude."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.restore import restore_newest, saved_config, saved_log
from jaxformer.checkpoints.run_dir import (
    CHECKPOINTS,
    RunConfig,
    kept_digests,
    locked,
    moved_aside,
    open_run_folder,
    prepared_data,
)
from jaxformer.checks import check_argument
from jaxformer.config.experiment import (
    Config,
    check_heads,
    check_labels,
    load_config,
    writes_samples,
)
from jaxformer.config.shipped import config_spec
from jaxformer.config.train import cost
from jaxformer.data import Dataset, Datasets
from jaxformer.data.ramp import Phase
from jaxformer.data.shown_rows import RowReader
from jaxformer.distributed.preemption import StopSignal
from jaxformer.distributed.processes import (
    agreed,
    device_batches,
    first_process_only,
    is_first,
    local_rows,
)
from jaxformer.distributed.sharding import make_mesh
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, run_path
from jaxformer.io.serialization import to_json
from jaxformer.optim.schedules import FEW_STEPS
from jaxformer.training.evaluation.conclusion import EarlyStopping, check_metric, print_conclusion
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.failures import explained
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.logging.preview import Preview
from jaxformer.training.logging.report import (
    describe_epochs,
    print_row,
    print_table,
    start_report,
)
from jaxformer.training.logging.run_logger import RunLogger, check_learned
from jaxformer.training.logging.throughput import RunWork, StepProfiler
from jaxformer.training.logging.wall_time import Clock
from jaxformer.training.resolve import ResolvedConfig, resolve
from jaxformer.training.result import TrainResult
from jaxformer.training.step import TrainProgram, TrainState
from jaxformer.training.vocabulary import check_tokenizer

if TYPE_CHECKING:
    from jaxformer.pretrained.checkpoint import Checkpoint

_SHOWN_CHARACTERS = 2000
"""Maximum length of the example shown at the start of a run."""


def train(
    config: Config | str, folder: str | Path, fresh: bool = False, began: float | None = None
) -> TrainResult:
    """Trains an experiment, or continues the run in its folder.

    Args:
        config: The experiment, the name of a shipped config ("tiny_decoder", "bert:base"), or the
            path of an experiment file.
        folder: The run's folder, for configuration, checkpoints, metrics, tokenizer and plots. It
            may be in an object store: "gs://bucket/run", "s3://bucket/run".
        fresh: Start over; an earlier run in the folder is renamed.
        began: When the work for the run began, in seconds since 1970 (default: now), which
            `jaxformer goodput` counts from.

    Returns:
        The step, the metrics and the model at the end of the run, or when it was stopped.

    Raises:
        ArgumentError: `config` is not a `Config`, or `folder` is not a folder path.
        ConfigError: The configuration is invalid, or the folder contains another run.
        DataError: The corpus cannot be used.
        CheckpointError: A checkpoint could not be saved, or all of them are damaged.
        TrainingDiverged: Too many consecutive updates, or more than half of all, were not finite.
        OutOfMemory: A step needs more memory than is available.
        ProcessLost: Another process of the job has ended.
        StorageError: The object store of the folder cannot be reached, or refuses requests.
    """
    clock = Clock(began or time.time())
    clock.lap("imports")
    config = load_config(config_spec(str(config))) if isinstance(config, str | Path) else config
    expected = "a Config, or the name or the path of a config"
    check_argument("config", config, isinstance(config, Config), expected)
    folder = run_path(folder, "folder")
    return train_resolved(resolve(config, folder, fresh), folder, fresh, clock)


def train_resolved(
    resolved: ResolvedConfig, folder: AnyPath, fresh: bool, clock: Clock
) -> TrainResult:
    """Trains a resolved experiment, without opening any further models by name."""
    # long: the loop and its set-up are easiest to read from top to bottom.
    with _opened(resolved.config, folder, fresh) as (resources, check_lock):
        resources.enter_context(clock)
        clock.lap("start")
        config, data = _with_data(resolved, folder)
        clock.lap("corpus")
        program = _program(config, data, resolved.teacher)
        work = RunWork.of(config, program.mesh)
        if is_first():
            _announce(config, resolved.origin, data, program, work, folder)
        settings = config.train
        restored = restore_newest(
            folder / CHECKPOINTS,
            program.state_shapes,
            warn=print,
            check=lambda step: saved_config(RunConfig(folder), step),  # of this run
        )
        step, state = restored or (0, resolved.initial_state(program))
        initial = None if restored else state
        data = resolved.with_references(folder, data, program, initial)
        resolved.close()
        evaluator = Evaluator(program, data, config.data.max_validation_batches)
        if initial is not None and settings.metric != "loss":
            check_metric(settings.metric, evaluator.evaluate(initial.best_params))
        log = RunLogger(
            settings,
            folder,
            step,
            work,
            saved_log(folder / CHECKPOINTS, step),
            config=to_json(config),
            epochs=lambda steps: data.train.rows_before(steps) / data.train.num_rows,
            clock=clock,
            own=lambda: program.own_metrics,
        )
        resources.enter_context(contextlib.closing(log))
        log.message(f"continuing from step {step}" if step else "starting from step 0")
        past = (row for row in read_metrics(folder) if row["step"] <= step)
        stopping = EarlyStopping(settings.metric, settings.patience, past)
        preview = None
        if writes_samples(config.model, settings):
            preview = Preview(program, data.tokenizer, settings, config.data.lengths["inputs"])
        profiler = StepProfiler(settings.profile_steps, log.folder)
        batches = _device_batches(program, data.train, step)
        checkpoints = Checkpointer(
            folder / CHECKPOINTS,
            to_json(config),
            settings.keep,
            best_fn=lambda measured: cost(settings.metric, measured.get(settings.metric)),
            before_save=log.push,
            check_owned=check_lock,
            kept=kept_digests(folder),
        )

        validation = None
        ended = agreed(stopping.ended)
        interrupted = False
        with contextlib.closing(checkpoints), StopSignal() as signals:
            while step < settings.steps and not (ended or interrupted):
                log.before(step + 1)
                profiler.before(step + 1)
                batch, waited = _next(batches, checkpoints, log, step, state)
                state, metrics = program.train_step(state, batch)
                step, validation, better = step + 1, None, False
                log.step(step, metrics, waited)
                profiler.after(step, metrics)
                last = step == settings.steps
                interrupted = signals.requested(step)
                if last or step % settings.eval_interval == 0:
                    with log.paused("evaluation") as seconds:
                        validation = evaluator.evaluate(state.best_params)
                        log.validation(step, validation, seconds())
                    better = stopping.add(step, validation) and settings.patience is not None
                    better, ended = agreed(better), agreed(stopping.ended)
                if settings.sample_interval and step % settings.sample_interval == 0:
                    with log.paused("evaluation"):
                        log.sample(step, preview.text(state.best_params))
                due = last or step % settings.checkpoint_interval == 0
                if due or ended or interrupted or better:
                    with log.paused("save"):
                        checkpoints.save(step, state, validation, log.state)
                checkpoints.check()
        log.conclude_steps()
        if step < settings.steps and not ended:
            log.message(f"stopped after step {step}; rerun the same command to continue from there")
            return TrainResult.of(folder, step, False, stopping)
        if ended:
            log.message(f"ended at step {step}: {stopping.reason}; see --train.patience")
        conclusion = evaluator.conclude(state.best_params, step, log.message, validation)
        sample = "" if preview is None else preview.text(state.best_params)
        log.end_display()
        check_lock()
        if is_first():
            shown = (folder, log.folder, state.params, stopping, sample)
            log.conclude(step, conclusion.metrics, print_conclusion(conclusion, config, *shown))
        check_learned(step, int(state.skipped))
        return TrainResult.of(folder, step, True, stopping, conclusion.metrics)


@contextlib.contextmanager
def _opened(
    config: Config, folder: AnyPath, fresh: bool
) -> Iterator[tuple[contextlib.ExitStack, Callable[[], None]]]:
    """Opens and locks the run's folder with its config.json; makes device errors readable."""
    checks: list[Callable[[], None]] = []

    def check_lock() -> None:
        for check in checks:  # the first process has the lock
            check()

    with contextlib.ExitStack() as resources:
        resources.enter_context(explained(config, folder / CHECKPOINTS))

        def open_folder() -> None:
            if fresh:
                resources.enter_context(moved_aside(folder))
            checks.append(resources.enter_context(locked(folder)))
            open_run_folder(folder, config)

        first_process_only(open_folder)
        yield resources, check_lock


def _with_data(resolved: ResolvedConfig, folder: AnyPath) -> tuple[Config, Datasets]:
    """Returns the experiment with `steps` computed from its epochs, and its data."""
    config, origin = resolved.config, resolved.origin
    data = prepared_data(config.data, folder)
    model = config.model
    check_tokenizer(model, data.tokenizer)
    check_labels(model.heads, data.labels)
    check_heads(model.heads, data.train.examples.blank())
    if origin is not None:
        from jaxformer.training.transfer.origin import keep_origin

        first_process_only(lambda: keep_origin(folder, origin, data.tokenizer))
    train = config.train.for_rows(data.train.num_rows, config.data)
    if train != config.train:
        config = dataclasses.replace(config, train=train)
        first_process_only(lambda: open_run_folder(folder, config))
    return config, data


def _announce(
    config: Config,
    origin: "Checkpoint | None",
    data: Datasets,
    program: TrainProgram,
    work: RunWork,
    folder: AnyPath,
) -> None:
    """Prints the start report of the run."""
    rows = list(data.report())
    if origin is not None:
        from jaxformer.training.transfer.fields import origin_report

        rows.append(("model", origin_report(config, origin, data.labels)))
    schedule = config.optimizer.schedule
    steps = config.train.steps
    rows.append(("epochs", describe_epochs(data, steps, config.data.max_validation_batches)))
    if (warmup := schedule.warmup(steps)) != (schedule.warmup_steps or warmup):
        was = f"optimizer.schedule.warmup_steps = {schedule.warmup_steps}"
        rows.append(("warm-up", f"{warmup} of {steps} steps: {was} leaves none at the peak"))
    if steps < FEW_STEPS:
        advice = "raise train.epochs or train.steps, or lower data.batch_size"
        rows.append(("few updates", f"{steps} in all, which hardly changes a model: {advice}"))
    rows += start_report(program.state_shapes, program.trained, work, program.mesh, folder)
    print_table(folder.name, rows)
    if config.data.has_text and config.data.sounds_as is None and not config.data.has_images:
        reader = RowReader(config.data.head, data.tokenizer, data.labels)
        row = reader.example(next(data.train.rows()))
        print_row("an example", reader, row, most=_SHOWN_CHARACTERS)


def _program(config: Config, data: Datasets, teacher: "Checkpoint | None") -> TrainProgram:
    model = config.model
    settings = config.train
    mesh = make_mesh(config.mesh)
    loss = None
    if teacher is not None:
        from jaxformer.training.teacher import check_teacher_data, distillation_loss

        check_teacher_data(data, teacher)
        loss = distillation_loss(settings.distillation, model, teacher, mesh)
    if settings.preference is not None:
        from jaxformer.training.preference_loss import preference_loss

        loss = preference_loss(settings.preference)
    return TrainProgram(model, config.optimizer, settings, mesh, loss)


def _device_batches(
    program: TrainProgram, dataset: Dataset, step: int
) -> Iterator[dict[str, jax.Array]]:
    """Yields this process's rows of the training batches, from a step on."""
    sharding = program.batch_sharding
    end = program.train.steps

    def of_phase(phase: Phase) -> Iterator[dict[str, jax.Array]]:
        rows = local_rows(sharding, phase.batch_size)
        stop = min(phase.stop or end, end)
        batches = dataset.iterate(max(step, phase.start), rows, stop)
        return device_batches(batches, sharding, phase.batch_size)

    now, *later = (p for p in dataset.phases if p.stop is None or p.stop > step)
    # Batches of this phase are prefetched while the step compiles.
    return itertools.chain(of_phase(now), itertools.chain.from_iterable(map(of_phase, later)))


def _next(
    batches: Iterator[dict[str, jax.Array]],
    checkpoints: Checkpointer,
    log: RunLogger,
    step: int,
    state: TrainState,
) -> tuple[dict[str, jax.Array], float]:
    """Returns the next batch and the seconds it took; if a row cannot be read, saves first."""
    started = time.perf_counter()
    try:
        return next(batches), time.perf_counter() - started
    except DataError:
        # In a larger run the other processes would not take part in saving.
        if jax.process_count() == 1 and step > 0:
            log.flush()
            checkpoints.save(step, state, log=log.state)
        raise
