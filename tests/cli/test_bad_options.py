"""Wrong options, data and run folders: one clear message, status 2, before compilation."""

import contextlib
import errno
import logging
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from typed_commands import status_of

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.cli.errors import reporting_errors
from jaxformer.config import load_config
from jaxformer.errors import ArgumentError, RunError
from jaxformer.training import loop

ROOT = Path(__file__).parents[2]
EXPERIMENTS = """
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.data.tasks import LabelledText
from jaxformer.functional import Learned
from jaxformer.models import Classification, DecoderConfig, EncoderConfig
from jaxformer.optim import AdamW, Constant

SIZES = dict(vocab_size=264, num_layers=2, model_dim=32, num_heads=4, mlp_dim=64)

def get_config(kind="decoder"):
    if kind == "decoder":
        model = DecoderConfig(**SIZES)
        data = DataConfig(TextFiles("corpus"), Bytes(), sequence_length=16, batch_size=8)
    else:
        model = EncoderConfig(**SIZES, position=Learned(32), heads=(Classification(num_labels=2),))
        rows = dict(sequence_length=32, batch_size=4, validation_fraction=0.3)
        data = LabelledText("rows.tsv", tokenizer=Bytes(), **rows)
    return Config(model, data, AdamW(schedule=Constant(warmup_steps=2)), TrainConfig(steps=10))
"""
ROWS = "sentence\tlabel\n" + "".join(f"text {n}\t{'ab'[n % 2]}\n" for n in range(20))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Starts an experiment, which must not get as far as compilation.

    Returns the status and what was printed.
    """
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for number in range(4):
        Path(f"corpus/{number}.txt").write_text(f"The dog {number} chased another dog. " * 20)
    Path("tiny.py").write_text(EXPERIMENTS)
    compiles = AssertionError("got as far as the training program")
    monkeypatch.setattr(loop, "TrainProgram", Mock(side_effect=compiles))

    def start(*options, name="tiny.py"):
        status = status_of("train", name, "--run-dir", tmp_path / "run", *options)
        output = capsys.readouterr()
        return status, output.out + output.err

    return start


@pytest.fixture
def classify(run):
    """Starts the training of a classifier of rows."""

    def start(rows, *options):
        Path("rows.tsv").write_text(rows)
        return run(*options, name="tiny.py:classifier")

    return start


def test_the_experiments_themselves_are_fine(run, classify):
    for start in (run, lambda: classify(ROWS)):
        with pytest.raises(AssertionError, match="training program"):
            start()


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ("--model.num-layer 3", ["--model.num-layer", "did you mean --model.num-layers?"]),
        ("--model.num-layers three", ["--model.num-layers", "three"]),
        ("--model.num-layers 0", ["num_layers = 0", "from 1"]),
        ("--model.position rop", ["RoPE", "ALiBi", "did you mean 'RoPE'"]),
        ("--mesh.tensor 3 --model.vocab-size 300", ["num_heads = 4", "mesh.tensor = 3"]),
        ("--mesh.data 8 --train.gradient-accumulation 2", ["data.batch_size = 8", "2 x 8 = 16"]),
        ("--data.batch-size 6 --mesh.fsdp 4", ["data.batch_size = 6", "mesh.fsdp"]),
        ("--mesh.data 16", ["needs 16 devices", "JAX_NUM_CPU_DEVICES=16"]),
        ("--mesh.data 4294967296", ["needs 4294967296 devices, 8 are here."]),
        (f"--mesh.data {2**32} --mesh.fsdp {2**32}", [f"needs {2**64} devices"]),
        (
            "--model.position Learned --model.position.max-length 8",
            ["8 positions", "sequence length 16"],
        ),
        ("--model.vocab-size 200", ["258 tokens", "model.vocab_size = 200"]),
        (
            "--data.tokenizer TrainTokenizer --data.tokenizer.vocab-size 1000",
            ["data.tokenizer.vocab_size = 1000", "model.vocab_size = 264"],
        ),
        ("--data.sequence-length 100000", ["shorter than one sequence"]),
        ("--data.source.path /nowhere/at/all", ["/nowhere/at/all"]),
    ],
)
def test_options(run, options, texts):
    status, output = run(*options.split())
    flat = " ".join(output.replace("│", " ").split())
    assert status == 2, output
    assert "Traceback" not in output
    for text in texts:
        assert text in flat


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("", (), "rows.tsv has no rows"),
        ("sentence\tlabel\n", (), "rows.tsv has no rows"),
        (
            ROWS + "x\tc\n",
            (),
            "num_labels = 2, but the training data has 3 labels ('a', 'b', 'c'): "
            "set num_labels = 3",
        ),
        (ROWS, ("--data.train", "none.tsv"), "none.tsv does not exist (looked from"),
        (ROWS, ("--data.sequence-length", "64"), "has 32 positions, fewer than"),
        (ROWS, ("--data", "DataConfig"), "CausalLM: next-token prediction needs causal attention"),
    ],
)
def test_data_that_cannot_be_learned(classify, tmp_path, rows, options, message):
    status, output = classify(rows, *options)
    assert status == 2, output
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_a_refused_start_leaves_what_was_there(classify, tmp_path):
    """An empty folder stays, and a run that began there keeps all it has."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert classify(ROWS + "x\n")[0] == 2
    assert list(folder.iterdir()) == []
    open_run_folder(folder, load_config("tiny.py:classifier"))
    (folder / "labels.json").write_text("of an earlier start")
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    assert classify(ROWS + "x\n", "--train.log-interval", "3")[0] == 2
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before


def test_a_folder_that_is_no_run_keeps_its_files(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, output = run()
    assert status == 2
    assert "contains notes.txt" in output
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("reason", [KeyboardInterrupt, SystemExit, MemoryError, ZeroDivisionError])
def test_a_start_that_fails_in_any_way_leaves_what_was_there(run, tmp_path, monkeypatch, reason):
    """Nothing was learned, so the folder is not bound to that experiment."""
    monkeypatch.setattr(loop, "TrainProgram", Mock(side_effect=reason))
    with contextlib.suppress(ZeroDivisionError):
        assert run()[0] in (None, 1, 130)
    assert not (tmp_path / "run").exists()
    open_run_folder(tmp_path / "run", load_config("tiny.py"))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}')
    with contextlib.suppress(ZeroDivisionError):
        run("--fresh")
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run-1").exists()


def test_a_run_folder_with_another_configuration(run, tmp_path):
    open_run_folder(tmp_path / "run", load_config("tiny.py"))
    before = (tmp_path / "run" / "config.json").read_text()
    warmup = ("--optimizer.schedule.warmup-steps", "2")
    status, output = run("--model.num-layers", "4", "--optimizer", "Lion", *warmup)
    assert status == 2
    assert "model.num_layers: 2 there, 4 now" in output
    assert "optimizer.type: 'AdamW' there, 'Lion' now" in output
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_a_run_folder_whose_configuration_is_damaged(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(
        '{"type": "jaxformer.config.experiment.Config", "mod'
    )
    status, output = run()
    assert status == 2
    assert "config.json: not valid JSON" in output


@pytest.mark.parametrize(
    ("config", "folder", "message"),
    [
        (5, "run", "config = 5"),
        (None, 5, "folder = 5"),
        (None, "", "folder = ''"),
        (None, __file__, "must be a folder, not a file"),
    ],
)
def test_arguments_of_train_that_cannot_be(config, folder, message):
    config = load_config(str(ROOT / "configs" / "tiny_decoder.py")) if config is None else config
    with pytest.raises(ArgumentError, match=message):
        loop.train(config, folder)


def test_the_folder_of_train_may_be_a_text(run, tmp_path):
    with pytest.raises(AssertionError, match="training program"):
        loop.train(load_config("tiny.py"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("inside", ["corpus/0.txt/run", "a" * 300, "/proc/nothing/run"])
def test_a_folder_that_cannot_be_made(run, tmp_path, inside):
    folder = str(tmp_path / inside)
    for options in ([], ["--fresh"]):
        status, output = run(*options, "--run-dir", folder)
        assert status == 2
        (message,) = output.splitlines()
        assert f"error: {folder} cannot be used as a run folder (" in message
        assert message.endswith("name another one with --run-dir")


@pytest.mark.parametrize(
    "number",
    [errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EMFILE, errno.ENOSPC],
)
def test_what_the_system_refuses_is_one_sentence(capsys, number):
    def write():
        raise OSError(number, os.strerror(number), "runs/a/loss.png")

    assert reporting_errors(write) == 1
    advice = " Earlier files are kept: free some space and continue." * (number == errno.ENOSPC)
    assert capsys.readouterr().err == f"error: runs/a/loss.png: {os.strerror(number)}.{advice}\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ArgumentError("softcap = 0: must be positive"), 2), (RunError("the connection was lost"), 1)],
)
def test_what_libraries_log_of_an_error_is_not_repeated(capsys, error, status):
    def fail():
        for library in ("absl", "gcsfs"):
            logging.getLogger(library).error("out of retries", exc_info=OSError("gone"))
        raise error

    assert reporting_errors(fail) == status
    assert capsys.readouterr().err == f"error: {error}\n"


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError) as caught:
        reporting_errors(lambda: 1 / 0)
    assert "This is a bug in jaxformer" in caught.value.__notes__[-1]
