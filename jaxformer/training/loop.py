"""Training from start to end: prepare, restore or initialise, step, evaluate, save, report."""

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.restore import restore_newest, saved_log
from jaxformer.checkpoints.run_dir import CHECKPOINTS, locked, moved_away, open_run_folder
from jaxformer.config.experiment import (
    Config,
    check_heads,
    check_labels,
    check_vocabulary,
    row_lengths,
    validate,
    writes_samples,
)
from jaxformer.data import Datasets
from jaxformer.distributed.preemption import StopSignal
from jaxformer.distributed.processes import (
    DeviceBatches,
    agreed,
    first_process_only,
    is_first,
    local_rows,
)
from jaxformer.distributed.sharding import make_mesh
from jaxformer.errors import DataError, check_argument
from jaxformer.io.paths import folder_path
from jaxformer.io.serialization import to_json
from jaxformer.models.flops import model_flops
from jaxformer.training.distillation.teacher import distillation_loss
from jaxformer.training.evaluation.early_stopping import EarlyStopping, check_metric, cost
from jaxformer.training.evaluation.evaluate import EVALUATION_FILE, Conclusion, conclude, evaluate
from jaxformer.training.evaluation.translation import shown
from jaxformer.training.failures import explained
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.logging.plot import plot_loss
from jaxformer.training.logging.preview import Preview
from jaxformer.training.logging.profiling import StepProfiler
from jaxformer.training.logging.progress import short_number
from jaxformer.training.logging.report import parameter_count, print_table, start_report
from jaxformer.training.logging.run_logger import RunLogger, in_words
from jaxformer.training.logging.throughput import Workload, peak_flops
from jaxformer.training.loss import Loss
from jaxformer.training.state import TrainState
from jaxformer.training.step import TrainProgram
from jaxformer.training.transfer.tokens import check_same_tokens, with_tokenizer_of_origin
from jaxformer.training.transfer.transfer import transfer


@dataclass(frozen=True)
class Run:
    """What stays the same while a run trains."""

    config: Config
    folder: Path
    data: Datasets
    program: TrainProgram
    log: RunLogger
    watch: EarlyStopping
    preview: Preview | None
    """None where the model does not continue texts, or no samples are wanted."""


def train(config: Config, folder: str | Path, fresh: bool = False) -> None:
    """Trains an experiment, or continues it where its folder left off.

    Args:
        config: The experiment.
        folder: The run's folder: configuration, checkpoints, metrics, tokenizer, pictures.
        fresh: Start anew; an earlier run in the folder moves to another name.

    Raises:
        ArgumentError: `config` is no `Config`, or `folder` no path of a folder.
        ConfigError: The configuration cannot work, or the folder holds another run.
        DataError: The corpus cannot be used.
        CheckpointError: A checkpoint could not be saved, or all of them are damaged.
        TrainingDiverged: Too many updates in a row were not finite.
        OutOfMemory: A step needs more memory than there is.
        ProcessLost: Another process of the job has ended.
    """
    expected = "a Config; jaxformer.config.experiment.load_config reads that of a file"
    check_argument("config", config, isinstance(config, Config), expected)
    folder = folder_path(folder, "folder")
    config = with_tokenizer_of_origin(config)
    validate(config, jax.device_count())
    with contextlib.ExitStack() as resources:
        resources.enter_context(explained(config, folder / CHECKPOINTS))

        def open_folder():
            if fresh:
                resources.enter_context(moved_away(folder))
            resources.enter_context(locked(folder))
            open_run_folder(folder, config)

        first_process_only(open_folder)
        data = config.data.prepare(folder)
        if data.tokenizer is not None:
            check_vocabulary(config, data.tokenizer.vocab_size)
        check_labels(config, data.labels)
        check_heads(config, data.train.examples.blank())
        mesh = make_mesh(config.mesh)
        loss = _loss(config, data, mesh)
        program = TrainProgram(config.model, config.optimizer, config.train, mesh, loss)
        shapes, work = program.state_shapes, workload(config, mesh)
        if is_first():
            print_table(folder.name, start_report(shapes, program.trained, work, mesh, folder))
        restored = restore_newest(folder / CHECKPOINTS, shapes, warn=print)
        step, state = restored or (0, _fresh_state(program, config, data))
        if step == 0 and config.train.metric != "loss":
            check_metric(config.train.metric, evaluate(config, program, state.best_params, data))
        log = RunLogger(config, folder, step, work, saved_log(folder / CHECKPOINTS, step))
        resources.enter_context(contextlib.closing(log))
        watch = watch_of(config, folder, step)
        log.message(f"continuing from step {step}" if step else "starting from step 0")
        run = Run(config, folder, data, program, log, watch, _preview(config, program, data))
        step, state, validation = _take_steps(run, step, state)
        if agreed(watch.ended):
            log.message(
                f"ended at step {step}: {watch.reason}. To train on, raise --train.patience"
            )
        elif step < config.train.steps:
            log.message(f"stopped after step {step}; the same command continues from there")
            return
        _finish(run, step, state, validation)


def watch_of(config: Config, folder: Path, step: int) -> EarlyStopping:
    """What the evaluations up to a step say about going on.

    Args:
        config: The experiment.
        folder: The run's.
        step: The step that training continues from.
    """
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    return EarlyStopping(config.train.metric, config.train.patience, rows)


def _loss(config: Config, data: Datasets, mesh: jax.sharding.Mesh) -> Loss:
    """What the run minimises."""
    settings = config.train.distillation
    if settings is None:
        return Loss([head.name for head in config.model.heads])
    return distillation_loss(settings, config, data, mesh)


def _fresh_state(program: TrainProgram, config: Config, data: Datasets) -> TrainState:
    """The state of step 0, with another run's parameters if the experiment says so."""
    state = program.init(config.train.seed)
    if config.init_from is None:
        return state
    folder = Path(config.init_from)
    params, report = transfer(state.params, folder, config.model, config.init_layers)
    if data.tokenizer is not None:
        check_same_tokens(data.tokenizer, folder)
    if is_first():
        print(report.in_words(folder))
    ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
    return dataclasses.replace(state, params=params, ema=ema)


def workload(config: Config, mesh: jax.sharding.Mesh) -> Workload:
    """Returns what one step of an experiment computes."""
    lengths = row_lengths(config)
    tokens = config.data.batch_size * lengths["inputs"]
    flops = model_flops(config.model, lengths)
    peak = peak_flops(mesh.devices.flat[0].device_kind)
    return Workload(
        tokens=tokens,
        flops=tokens * flops.training(causal=False),
        causal_flops=tokens * flops.training(causal=True),
        peak=None if peak is None else peak * mesh.size,
    )


def _take_steps(run: Run, step: int, state: Any) -> tuple[int, Any, dict | None]:
    """The loop; returns the step reached, the state and the evaluation of that state, if any."""
    settings, program, log, validation = run.config.train, run.program, run.log, None
    batches = _batches(run, step)
    folder = run.folder / CHECKPOINTS
    checkpoints = Checkpointer(
        folder,
        to_json(run.config),
        settings.keep,
        lambda measured: cost(settings.metric, measured.get(settings.metric)),
    )
    profiler = StepProfiler(settings.profile_steps, run.folder)
    with contextlib.closing(checkpoints), StopSignal() as stop:
        ended = agreed(run.watch.ended)
        while step < settings.steps and not ended:
            profiler.before(step + 1)
            asked = time.perf_counter()
            batch = _next(batches, checkpoints, log, step, state)
            waited = time.perf_counter() - asked
            state, metrics = program.train_step(state, batch)
            step, validation = step + 1, None
            log.step(step, metrics, waited)
            profiler.after(step, metrics)
            last, stopping, better = step == settings.steps, stop.requested(step), False
            if last or step % settings.eval_interval == 0:
                log.flush()
                started = time.perf_counter()
                validation = evaluate(run.config, program, state.best_params, run.data)
                log.validation(step, validation, time.perf_counter() - started)
                better = run.watch.add(step, validation) and settings.patience is not None
                better, ended = agreed(better), agreed(run.watch.ended)
            if settings.sample_interval is not None and step % settings.sample_interval == 0:
                log.flush()
                started = time.perf_counter()
                text = run.preview.text(state.best_params)
                log.sample(step, text, time.perf_counter() - started)
            due = step % settings.checkpoint_interval == 0
            if last or ended or stopping or better or due:
                log.flush()
                started = time.perf_counter()
                checkpoints.save(step, state, validation, log.state)
                log.saved(time.perf_counter() - started)
            checkpoints.check()
            if stopping:
                break
    return step, state, validation


def _next(
    batches: DeviceBatches, checkpoints: Checkpointer, log: RunLogger, step: int, state: Any
) -> Any:
    """The next batch; a row that cannot be read ends the run, but loses nothing of it."""
    try:
        return next(batches)
    except DataError:
        # The other processes of a larger run would not come to save it.
        if jax.process_count() == 1 and step > 0:
            log.flush()
            checkpoints.save(step, state, log=log.state)
        raise


def _batches(run: Run, step: int) -> DeviceBatches:
    """The training batches from a step on, this process's rows of them."""
    sharding, num_rows = run.program.batch_sharding, run.config.data.batch_size
    source = run.data.train.iterate(
        start_step=step, rows=local_rows(sharding, num_rows), stop_step=run.config.train.steps
    )
    return DeviceBatches(source, sharding, num_rows)


def _finish(run: Run, step: int, state: Any, validation: dict | None) -> None:
    """Says what came out of the run, and what to try next."""
    config, folder = run.config, run.folder
    params, say = state.best_params, run.log.message
    conclusion = conclude(config, run.program, params, run.data, step, say, validation)
    text = "" if run.preview is None else run.preview.text(params)
    run.log.close()
    if not is_first():
        return
    if text:
        print(f"\n--- a sample of the model's text {'-' * 40}\n{text}\n{'-' * 72}")
        (folder / "sample.txt").write_text(text)
    files = conclusion.save(folder / EVALUATION_FILE, folder, config)
    if conclusion.translations:
        print(f"\n--- some translations {'-' * 50}\n{shown(conclusion.translations)}\n{'-' * 72}")
    tokens = step * config.data.batch_size * row_lengths(config)["inputs"]
    subtitle = (
        f"{short_number(parameter_count(state.params))} parameters · {step:,} steps · "
        f"{short_number(tokens)} tokens"
    )
    print(
        f"\nvalidation {in_words(conclusion.metrics)}\n"
        f"{_trivial_line(conclusion)}"
        f"{_best_line(run)}"
        f"evaluation   {', '.join(map(str, files))}\n"
        f"loss curve   {plot_loss(folder, folder.name, subtitle)}\n"
        f"metrics      {folder}/metrics.jsonl, tensorboard --logdir {folder}\n"
        f"checkpoint   {folder / CHECKPOINTS / str(step)}\n"
        f"Next: {_next_commands(run, step)}"
    )


def _trivial_line(conclusion: Conclusion) -> str:
    words = in_words(conclusion.trivial)
    return f"to beat      {words} (the best answer without a look at the inputs)\n" if words else ""


def _best_line(run: Run) -> str:
    best, metric = run.watch.best, run.config.train.metric.replace("_", " ")
    if best is None:
        return ""
    saved = run.folder / CHECKPOINTS / str(best.step)
    kept = f", {saved}" if saved.exists() else ""
    return f"best         {metric} {best.value:.4g} at step {best.step}{kept}\n"


def _next_commands(run: Run, step: int) -> str:
    settings, folder, model = run.config.train, run.folder, run.config.model
    longer = f"--train.steps {2 * step}"
    if run.watch.ended:
        longer = f"--train.patience {2 * settings.patience}"
    commands = f"python -m jaxformer inspect {folder}, train on with {longer}, "
    if settings.lora is not None:
        return f"{commands}or get plain weights: python -m jaxformer merge {folder} {folder}-merged"
    deeper = model.num_layers + 2 * len(model.windows)
    return f"{commands}or change the model: --model.num-layers {deeper} --run-dir {folder}-deeper"


def _preview(config: Config, program: TrainProgram, data: Datasets) -> Preview | None:
    if not writes_samples(config):
        return None
    return Preview(program, data.tokenizer, config.train, window=config.data.lengths["inputs"])
