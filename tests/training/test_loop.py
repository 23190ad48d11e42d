"""A whole run in this process: what it leaves behind, how it goes on, when it refuses or stops."""

import contextlib
import dataclasses
import json

import chex
import jax
import numpy as np
import pytest
from saved_folders import copy_of
from tiny_run import hash_of, on_mesh, tiny_config, train_until

from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.checkpoints.manifest import read_item
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.checkpoints.run_dir import locked
from jaxformer.cli.errors import reporting_errors
from jaxformer.config import Config, validate
from jaxformer.data import Dataset
from jaxformer.errors import ConfigError, DataError, StorageError
from jaxformer.io.serialization import from_json
from jaxformer.models import EncoderConfig
from jaxformer.training import failures, loop
from jaxformer.training.failures import ProcessLost, explained
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.logging.run_logger import RunLogger, TrainingDiverged
from jaxformer.training.logging.throughput import RunWork
from jaxformer.training.loop import train


def steps_in(folder, split="train"):
    return [row["step"] for row in read_metrics(folder, split)]


def test_a_run_leaves_everything_behind(finished):
    names = {item.name for item in finished.iterdir()}
    assert {"config.json", "metrics.jsonl", "loss.png", "tensorboard"} <= names
    assert steps_in(finished) == list(range(1, 13))
    assert steps_in(finished, "validation") == [5, 10, 12]
    losses = [row["loss"] for row in read_metrics(finished, "train")]
    assert losses[-1] < losses[0]
    # Steps 8 and 12 are the newest; of those with a validation loss, 12 is the best.
    assert checkpoint_files.saved_steps(finished / "checkpoints") == [8, 12]
    assert (finished / "loss.png").stat().st_size > 10_000


def test_the_configuration_beside_a_checkpoint_is_enough(finished):
    saved = from_json(read_item(finished / "checkpoints" / "12", "config"), Config)
    assert saved == tiny_config()
    assert from_json(json.loads((finished / "config.json").read_text()), Config) == tiny_config()


@pytest.mark.slow
def test_it_ends_with_what_came_out_and_traces_its_step_once(tmp_path, capsys, monkeypatch):
    """Also where the profiler looks at some steps."""
    traces, original = [], loop.TrainProgram._updated

    def counted(self, *arguments):
        traces.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(loop.TrainProgram, "_updated", counted)
    train(tiny_config(steps=6, sample_tokens=4, profile_steps=(2, 3)), tmp_path / "run")
    assert len(traces) == 1
    output = capsys.readouterr().out
    for text in ("validation loss", "perplexity", "sample of the model", "loss.png", "Next:"):
        assert text in output
    assert "parameters per device" in output
    assert (tmp_path / "run" / "sample.txt").exists()
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_samples_appear_in_tensorboard_when_asked(tmp_path):
    def events(name, **settings):
        train(tiny_config(steps=4, sample_tokens=3, **settings), tmp_path / name)
        files = (tmp_path / name / "tensorboard").iterdir()
        return b"".join(file.read_bytes() for file in files).count(b"sample/text_summary")

    assert events("asked", sample_interval=2) == 2
    assert events("not") == 0
    config = dataclasses.replace(
        tiny_config(sample_interval=2),
        model=EncoderConfig(num_layers=2, model_dim=32, num_heads=4, mlp_dim=64, vocab_size=264),
    )
    with pytest.raises(ConfigError, match="sample_interval = 2: samples need a decoder"):
        validate(config, 1)


@pytest.mark.more
def test_the_same_command_again_changes_nothing(finished, tmp_path, capsys):
    run = copy_of(finished, tmp_path / "run")
    train(tiny_config(), run)
    assert hash_of(run, 12) == hash_of(finished, 12)
    assert steps_in(run) == steps_in(finished)
    assert "continuing from step 12" in capsys.readouterr().out


@pytest.mark.slow
def test_a_finished_run_can_be_extended_and_displayed_differently(tmp_path):
    train(tiny_config(steps=6), tmp_path / "run")
    train(tiny_config(steps=12, log_interval=2, eval_interval=4), tmp_path / "run")
    assert checkpoint_files.saved_steps(tmp_path / "run" / "checkpoints")[-1] == 12
    assert steps_in(tmp_path / "run") == [1, 2, 3, 4, 5, 6, 8, 10, 12]


@pytest.mark.optimized
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    config = tiny_config()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=1))
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(config, whole)
    train_until(6, config, run)
    assert checkpoint_files.saved_steps(run / "checkpoints")[-1] == 6
    train(config, run)
    assert hash_of(run, 12) == hash_of(whole, 12)
    losses = [[row["loss"] for row in read_metrics(folder)] for folder in (run, whole)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_row_averages_the_same_steps_after_a_resume(tmp_path, finished):
    config = tiny_config(log_interval=5, eval_interval=12)
    train_until(6, config, tmp_path / "run")
    train(config, tmp_path / "run")
    rows, single = (
        {row["step"]: row for row in read_metrics(folder, "train")}
        for folder in (tmp_path / "run", finished)
    )
    assert set(rows) == {5, 10, 12}
    for last, steps in ((5, range(1, 6)), (10, range(6, 11)), (12, range(11, 13))):
        for name in ("loss", "accuracy", "gradient_norm"):
            assert rows[last][name] == sum(single[step][name] for step in steps) / len(steps)


@pytest.mark.slow
def test_a_step_that_does_not_fit_says_what_to_change(tmp_path, monkeypatch, capsys):
    """By the exceptions of XLA and of Python; a run that has learned says where it goes on."""
    xla = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")
    config, original = tiny_config(steps=8), loop.TrainProgram.train_step

    def fail(error, after):
        def train_step(self, state, batch):
            if int(state.step) == after:
                raise error
            return original(self, state, batch)

        monkeypatch.setattr(loop.TrainProgram, "train_step", train_step)
        assert reporting_errors(lambda: train(config, tmp_path / "run")) == 1
        (message,) = capsys.readouterr().err.splitlines()
        return message

    for error in (xla, MemoryError()):
        message = fail(error, after=0)
        assert "error: out of memory" in message
        for name in ("data.batch_size = 8: lower", "train.gradient_accumulation = 2: raise"):
            assert name in message
        for name in ("model.remat = 'none'", "mesh.fsdp = 1", "No checkpoint was saved yet"):
            assert name in message
        assert not (tmp_path / "run").exists()
    message = fail(xla, after=6)
    assert "Out of memory allocating 9 bytes." in message
    assert "The checkpoint of step 4 is kept" in message
    assert "data.batch_size" not in message  # that would be another run
    monkeypatch.undo()
    train(config, tmp_path / "run")
    assert "continuing from step 4" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_a_lost_process_is_said_however_jax_raises_it(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    lost = pytest.raises(ProcessLost, match=r"another process .*Connection closed by peer")
    with lost, explained(tiny_config(), tmp_path):
        raise kind("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [1]")
    with pytest.raises(DataError), explained(tiny_config(), tmp_path):
        raise DataError("a text about Gloo")


@pytest.mark.more
def test_the_failure_is_told_and_not_that_the_store_cannot_be_asked(tmp_path, monkeypatch):
    def lost(folder):
        raise StorageError(f"{folder}: the connection to the store was lost")

    monkeypatch.setattr(failures, "saved_steps", lost)
    cause = OSError("gone")
    failed = pytest.raises(CheckpointError, match="Could not save")
    with failed as error, explained(tiny_config(), tmp_path):
        raise CheckpointError("Could not save the checkpoint of step 2") from cause
    assert error.value.__cause__ is cause


def test_memory_elsewhere_and_other_errors_of_the_device(capsys):
    def fail(text):
        raise jax.errors.JaxRuntimeError(text)

    assert reporting_errors(lambda: fail("RESOURCE_EXHAUSTED: 9 bytes")) == 1
    assert "out of memory (RESOURCE_EXHAUSTED: 9 bytes)" in capsys.readouterr().err
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        reporting_errors(lambda: fail("INTERNAL: a bug"))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"tensor": 4}])
def test_resuming_on_another_mesh_agrees_within_rounding(tmp_path, finished, sizes):
    train_until(6, tiny_config(), tmp_path / "run")
    train(on_mesh(tiny_config(), **sizes), tmp_path / "run")
    ends = [dict(read_arrays(run / "checkpoints" / "12")) for run in (tmp_path / "run", finished)]
    chex.assert_trees_all_close(*ends, rtol=2e-4, atol=2e-5)


def test_another_configuration_is_refused_with_the_fields_that_differ(finished):
    config = tiny_config(seed=3)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=3))
    before = hash_of(finished, 12)
    with pytest.raises(ConfigError) as error:
        train(config, finished)
    assert "model.num_layers: 1 there, 3 now" in str(error.value)
    assert "train.seed: 0 there, 3 now" in str(error.value)
    assert hash_of(finished, 12) == before


@pytest.mark.slow
def test_fresh_keeps_the_old_run_under_another_name(tmp_path):
    train(tiny_config(steps=6), tmp_path / "run")
    before = hash_of(tmp_path / "run", 6)
    train(tiny_config(steps=6, seed=1), tmp_path / "run", fresh=True)
    assert hash_of(tmp_path / "run-1", 6) == before
    assert hash_of(tmp_path / "run", 6) != before


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        train(tiny_config(), tmp_path)
    assert [item.name for item in tmp_path.iterdir() if item.name != ".lock"] == ["thesis.tex"]


def test_one_process_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(ConfigError, match="another process"):
        train(tiny_config(), tmp_path)


def poisoned(monkeypatch, steps):
    """Makes the batches of these steps (counted from 0) give a loss that is not a number."""
    original = loop.device_batches

    def poison(*arguments):
        for number, batch in enumerate(original(*arguments)):
            if number in steps:
                batch["weights"] = batch["weights"] * np.float32("nan")
            yield batch

    monkeypatch.setattr(loop, "device_batches", poison)


def test_many_non_finite_steps_stop_the_run_and_keep_the_last_checkpoint(tmp_path, monkeypatch):
    poisoned(monkeypatch, set(range(5, 12)))
    with pytest.raises(TrainingDiverged) as error:
        train(tiny_config(max_nonfinite_steps=3), tmp_path / "run")
    assert "after step 8: 3 consecutive updates" in str(error.value)
    assert "learning-rate" in str(error.value)
    folder = tmp_path / "run" / "checkpoints"
    newest = checkpoint_files.saved_steps(folder)[-1]
    for name, array in read_arrays(folder / str(newest), ("params/",)):
        assert np.isfinite(array).all(), name


@pytest.mark.more
@pytest.mark.quick("bad2")
@pytest.mark.parametrize("bad", [range(12), range(5, 12), (3, 4, 6, 8, 9, 11)])
def test_a_run_of_which_most_updates_were_skipped_is_no_success(tmp_path, monkeypatch, capsys, bad):
    """It has its checkpoint and its evaluation, and says so again when it is asked to continue."""
    poisoned(monkeypatch, set(bad))
    fails = len(bad) > 6
    config = tiny_config(max_nonfinite_steps=100 if fails else 3)
    with pytest.raises(TrainingDiverged) if fails else contextlib.nullcontext() as error:
        train(config, tmp_path / "run")
    skipped = [number in bad for number in range(12)]
    rows = read_metrics(tmp_path / "run", "train")
    assert [row["loss"] is None for row in rows] == skipped
    assert [row["skipped"] for row in rows] == np.cumsum(skipped).tolist()
    assert (tmp_path / "run" / "evaluation.json").exists()
    if fails:
        assert f"{len(bad)} of 12 updates" in str(error.value)
        assert reporting_errors(lambda: train(config, tmp_path / "run")) == 1
        assert f"{len(bad)} of 12 updates" in capsys.readouterr().err


def test_a_row_that_cannot_be_read_loses_no_step(tmp_path, monkeypatch):
    whole = Dataset.batch

    def broken(self, step, rows=None):
        if step == 3:
            raise DataError("photos/cat/7.png: not an image")
        return whole(self, step, rows)

    monkeypatch.setattr(Dataset, "batch", broken)
    with pytest.raises(DataError, match=r"7\.png"):
        train(tiny_config(), tmp_path / "run")
    assert checkpoint_files.saved_steps(tmp_path / "run" / "checkpoints") == [3]


@pytest.mark.slow
def test_the_moving_average_is_what_is_evaluated(tmp_path, finished):
    train(tiny_config(ema_decay=0.99), tmp_path / "run")
    losses = [
        [row["loss"] for row in read_metrics(folder, split)]
        for folder in (tmp_path / "run", finished)
        for split in ("train", "validation")
    ]
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-6)
    assert losses[1][-1] > losses[3][-1] + 0.1  # an average that lags behind


def test_metrics_are_read_one_step_late(tmp_path):
    class Scalar:
        read = False

        def __array__(self, dtype=None, copy=None):
            self.read = True
            return np.float32(1)

    names = ("loss", "accuracy", "gradient_norm", "learning_rate", "tokens", "skipped")
    steps = [{name: Scalar() for name in (*names, "skipped_in_a_row")} for _ in range(3)]
    work = RunWork.of(tiny_config())
    log = RunLogger(tiny_config().train, tmp_path, 0, work)
    for number, metrics in enumerate(steps, 1):
        log.step(number, metrics, 0.0)
        assert not metrics["loss"].read
        assert all(item["loss"].read for item in steps[: number - 1])
    log.flush()
    assert steps[-1]["loss"].read
    log.close()
