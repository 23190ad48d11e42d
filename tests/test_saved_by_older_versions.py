"""What older versions wrote stays readable: a run's folder and the configuration of every run."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxformer
from jaxformer.checkpoints.run_dir import read_config
from jaxformer.cli.main import main
from jaxformer.config import Config, load_config
from jaxformer.io.serialization import from_json
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train

FIXTURES = Path(__file__).parent / "fixtures"
CONFIGS = json.loads((FIXTURES / "configs_6e84e0a.json").read_text())
HASH = "2c98c5820d753cd276d666be4cd80f7dc9d181abb7e495b3a7a726547a90aad9"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A copy of a run of four steps, beside the texts that it read."""
    shutil.copytree(FIXTURES / "run_6e84e0a", tmp_path / "run")
    (tmp_path / "run" / "corpus").rename(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    return "run"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_with_full_names_of_modules_is_read(name):
    experiment = Path(__file__).parents[1] / "configs" / f"{name}.py"
    assert from_json(CONFIGS[name], Config) == load_config(str(experiment))


def test_a_run_is_inspected(run, capsys):
    assert main(["inspect", run]) == 0
    assert f"{HASH} (step 4)" in capsys.readouterr().out


def test_a_run_is_continued(run):
    config = read_config(Path(run))
    longer = dataclasses.replace(config.train, steps=6, checkpoint_interval=6)
    train(dataclasses.replace(config, train=longer), run)
    assert [row["step"] for row in read_metrics(Path(run)) if "learning_rate" in row] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip


def test_a_run_predicts_is_evaluated_and_exported(run, capsys):
    model = jaxformer.load(run)
    tokens = np.arange(10).reshape(2, 5)
    assert np.isfinite(jaxformer.forward(model, {"input_ids": tokens})["logits"]).all()
    assert main(["evaluate", run]) == 0
    assert "loss" in capsys.readouterr().out
    assert main(["export", run, "exported"]) == 0
