"""What older versions wrote stays readable: a run's folder and the configuration of every run.

The runs are of the versions with these commits, on the corpus beside them. The second one has every
setting of attention and of the feed-forward layer that was a field of the model's configuration
then, and the logits that it had for `TOKENS`.
"""

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
from jaxformer.functional import RMSNorm
from jaxformer.io.serialization import from_json
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = ("6e84e0a", "7e81ec8")
CONFIGS = {
    f"{version}-{name}": data
    for version in VERSIONS
    for name, data in json.loads((FIXTURES / f"configs_{version}.json").read_text()).items()
}
HASH = "2c98c5820d753cd276d666be4cd80f7dc9d181abb7e495b3a7a726547a90aad9"
TOKENS = (np.arange(22).reshape(2, 11) * 7) % 256


def copied(version, folder, monkeypatch):
    """A copy of a run of four steps, beside the texts that it read."""
    shutil.copytree(FIXTURES / f"run_{version}", folder / "run")
    (folder / "run" / "corpus").rename(folder / "corpus")
    monkeypatch.chdir(folder)
    return "run"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_of_an_older_version_is_read(name):
    experiment = Path(__file__).parents[1] / "configs" / f"{name.partition('-')[2]}.py"
    assert from_json(CONFIGS[name], Config) == load_config(str(experiment))


@pytest.mark.parametrize(
    ("version", "logged"), [("6e84e0a", [1, 2, 3, 4, 5, 6]), ("7e81ec8", [4, 6])]
)
@pytest.mark.first("7e81ec8-*")
def test_a_run_is_continued(version, logged, tmp_path, monkeypatch):
    run = copied(version, tmp_path, monkeypatch)
    config = read_config(Path(run))
    longer = dataclasses.replace(config.train, steps=6, checkpoint_interval=6)
    train(dataclasses.replace(config, train=longer), run)
    steps = [row["step"] for row in read_metrics(Path(run)) if "learning_rate" in row]
    assert steps == logged


def test_a_run_is_inspected_predicts_is_evaluated_and_exported(tmp_path, monkeypatch, capsys):
    run = copied("6e84e0a", tmp_path, monkeypatch)
    assert main(["inspect", run]) == 0
    assert f"{HASH} (step 4)" in capsys.readouterr().out
    model = jaxformer.load(run)
    tokens = np.arange(10).reshape(2, 5)
    assert np.isfinite(jaxformer.forward(model, {"input_ids": tokens})["logits"]).all()
    assert main(["evaluate", run]) == 0
    assert "loss" in capsys.readouterr().out
    assert main(["export", run, "exported"]) == 0


def test_settings_that_moved_compute_what_they_did(tmp_path, monkeypatch):
    run = copied("7e81ec8", tmp_path, monkeypatch)
    model = jaxformer.load(run)
    assert model.config.self_attention == DotProductAttention(
        bias=True,
        key_bias=False,
        output_bias=True,
        scale=0.3,
        scale_by_depth=True,
        clip=6.0,
        softcap=20.0,
        dropout=0.1,
        query_key_norm=RMSNorm(eps=1e-6),
        query_key_norm_over="all_heads",
    )
    assert model.config.feed_forward == MLP(activation="gelu", gated=False, bias=True)
    logits = jaxformer.forward(model, {"input_ids": TOKENS})["logits"][..., :16]
    # Of bfloat16 states, which another machine may round otherwise.
    expected = np.load(Path(run) / "logits.npy")
    np.testing.assert_allclose(logits, expected, atol=2**-8)
