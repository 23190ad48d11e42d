"""jaxformer.train from Python: what it returns, and the loggers that show a run."""

import json
import logging
import subprocess
import sys

import chex
import numpy as np
import pytest
from PIL import Image
from tiny_run import tiny_config, train_until

import jaxformer
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.config import Config
from jaxformer.config.experiment import changed_fields
from jaxformer.config.loggers import WANDB_ID, TensorBoard, WeightsAndBiases
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.extras import MissingExtra
from jaxformer.io.serialization import from_json, to_json
from jaxformer.training.logging.metrics_writer import MetricsLog, read_metrics
from jaxformer.training.result import TrainResult

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return jaxformer.train(tiny_config(steps=6, eval_interval=2), folder)


@pytest.mark.slow
def test_a_run_returns_its_metrics_and_its_model(trained):
    assert isinstance(trained, TrainResult)
    assert trained.finished
    assert trained.step == 6
    train, validation = trained.history["train"], trained.history["validation"]
    assert (train["step"], validation["step"]) == ([*range(1, 7)], [2, 4, 6])
    losses = dict(zip(validation["step"], validation["loss"], strict=True))
    assert trained.metrics["loss"] == pytest.approx(losses[6])
    assert trained.best_step == min(losses, key=losses.get)
    assert trained.best_metrics["loss"] == losses[trained.best_step]
    saved = dict(read_arrays(trained.folder / "checkpoints/6", ("params/",)))
    found = {f"params/{name}": array for name, array in trained.model.parameters.items()}
    chex.assert_trees_all_equal(found, saved)
    assert trained.model is trained.model
    texts = jaxformer.generate(trained.model, {"input_ids": [[1, 2]]}, max_new_tokens=2)
    assert texts["sequences"].shape == (1, 4)


def test_a_history_has_columns_of_one_length(trained, tmp_path):
    for columns in trained.history.values():
        assert {len(column) for column in columns.values()} == {len(columns["step"])}
    rows = read_metrics(trained.folder, "train")
    assert trained.history["train"]["learning_rate"] == [row["learning_rate"] for row in rows]
    lines = [
        {"step": 1, "split": "train", "loss": 2.0},
        {"step": 2, "split": "train", "loss": None, "other": 3},
        {"step": 2, "split": "validation", "accuracy": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = TrainResult(tmp_path, 2, finished=False).history
    assert history["validation"] == {"step": [2], "accuracy": [0.5]}
    np.testing.assert_array_equal(history["train"]["loss"], [2.0, np.nan])
    np.testing.assert_array_equal(history["train"]["other"], [np.nan, 3.0])
    empty = TrainResult(tmp_path / "none", 0, finished=False).history
    assert empty == {"train": {"step": []}, "validation": {"step": []}}


def test_a_finished_run_returns_the_same_again(trained):
    again = jaxformer.train(tiny_config(steps=6, eval_interval=2), trained.folder)
    assert again.finished
    assert again.metrics == pytest.approx(trained.metrics)
    assert (again.step, again.best_step) == (trained.step, trained.best_step)


def test_a_stopped_run_returns_too(tmp_path):
    result = train_until(4, tiny_config(steps=6, eval_interval=3), tmp_path / "run")
    assert not result.finished
    assert result.step == 4
    assert result.metrics == result.best_metrics
    assert result.best_step == 3
    assert result.model.parameters


def test_a_config_may_be_named(tmp_path, monkeypatch):
    experiment = tmp_path / "tiny.py"
    experiment.write_text(
        "from tiny_run import tiny_config\n\ndef get_config(steps='2'):\n"
        "    return tiny_config(steps=int(steps), eval_interval=2)\n"
    )
    result = jaxformer.train(f"{experiment}:4", tmp_path / "run")
    assert (result.step, result.finished) == (4, True)
    with pytest.raises(ConfigError, match=r"'tiny_decodr' is neither .* mean 'tiny_decoder'"):
        jaxformer.train("tiny_decodr", tmp_path / "other")
    with pytest.raises(ArgumentError, match="config = 3: must be a Config, or the name"):
        jaxformer.train(3, tmp_path / "other")


# Loggers ------------------------------------------------------------------------------------------


def test_old_configs_log_to_tensorboard():
    saved = to_json(tiny_config())
    del saved["train"]["loggers"]
    assert from_json(saved, Config).train.loggers == (TensorBoard(),)
    both = tiny_config(loggers=(TensorBoard(), WeightsAndBiases(project="x", tags=("a",))))
    assert from_json(to_json(both), Config) == both
    assert changed_fields(tiny_config(), both) == {}
    other = tiny_config(loggers=(WeightsAndBiases(project="y"), TensorBoard()))
    assert changed_fields(both, other) == {}


def test_a_logger_that_fails_loses_nothing(tmp_path, caplog, monkeypatch):
    class Broken:
        def scalars(self, *_):
            raise ConnectionError("no network")

        text = conclude = scalars

        def close(self):
            raise TimeoutError

    monkeypatch.setattr(TensorBoard, "open", lambda self, run: Broken())
    with caplog.at_level(logging.WARNING):
        log = MetricsLog(tmp_path, 0)
        for step in (1, 2):
            log.write("train", step, {"loss": 1.0})
        log.write_text("sample", 2, "text")
        log.conclude(2, {"loss": 1.0}, None)
        log.close()
    (record,) = caplog.records
    assert "TensorBoard could not log metrics (no network); training continues" in record.message
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_a_logger_that_cannot_start_is_left_out(tmp_path, caplog, monkeypatch):
    def refuse(self, run):
        raise RuntimeError("no API key configured\nUse wandb login")

    monkeypatch.setattr(WeightsAndBiases, "open", refuse)
    log = MetricsLog(tmp_path, 0, loggers=(WeightsAndBiases(),))
    log.write("train", 1, {"loss": 1.0})
    log.close()
    assert "WeightsAndBiases could not start (no API key configured)" in caplog.text
    assert len(read_metrics(tmp_path)) == 1


def test_a_missing_library_is_an_error_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = tiny_config(loggers=(WeightsAndBiases(),))
    with pytest.raises(MissingExtra, match=r"jaxformer\[wandb\]"):
        jaxformer.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config = tiny_config(loggers=(TensorBoard(), TensorBoard()))
    with pytest.raises(ConfigError, match=r"train.loggers = TensorBoard, TensorBoard: must be"):
        jaxformer.train(config, tmp_path / "run")


@pytest.mark.torch
def test_the_writer_for_tensorboard_imports_no_pytorch(tmp_path):
    code = f"""
import sys
from pathlib import Path
from jaxformer.config.loggers import LoggedRun, TensorBoard

writer = TensorBoard().open(LoggedRun(Path({str(tmp_path)!r}), 0, {{}}))
writer.scalars("train", 1, {{"loss": 1.5}})
writer.close()
assert "torch" not in sys.modules
import torch
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.slow
def test_weights_and_biases_continues_the_same_run(tmp_path):
    pytest.importorskip("wandb")
    logger = WeightsAndBiases(project="tests", mode="offline")
    picture = tmp_path / "loss.png"
    Image.new("RGB", (8, 8)).save(picture)
    ids = []
    for start in (0, 2):
        log = MetricsLog(tmp_path, start, loggers=(logger,), config={"model": {"num_layers": 2}})
        log.write("train", start + 1, {"loss": 1.5, "skipped": 0})
        log.write("validation", start + 2, {"loss": float("nan")})
        log.write_text("sample", start + 2, "Once upon a time")
        log.conclude(start + 2, {"loss": 1.25}, picture)
        log.close()
        ids.append((tmp_path / WANDB_ID).read_text())
    assert ids[0] == ids[1]
    runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert {run.name.rpartition("-")[2] for run in runs} == {ids[0].strip()}
    logged = b"".join(file.read_bytes() for run in runs for file in run.rglob("*.wandb"))
    for part in (b"train/loss", b"validation/loss", b"sample", b"final/loss", b"num_layers"):
        assert part in logged, part
    assert [*(tmp_path / "wandb").rglob("*.png")]
    tables = [json.loads(file.read_text()) for file in (tmp_path / "wandb").rglob("*.table.json")]
    assert any("Once upon a time" in map(str, row) for table in tables for row in table["data"])
