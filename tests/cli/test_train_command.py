"""jaxformer train: which config is meant, and where its run goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typed_commands import command, refused, status_of

from jaxformer.config import load_config
from jaxformer.config.shipped import config_spec, shipped_names
from jaxformer.training import loop
from jaxformer.training.result import TrainResult

ROOT = Path(__file__).parents[2]
FILE = str(ROOT / "configs" / "tiny_decoder.py")


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The arguments that training was called with, in a folder without configs."""
    calls = []
    monkeypatch.chdir(tmp_path)
    result = TrainResult(Path(), 1, finished=True)
    monkeypatch.setattr(loop, "train", lambda *arguments, **_: calls.append(arguments) or result)
    return calls


def test_every_config_of_the_repository_is_shipped():
    assert shipped_names() == sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


@pytest.mark.parametrize("name", ["tiny_decoder", FILE])
def test_a_config_is_named_or_given_as_a_file(trained, name):
    command("train", name)
    assert trained == [(load_config(FILE), Path("runs", "tiny_decoder"), False)]


def test_options_and_the_argument_of_a_config(trained, tmp_path):
    options = ["--train.steps", "7", "--run-dir", tmp_path / "run", "--fresh"]
    command("train", "tiny_decoder", *options)
    command("train", "bert:large")
    (first, folder, fresh), (second, other, _) = trained
    assert (first.train.steps, folder, fresh) == (7, tmp_path / "run", True)
    assert (second.model.num_layers, other) == (24, Path("runs", "bert-large"))


def test_a_file_comes_before_a_shipped_config(trained, tmp_path):
    (tmp_path / "bert").write_text(Path(FILE).read_text())
    (tmp_path / "gpt2").mkdir()
    assert config_spec("bert") == "bert"
    assert config_spec("gpt2:small").endswith("gpt2.py:small")
    command("train", "bert")
    assert trained[0][0] == load_config(FILE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny_decodr", "nor the name of a config; did you mean 'tiny_decoder'?"),
        ("brt:base", "'brt' is neither a file nor the name of a config; did you mean 'bert'?"),
        ("nothing", "nor the name of a config; choose one of albert, bart, bert"),
        ("bert:tiny", "has no size 'tiny': choose one of base, large"),
        ("tiny_decoder.py", "tiny_decoder.py does not exist"),
        (".", ". is not a file"),
    ],
)
def test_a_config_that_does_not_exist(trained, capsys, name, message):
    assert message in refused(capsys, "train", name)
    assert not trained


@pytest.mark.slow
def test_train_py_is_the_same_command(tmp_path):
    def output(*command):
        return subprocess.run(
            [sys.executable, *command, "--help"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    ours = output("-m", "jaxformer", "train")
    assert "tiny_decoder" in ours
    assert output(ROOT / "train.py") == ours.replace("jaxformer train", "python train.py")


@pytest.mark.parametrize(("finished", "status"), [(True, 0), (False, 75)])
def test_a_scheduler_can_tell_a_stopped_run_from_a_finished_one(monkeypatch, finished, status):
    result = TrainResult(Path("run"), 3, finished=finished)
    monkeypatch.setattr(loop, "train", lambda *_, **__: result)
    command("train", FILE)
    assert status_of("train", FILE, "--job.stopped-status", "75") == status
