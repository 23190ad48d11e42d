"""Training from start to end: prepare, restore or initialise, step, evaluate, save, report."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxformer.config import Config, check_vocabulary, validate
from jaxformer.data import Datasets, prepare
from jaxformer.models.flops import decoder_flops
from jaxformer.serialization import to_json
from jaxformer.sharding import make_mesh
from jaxformer.training.checkpoint import Checkpointer
from jaxformer.training.evaluation import evaluate
from jaxformer.training.plot import plot_loss
from jaxformer.training.preemption import StopSignal
from jaxformer.training.preview import sample_text
from jaxformer.training.processes import (
    DeviceBatches,
    first_process_only,
    is_first,
    local_rows,
)
from jaxformer.training.profiling import StepProfiler
from jaxformer.training.progress import short_number
from jaxformer.training.report import parameter_count, print_table, start_report
from jaxformer.training.restore import restore_newest
from jaxformer.training.run_folder import CHECKPOINTS, locked, move_away, open_run_folder
from jaxformer.training.run_log import RunLog
from jaxformer.training.step import TrainProgram
from jaxformer.training.throughput import Workload, peak_flops


@dataclass(frozen=True)
class Run:
    """What stays the same while a run trains."""

    config: Config
    folder: Path
    data: Datasets
    program: TrainProgram
    log: RunLog


def train(config: Config, folder: Path, fresh: bool = False) -> None:
    """Trains an experiment, or continues it where its folder left off.

    Args:
        config: The experiment.
        folder: The run's folder: configuration, checkpoints, metrics, tokenizer, pictures.
        fresh: Start anew; an earlier run in the folder moves to another name.

    Raises:
        ConfigError: The configuration cannot work, or the folder holds another run.
        DataError: The corpus cannot be used.
        CheckpointError: A checkpoint could not be saved, or all of them are damaged.
        TrainingDiverged: Too many updates in a row were not finite.
    """
    validate(config, jax.device_count())
    with contextlib.ExitStack() as resources:

        def open_folder():
            if fresh:
                move_away(folder)
            resources.enter_context(locked(folder))
            open_run_folder(folder, config)

        first_process_only(open_folder)
        data = prepare(config.data, folder)
        check_vocabulary(config, data.tokenizer.vocab_size)
        mesh = make_mesh(config.mesh)
        program = TrainProgram(config.model, config.optimizer, config.train, mesh)
        shapes, work = program.state_shapes, workload(config, mesh)
        if is_first():
            print_table(folder.name, start_report(shapes, work, mesh, folder))
        restored = restore_newest(folder / CHECKPOINTS, shapes, warn=print)
        step, state = restored or (0, program.init(config.train.seed))
        log = resources.enter_context(contextlib.closing(RunLog(config, folder, step, work)))
        log.message(f"continuing from step {step}" if step else "starting from step 0")
        run = Run(config, folder, data, program, log)
        step, state, validation = _take_steps(run, step, state)
        if step < config.train.steps:
            log.message(f"stopped after step {step}; the same command continues from there")
        else:
            _finish(run, step, state, validation)


def workload(config: Config, mesh: jax.sharding.Mesh) -> Workload:
    """Returns what one step of an experiment computes."""
    tokens = config.data.batch_size * config.data.sequence_length
    flops = decoder_flops(config.model, config.data.sequence_length)
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
    checkpoints = Checkpointer(folder, to_json(run.config), settings.keep)
    profiler = StepProfiler(settings.profile_steps, run.folder)
    with contextlib.closing(checkpoints), StopSignal() as stop:
        while step < settings.steps:
            profiler.before(step + 1)
            asked = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - asked
            state, metrics = program.train_step(state, batch)
            step, validation = step + 1, None
            log.step(step, metrics, waited)
            profiler.after(step, metrics)
            last, stopping = step == settings.steps, stop.requested(step)
            if last or step % settings.eval_interval == 0:
                log.flush()
                started = time.perf_counter()
                validation = evaluate(run.config, program, state, run.data.validation)
                log.validation(step, validation, time.perf_counter() - started)
            if last or stopping or step % settings.checkpoint_interval == 0:
                log.flush()
                started = time.perf_counter()
                checkpoints.save(step, state, validation and validation["loss"])
                log.saved(time.perf_counter() - started)
            checkpoints.check()
            if stopping:
                break
    return step, state, validation


def _batches(run: Run, step: int) -> DeviceBatches:
    """The training batches from a step on, this process's rows of them."""
    sharding, data = run.program.batch_sharding, run.config.data
    shape = (data.batch_size, data.sequence_length)
    source = run.data.train.iterate(
        start_step=step, rows=local_rows(sharding, shape), stop_step=run.config.train.steps
    )
    return DeviceBatches(source, sharding, shape)


def _finish(run: Run, step: int, state: Any, validation: dict | None) -> None:
    """Says what came out of the run, and what to try next."""
    config, folder = run.config, run.folder
    validation = validation or evaluate(config, run.program, state, run.data.validation)
    text = _sample(run, state) if config.train.sample_tokens else ""
    run.log.close()
    if not is_first():
        return
    if text:
        print(f"\n--- a sample of the model's text {'-' * 40}\n{text}\n{'-' * 72}")
        (folder / "sample.txt").write_text(text)
    tokens = step * config.data.batch_size * config.data.sequence_length
    subtitle = (
        f"{short_number(parameter_count(state.params))} parameters · {step:,} steps · "
        f"{short_number(tokens)} tokens"
    )
    deeper = config.model.num_layers + 2 * len(config.model.windows)
    print(
        f"\nvalidation loss {validation['loss']:.4f}, perplexity {validation['perplexity']:.2f}, "
        f"bits per byte {validation['bits_per_byte']:.3f}\n"
        f"loss curve   {plot_loss(folder, folder.name, subtitle)}\n"
        f"metrics      {folder}/metrics.jsonl, tensorboard --logdir {folder}\n"
        f"checkpoint   {folder / CHECKPOINTS / str(step)}\n"
        f"Next: python -m jaxformer inspect {folder}, train on with --train.steps {2 * step}, "
        f"or change the model: --model.num-layers {deeper} --run-dir {folder}-deeper"
    )


def _sample(run: Run, state: Any) -> str:
    settings = run.config.train
    return sample_text(
        run.program,
        state.params if state.ema is None else state.ema,
        run.data.tokenizer,
        prompt=settings.sample_prompt,
        length=settings.sample_tokens,
        window=run.config.data.sequence_length,
        temperature=settings.sample_temperature,
        seed=settings.seed,
    )
