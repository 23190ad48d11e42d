"""Training from start to end: set up, restore or initialise, step, evaluate, save, conclude."""

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
    moved_away,
    open_run_folder,
    prepared_data,
)
from jaxformer.checks import check_argument
from jaxformer.config.experiment import (
    Config,
    check_heads,
    check_labels,
    check_vocabulary,
    load_config,
    writes_samples,
)
from jaxformer.config.shipped import config_spec
from jaxformer.config.train import TrainConfig, cost
from jaxformer.data import Dataset, Datasets
from jaxformer.data.ramp import Phase
from jaxformer.data.shown_rows import RowReader
from jaxformer.distributed.preemption import StopSignal
from jaxformer.distributed.processes import (
    DeviceBatches,
    agreed,
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
    epochs_in_words,
    print_row,
    print_table,
    start_report,
)
from jaxformer.training.logging.run_logger import RunLogger, check_learned
from jaxformer.training.logging.throughput import RunWork, StepProfiler
from jaxformer.training.resolve import ResolvedConfig, resolve
from jaxformer.training.result import TrainResult
from jaxformer.training.step import TrainProgram, TrainState

if TYPE_CHECKING:
    from jaxformer.pretrained.checkpoint import Checkpoint

_SHOWN_CHARACTERS = 2000
"""The most of the example at the start of a run."""


def train(
    config: Config | str, folder: str | Path, fresh: bool = False, began: float | None = None
) -> TrainResult:
    """Trains an experiment, or continues it where its folder left off.

    Args:
        config: The experiment; or the name of a shipped config ("tiny_decoder", "bert:base"), or
            the path of a file of one.
        folder: The run's folder: configuration, checkpoints, metrics, tokenizer, pictures. It may
            be in an object store: "gs://bucket/run", "s3://bucket/run".
        fresh: Start anew; an earlier run in the folder moves to another name.
        began: When the work for it began, in seconds since 1970 (default: now), from where
            `jaxformer goodput` counts.

    Returns:
        The step, the final metrics and the model; of a run that was stopped, those so far.

    Raises:
        ArgumentError: `config` is no `Config`, or `folder` no path of a folder.
        ConfigError: The configuration cannot work, or the folder holds another run.
        DataError: The corpus cannot be used.
        CheckpointError: A checkpoint could not be saved, or all of them are damaged.
        TrainingDiverged: Too many updates in a row, or more than half of all, were not finite.
        OutOfMemory: A step needs more memory than there is.
        ProcessLost: Another process of the job has ended.
        StorageError: The object store of the folder cannot be reached any more, or refuses.
    """
    began = began or time.time()
    config = load_config(config_spec(str(config))) if isinstance(config, str | Path) else config
    expected = "a Config, or the name or the path of a config"
    check_argument("config", config, isinstance(config, Config), expected)
    folder = run_path(folder, "folder")
    return train_resolved(resolve(config, folder, fresh), folder, fresh, began)


def train_resolved(
    resolved: ResolvedConfig, folder: AnyPath, fresh: bool, began: float
) -> TrainResult:
    """Trains a resolved experiment; opens nothing by a name."""
    with _opened(resolved.config, folder, fresh) as (resources, check_lock):
        config, data, program, work = _prepared(resolved, folder)
        settings = config.train
        restored = _restored(folder, program)
        step, state = restored or (0, resolved.initial_state(program))
        initial = None if restored else state
        data = resolved.with_references(folder, data, program, initial)
        resolved.close()
        evaluator = _evaluator(config, program, data, initial)
        log = _run_logger(config, folder, step, work, data.train, program, began)
        resources.enter_context(contextlib.closing(log))
        stopping = _early_stopping(settings, folder, step)
        preview = _preview(config, program, data)
        profiler = StepProfiler(settings.profile_steps, log.folder)
        batches = _device_batches(program, data.train, step)
        checkpoints = _checkpointer(config, folder, log.push, check_lock)

        validation, ended, interrupted = None, agreed(stopping.ended), False
        with contextlib.closing(checkpoints), StopSignal() as signals:
            while step < settings.steps and not (ended or interrupted):
                log.before(step + 1)
                profiler.before(step + 1)
                batch, waited = _next(batches, checkpoints, log, step, state)
                state, metrics = program.train_step(state, batch)
                step, validation, better = step + 1, None, False
                log.step(step, metrics, waited)
                profiler.after(step, metrics)
                last, interrupted = step == settings.steps, signals.requested(step)
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
            log.message(f"stopped after step {step}; the same command continues from there")
            return TrainResult.of(folder, step, False, stopping)
        if ended:
            log.message(f"ended at step {step}: {stopping.reason}; --train.patience says when")
        conclusion = evaluator.conclude(state.best_params, step, log.message, validation)
        sample = "" if preview is None else preview.text(state.best_params)
        log.end_display()
        check_lock()
        if is_first():
            shown = (folder, log.folder, state.params, stopping, sample)
            log.conclude(step, conclusion.metrics, print_conclusion(conclusion, config, *shown))
        check_learned(step, int(state.skipped))
        return TrainResult.of(folder, step, True, stopping, conclusion.metrics)


def _prepared(
    resolved: ResolvedConfig, folder: AnyPath
) -> tuple[Config, Datasets, TrainProgram, RunWork]:
    """What is trained, on what; shows it."""
    config, data = _with_data(resolved, folder)
    program = _program(config, data, resolved.teacher)
    work = RunWork.of(config, program.mesh)
    if is_first():
        _announce(config, resolved.origin, data, program, work, folder)
    return config, data, program, work


def _restored(folder: AnyPath, program: TrainProgram) -> tuple[int, TrainState] | None:
    """The newest checkpoint that is whole, once it is known to be one of this run's."""
    return restore_newest(
        folder / CHECKPOINTS,
        program.state_shapes,
        warn=print,
        check=lambda step: saved_config(RunConfig(folder), step),
    )


def _evaluator(
    config: Config, program: TrainProgram, data: Datasets, initial: TrainState | None
) -> Evaluator:
    """What measures the run; of a new one, it is known that it measures `train.metric`."""
    evaluator = Evaluator(program, data, config.data.max_validation_batches)
    if initial is not None and config.train.metric != "loss":
        check_metric(config.train.metric, evaluator.evaluate(initial.best_params))
    return evaluator


def _run_logger(
    config: Config,
    folder: AnyPath,
    step: int,
    work: RunWork,
    rows: Dataset,
    program: TrainProgram,
    began: float | None,
) -> RunLogger:
    """The log of the run, which says where it starts."""
    log = RunLogger(
        *(config.train, folder, step, work, saved_log(folder / CHECKPOINTS, step)),
        config=to_json(config),
        epochs=lambda steps: rows.rows_before(steps) / rows.num_rows,
        began=began,
        own=lambda: program.own_metrics,
    )
    log.message(f"continuing from step {step}" if step else "starting from step 0")
    return log


def _early_stopping(settings: TrainConfig, folder: Path, step: int) -> EarlyStopping:
    """Early stopping that knows the evaluations up to a step."""
    past = (row for row in read_metrics(folder) if row["step"] <= step)
    return EarlyStopping(settings.metric, settings.patience, past)


@contextlib.contextmanager
def _opened(
    config: Config, folder: AnyPath, fresh: bool
) -> Iterator[tuple[contextlib.ExitStack, Callable[[], None]]]:
    """The run's folder, locked and with its config.json; device errors become sentences."""
    checks: list[Callable[[], None]] = []

    def check_lock() -> None:
        for check in checks:  # the first process has the lock
            check()

    with contextlib.ExitStack() as resources:
        resources.enter_context(explained(config, folder / CHECKPOINTS))

        def open_folder() -> None:
            if fresh:
                resources.enter_context(moved_away(folder))
            checks.append(resources.enter_context(locked(folder)))
            open_run_folder(folder, config)

        first_process_only(open_folder)
        yield resources, check_lock


def _with_data(resolved: ResolvedConfig, folder: AnyPath) -> tuple[Config, Datasets]:
    """The experiment with the steps that its epochs take, and its data."""
    config, origin = resolved.config, resolved.origin
    data, model = prepared_data(config.data, folder), config.model
    if data.tokenizer is not None:
        check_vocabulary(model.vocab_size, data.tokenizer.vocab_size)
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
    """Prints what the run is."""
    rows = list(data.report())
    if origin is not None:
        from jaxformer.training.transfer.fields import origin_report

        rows.append(("model", origin_report(config, origin, data.labels)))
    schedule, steps = config.optimizer.schedule, config.train.steps
    rows.append(("epochs", epochs_in_words(data, steps, config.data.max_validation_batches)))
    if (warmup := schedule.warmup(steps)) != (schedule.warmup_steps or warmup):
        was = f"optimizer.schedule.warmup_steps = {schedule.warmup_steps}"
        rows.append(("warm-up", f"{warmup} of {steps} steps: {was} leaves none at the peak"))
    if steps < FEW_STEPS:
        advice = "raise train.epochs or train.steps, or lower data.batch_size"
        rows.append(("few updates", f"{steps} in all, which hardly change a model: {advice}"))
    rows += start_report(program.state_shapes, program.trained, work, program.mesh, folder)
    print_table(folder.name, rows)
    if config.data.has_text and not config.data.has_images:
        reader = RowReader(config.data.head, data.tokenizer, data.labels)
        row = reader.example(next(data.train.rows()))
        print_row("an example", reader, row, most=_SHOWN_CHARACTERS)


def _program(config: Config, data: Datasets, teacher: "Checkpoint | None") -> TrainProgram:
    model, settings, mesh = config.model, config.train, make_mesh(config.mesh)
    loss = None
    if teacher is not None:
        from jaxformer.training.teacher import check_taught, distillation_loss

        check_taught(data, teacher)
        loss = distillation_loss(settings.distillation, model, teacher, mesh)
    if settings.preference is not None:
        from jaxformer.training.preference_loss import preference_loss

        loss = preference_loss(settings.preference)
    return TrainProgram(model, config.optimizer, settings, mesh, loss)


def _preview(config: Config, program: TrainProgram, data: Datasets) -> Preview | None:
    """What writes samples; None for models that do not continue a text, or without samples."""
    if not writes_samples(config.model, config.train):
        return None
    return Preview(program, data.tokenizer, config.train, window=config.data.lengths["inputs"])


def _device_batches(
    program: TrainProgram, dataset: Dataset, step: int
) -> Iterator[dict[str, jax.Array]]:
    """The training batches from a step on, this process's rows of them."""
    sharding, end = program.batch_sharding, program.train.steps

    def of_phase(phase: Phase) -> DeviceBatches:
        rows, stop = local_rows(sharding, phase.batch_size), min(phase.stop or end, end)
        batches = dataset.iterate(max(step, phase.start), rows, stop)
        return DeviceBatches(batches, sharding, phase.batch_size)

    now, *later = (p for p in dataset.phases if p.stop is None or p.stop > step)
    # Those of this phase are prepared from now on, while the step compiles.
    return itertools.chain(of_phase(now), itertools.chain.from_iterable(map(of_phase, later)))


def _checkpointer(
    config: Config,
    folder: AnyPath,
    before_save: Callable[[], None],
    check_owned: Callable[[], None],
) -> Checkpointer:
    metric = config.train.metric
    return Checkpointer(
        folder / CHECKPOINTS,
        to_json(config),
        config.train.keep,
        best_fn=lambda measured: cost(metric, measured.get(metric)),
        before_save=before_save,
        check_owned=check_owned,
        kept=kept_digests(folder),
    )


def _next(
    batches: Iterator[dict[str, jax.Array]],
    checkpoints: Checkpointer,
    log: RunLogger,
    step: int,
    state: TrainState,
) -> tuple[dict[str, jax.Array], float]:
    """The next batch and the seconds it took; a row that cannot be read loses no step."""
    asked = time.perf_counter()
    try:
        return next(batches), time.perf_counter() - asked
    except DataError:
        # The other processes of a larger run would not come to save it.
        if jax.process_count() == 1 and step > 0:
            log.flush()
            checkpoints.save(step, state, log=log.state)
        raise
