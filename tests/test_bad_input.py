"""Whatever a user gets wrong: one clear message, status 2, before anything compiles."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from jaxformer import cli
from jaxformer.training import loop

ROOT = Path(__file__).parents[1]

EXPERIMENT = """
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.models.config import DecoderConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Constant

def get_config(argument=None):
    return Config(
        model=DecoderConfig(vocab_size=264, num_layers=2, model_dim=32, num_heads=4, mlp_dim=64),
        data=DataConfig(
            source=TextFiles({corpus!r}), tokenizer=Bytes(), sequence_length=16, batch_size=8
        ),
        optimizer=AdamW(schedule=Constant(warmup_steps=2)),
        train=TrainConfig(steps=10),
    )
"""


@pytest.fixture
def train_script(monkeypatch):
    spec = importlib.util.spec_from_file_location("train_script", ROOT / "train.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_script", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path, train_script, monkeypatch, capsys):
    """Starts the tiny experiment with options; returns the status and what was printed."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"The dog {number} chased another dog. " * 20)
    experiment = tmp_path / "tiny.py"
    experiment.write_text(EXPERIMENT.format(corpus=str(corpus)))

    def nothing_compiles(*_):
        raise AssertionError("got as far as the training program")

    monkeypatch.setattr(loop, "TrainProgram", nothing_compiles)

    def start(*options, name=str(experiment)):
        arguments = [name, "--run-dir", str(tmp_path / "run"), *options]
        try:
            status = cli.reporting_errors(lambda: train_script.main(arguments))
        except SystemExit as stop:
            status = stop.code
        output = capsys.readouterr()
        return status, output.out + output.err

    return start


def test_the_experiment_itself_is_fine(run):
    with pytest.raises(AssertionError, match="training program"):
        run()


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["--model.num-layer", "3"], ["--model.num-layer", "Did you mean --model.num-layers?"]),
        (["--modle.num-layers", "3"], ["Did you mean --model.num-layers?"]),
        (["--model.num-layers", "three"], ["--model.num-layers", "three"]),
        (["--model.num-layers", "0"], ["num_layers = 0", "positive"]),
        (["--model.position", "rop"], ["RoPE", "ALiBi", "Did you mean 'RoPE'"]),
        (["--model.activation", "swish"], ["silu", "swish"]),
        (["--model.num-heads", "5"], ["model_dim = 32", "num_heads", "5"]),
        (["--model.num-kv-heads", "3"], ["num_kv_heads = 3", "num_heads"]),
        (["--mesh.tensor", "3", "--model.vocab-size", "300"], ["num_heads = 4", "mesh.tensor = 3"]),
        (
            ["--model.num-kv-heads", "2", "--mesh.tensor", "4"],
            ["model.num_kv_heads = 2", "mesh.tensor = 4"],
        ),
        (
            ["--mesh.data", "8", "--train.gradient-accumulation", "2"],
            ["data.batch_size = 8", "2 x 8 = 16"],
        ),
        (["--data.batch-size", "6", "--mesh.fsdp", "4"], ["data.batch_size = 6", "mesh.fsdp"]),
        (["--mesh.data", "16"], ["needs 16 devices", "JAX_NUM_CPU_DEVICES=16"]),
        (["--mesh.data", "0"], ["mesh.data = 0"]),
        (["--mesh.data", "-1", "--mesh.fsdp", "-1"], ["only one axis"]),
        (["--model.vocab-size", "259", "--mesh.tensor", "2"], ["259", "pad it to 260"]),
        (
            ["--model.position", "Learned", "--model.position.max-length", "8"],
            ["8 positions", "sequence length 16"],
        ),
        (["--model.vocab-size", "200"], ["258 tokens", "model.vocab_size = 200"]),
        (
            ["--data.tokenizer", "TrainTokenizer", "--data.tokenizer.vocab-size", "1000"],
            ["data.tokenizer.vocab_size = 1000", "model.vocab_size = 264"],
        ),
        (["--data.sequence-length", "100000"], ["shorter than one sequence"]),
        (["--optimizer.schedule.warmup-steps", "20"], ["warmup_steps is 20", "10 steps"]),
        (["--train.clip-norm", "-1"], ["train.clip_norm", "-1.0"]),
        (["--data.source.path", "/nowhere/at/all"], ["/nowhere/at/all"]),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_options(run, options, texts):
    status, output = run(*options)
    flat = " ".join(output.replace("│", " ").split())
    assert status == 2, output
    assert "Traceback" not in output
    for text in texts:
        assert text in flat


def test_a_corpus_without_text(run, tmp_path):
    (tmp_path / "empty").mkdir()
    status, output = run("--data.source.path", str(tmp_path / "empty"))
    assert status == 2
    assert str(tmp_path / "empty") in output


def test_a_json_line_that_does_not_parse(run, tmp_path):
    lines = [json.dumps({"text": "word " * 50})] * 4
    lines[2] = '{"text": "no end'
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    path = str(tmp_path / "documents.jsonl")
    status, output = run("--data.source", "JsonLines", "--data.source.path", path)
    assert status == 2
    assert path in output
    assert "3" in output.replace(path, "")


def test_a_run_folder_with_another_configuration(run, tmp_path):
    with pytest.raises(AssertionError):
        run()
    before = (tmp_path / "run" / "config.json").read_text()
    warmup = ("--optimizer.schedule.warmup-steps", "2")
    status, output = run("--model.num-layers", "4", "--optimizer", "Lion", *warmup)
    assert status == 2
    assert "model.num_layers: 2 there, 4 now" in output
    assert "optimizer.type: 'AdamW' there, 'Lion' now" in output
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_a_run_folder_whose_configuration_is_damaged(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"type": "jaxformer.config.Config", "mod')
    status, output = run()
    assert status == 2
    assert "config.json is not valid JSON" in output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("configs/tiny_decodr.py", "Did you mean 'configs/tiny_decoder.py'"),
        ("nothing/here.py", "does not exist"),
        ("--model.num-layers", "name an experiment first"),
    ],
)
def test_experiments_that_do_not_exist(run, monkeypatch, name, text):
    monkeypatch.chdir(ROOT)
    status, output = run(name=name)
    assert status == 2
    assert text in output


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x = 1", "does not define get_config"),
        ("def get_config(): return 3", "returned a int"),
        (
            "from jaxformer.models.config import DecoderConfig\n"
            "def get_config(): return DecoderConfig(vocab_size=8, num_layer=2)",
            "num_layer",
        ),
    ],
)
def test_experiment_files_that_are_none(run, tmp_path, content, text):
    (tmp_path / "broken.py").write_text(content)
    status, output = run(name=str(tmp_path / "broken.py"))
    assert status == 2
    assert text in output


def test_a_disk_that_fills_up_is_reported(capsys):
    def write():
        raise OSError(28, "No space left on device", "metrics.jsonl")

    assert cli.reporting_errors(write) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.reporting_errors(lambda: 1 / 0)
