"""Whatever a user gets wrong: one clear message, status 2, before anything compiles."""

import contextlib
import errno
import io
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.cli import main as cli
from jaxformer.cli.errors import reporting_errors
from jaxformer.config import load_config
from jaxformer.errors import ArgumentError
from jaxformer.training import loop

ROOT = Path(__file__).parents[1]

EXPERIMENT = """
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.models import DecoderConfig
from jaxformer.optim.optimizers import AdamW
from jaxformer.optim.schedules import Constant

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


# Other data than text, each with the model that reads them.
SUPERVISED = """
from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import *
from jaxformer.data.tasks.image_sources import ImageFolder
from jaxformer.data.tasks.images import Images
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.data.labels import Number
from jaxformer.data.tasks.parallel_text import ParallelText
from jaxformer.data.tasks.tag_sources import ColumnFile
from jaxformer.data.tasks.tagged_text import TaggedText
from jaxformer.functional.positions.schemes import Learned
from jaxformer.models import *
from jaxformer.optim.optimizers import AdamW
from jaxformer.optim.schedules import Constant

SIZES = dict(num_layers=1, model_dim=16, num_heads=2, mlp_dim=16)
TEXT = SIZES | dict(vocab_size=264)
BYTES = dict(tokenizer=Bytes(), batch_size=4, validation_fraction=0.3)
ENCODER = EncoderConfig(**TEXT, position=Learned(32), heads=(Classification(num_labels=2),))
VISION = VisionConfig(
    **SIZES, image_size=(8, 8), patch_size=(4, 4), channels=1, position=Learned(5),
    heads=(Classification(num_labels=2),),
)
LABELLED = LabelledText(train="rows.tsv", sequence_length=32, **BYTES)
PARALLEL = ParallelText(source="s", target="t", source_length=16, target_length=16, **BYTES)
TAGGED = TaggedText(train=ColumnFile("tags.txt"), sequence_length=32, **BYTES)
IMAGES = Images(source=ImageFolder("images"), batch_size=4, validation_fraction=0.3)

def get_config():
    return Config(%s, AdamW(schedule=Constant(warmup_steps=0)), TrainConfig(steps=3))
"""
PARTS = {
    "classes": "ENCODER, LABELLED",
    "numbers": "replace(ENCODER, heads=(Regression(),)), replace(LABELLED, labels=Number())",
    "pairs": "EncoderDecoderConfig(**TEXT), PARALLEL",
    "tags": "replace(ENCODER, heads=(TokenClassification(num_labels=2),)), TAGGED",
    "images": "VISION, IMAGES",
}
ROWS = "sentence\tlabel\n" + "".join(f"text {n}\t{'ab'[n % 2]}\n" for n in range(20))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
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
            status = cli.main(["train", *arguments])
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
        (["--model.num-layer", "3"], ["--model.num-layer", "did you mean --model.num-layers?"]),
        (["--modle.num-layers", "3"], ["did you mean --model.num-layers?"]),
        (["--model.num-layers", "three"], ["--model.num-layers", "three"]),
        (["--model.num-layers", "0"], ["num_layers = 0", "from 1"]),
        (["--model.position", "rop"], ["RoPE", "ALiBi", "did you mean 'RoPE'"]),
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
        (["--mesh.data", "-2"], ["mesh.data = -2"]),
        (["--mesh.data", "4294967296"], ["needs 4294967296 devices, 8 are here."]),
        (["--mesh.data", str(2**32), "--mesh.fsdp", str(2**32)], [f"needs {2**64} devices"]),
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
        (["--optimizer.schedule.warmup-steps", "20"], ["warmup_steps = 20", "10 steps"]),
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


@pytest.fixture
def run_on(run, tmp_path, monkeypatch):
    """Starts a supervised experiment on files; returns the status and what was printed."""
    monkeypatch.chdir(tmp_path)

    def start(kind, files, *options):
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (tmp_path / "supervised.py").write_text(SUPERVISED % PARTS[kind])
        return run(*options, name=str(tmp_path / "supervised.py"))

    return start


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "png")
    return file.getvalue()


PICTURES = {f"images/{label}/{n}.png": picture() for label in "ab" for n in range(4)}
GOOD = {
    "classes": {"rows.tsv": ROWS},
    "numbers": {"rows.tsv": "sentence\tlabel\n" + "".join(f"x{n}\t{n}.5\n" for n in range(20))},
    "pairs": {"s": "one\n" * 9, "t": "eins\n" * 9},
    "tags": {"tags.txt": "one A\ntwo B\n\n" * 9},
    "images": PICTURES,
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_supervised_experiments_themselves_are_fine(run_on, kind):
    with pytest.raises(AssertionError, match="training program"):
        run_on(kind, GOOD[kind])


DEV = ("--data.validation", "dev.tsv")
# The kind of data, the files that differ from good ones, options, and what must be said.
BAD_FILES = [
    ("classes", {"dev.tsv": "sentence\tlabel\nx\ta\ny\tc\n"}, DEV,
     ["dev.tsv:3: the label 'c' is not one of the training data's: 'a', 'b'"]),
    ("classes", {}, ["--data.label", "gold"],
     ["rows.tsv:2: no column 'gold'; the columns are: 'sentence', 'label'"]),
    ("classes", {}, ["--data.text", "text"], ["rows.tsv:2: no column 'text'", "'sentence'"]),
    ("classes", {"rows.tsv": ROWS + "x\ta\tb\n"}, [], ["rows.tsv:22: 3 fields", "has 2"]),
    ("classes", {"rows.tsv": ""}, [], ["rows.tsv has no rows"]),
    ("classes", {"rows.tsv": "sentence\tlabel\n"}, [], ["rows.tsv has no rows"]),
    ("classes", {"rows.tsv": ROWS.encode() + b"caf\xe9\ta\n"}, [], ["rows.tsv:22: not UTF-8"]),
    ("classes", {"rows.tsv": ROWS.encode("utf-16")}, [], ["rows.tsv:1: not UTF-8", "convert"]),
    ("classes", {"rows.tsv": ROWS + "x\t \n"}, [], ["rows.tsv:22: no label: column 'label'"]),
    ("classes", {"rows.jsonl": '{"sentence": "x", "label": null}'},
     ["--data.train", "rows.jsonl"], ["rows.jsonl:1: no label: column 'label' holds None"]),
    ("classes", {"rows.tsv": ROWS + "x\tc\n"}, [],
     ["num_labels = 2, but the training data have 3 labels ('a', 'b', 'c'): set num_labels = 3"]),
    ("classes", {}, ["--data.train", "none.tsv"], ["none.tsv does not exist (looked from"]),
    ("classes", {}, ["--data.sequence-length", "64"], ["has 32 positions", "length 64"]),
    ("classes", {"rows.tsv": ROWS + "z" * 40 + "\ta\n"}, [],
     ["rows.tsv:22: 42 tokens, more than data.sequence_length = 32", "set data.sequence_length to "
      "42, which the model's positions must reach, or cut them with --data.truncate"]),
    ("numbers", {"rows.tsv": ROWS}, [], ["rows.tsv:", "the label 'a' is not a number"]),
    ("pairs", {"t": "eins\n" * 7}, [], ["s has 9 lines and t has 7"]),
    ("pairs", {"t": b"eins\n" * 8 + b"\xff\n"}, [], ["t:9: not UTF-8"]),
    ("pairs", {"s": "\n" * 9}, [], ["no line of s and t has text in both"]),
    ("tags", {"tags.txt": "one A\ntwo\n"}, [], ["tags.txt:2: 1 fields", "has 2: two"]),
    ("tags", {"tags.txt": "\n"}, [], ["tags.txt", "has no sentences"]),
    ("tags", {"dev.txt": "one A\ntwo C\n"},
     ["--data.validation", "ColumnFile", "--data.validation.path", "dev.txt"],
     ["dev.txt:2: the label 'C' is not one of the training data's: 'A', 'B'"]),
    ("images", {"images/c/notes.txt": ""}, [], ["images/c holds no images", "take it away"]),
    ("images", {"empty/a/notes.txt": ""}, ["--data.source.path", "empty"],
     ["empty holds no images: expected empty/LABEL/FILE"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "files", "options", "texts"), BAD_FILES)
def test_files(run_on, tmp_path, kind, files, options, texts):
    status, output = run_on(kind, GOOD[kind] | files, *options)
    assert status == 2, output
    assert "Traceback" not in output
    for text in texts:
        assert text in output
    assert not (tmp_path / "run").exists()


def test_rows_are_cut_where_that_is_asked_for(run_on, caplog):
    long = {"rows.tsv": ROWS + "z" * 40 + "\ta\n"}
    with pytest.raises(AssertionError, match="training program"):
        run_on("classes", long, "--data.truncate")
    assert "rows are longer than data.sequence_length = 32 and were cut" in caplog.text


def test_a_refused_start_leaves_what_was_there(run_on, tmp_path):
    """An empty folder stays, and a run that began there keeps all it has."""
    folder, bad = tmp_path / "run", GOOD["classes"] | {"rows.tsv": ROWS + "x\n"}
    folder.mkdir()
    assert run_on("classes", bad)[0] == 2
    assert list(folder.iterdir()) == []
    open_run_folder(folder, load_config("supervised.py"))
    (folder / "labels.json").write_text("of an earlier start")
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    assert run_on("classes", bad, "--train.log-interval", "3")[0] == 2
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before


@pytest.mark.parametrize("reason", [KeyboardInterrupt, SystemExit, MemoryError, ZeroDivisionError])
def test_a_start_that_fails_in_any_way_leaves_what_was_there(run, tmp_path, monkeypatch, reason):
    """Nothing was learned, so the folder is not bound to that experiment."""
    monkeypatch.setattr(loop, "TrainProgram", Mock(side_effect=reason))
    with contextlib.suppress(ZeroDivisionError):
        assert run()[0] in (None, 1, 130)
    assert not (tmp_path / "run").exists()
    open_run_folder(tmp_path / "run", load_config(str(tmp_path / "tiny.py")))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}')
    with contextlib.suppress(ZeroDivisionError):
        run("--fresh")
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run-1").exists()


def test_a_folder_that_is_no_run_keeps_its_files(run_on, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, output = run_on("classes", GOOD["classes"])
    assert status == 2
    assert "holds notes.txt" in output
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("kind", "data", "texts"),
    [
        ("classes", "DataConfig", ["CausalLM", "the next token, which every token of an encoder"]),
        ("pairs", "DataConfig", ["EncoderDecoderConfig has a decoder, for which CausalLM"]),
        ("images", "DataConfig", ["VisionConfig reads images, which CausalLM does not make"]),
        ("classes", "ParallelText", ["an encoder and others for a decoder, which EncoderConfig"]),
    ],
)
def test_data_for_another_family(run_on, tmp_path, kind, data, texts):
    status, output = run_on(kind, GOOD[kind], "--data", data)
    assert status == 2
    assert all(text in output for text in texts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("objective", ["SpanCorruption", "Denoising"])
def test_an_objective_that_a_decoder_cannot_serve(run, tmp_path, objective):
    status, output = run("--data.objective", objective)
    assert status == 2, output
    assert f"{objective} makes inputs for an encoder and others for a decoder" in output
    assert "which DecoderConfig does not read: use an EncoderDecoderConfig" in output
    assert not (tmp_path / "run").exists()


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
    open_run_folder(tmp_path / "run", load_config(str(tmp_path / "tiny.py")))
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
    ("name", "text"),
    [
        ("configs/tiny_decodr.py", "did you mean 'configs/tiny_decoder.py'"),
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
            "from jaxformer.models import DecoderConfig\n"
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


@pytest.mark.parametrize(
    ("config", "folder", "message"),
    [
        (
            "tiny.py",
            "run",
            "config = 'tiny.py': must be a Config; jaxformer.config.experiment.load_config",
        ),
        (None, 5, "folder = 5: must be "),
        (None, "", "folder = '': must be "),
        (None, __file__, "must be a folder, not a file"),
    ],
)
def test_arguments_of_train_that_cannot_be(config, folder, message):
    config = load_config(str(ROOT / "configs" / "tiny_decoder.py")) if config is None else config
    with pytest.raises(ArgumentError, match=message):
        loop.train(config, folder)


def test_the_folder_of_train_may_be_a_text(run, tmp_path):
    with pytest.raises(AssertionError, match="training program"):
        loop.train(load_config(str(tmp_path / "tiny.py")), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("inside", ["corpus/0.txt/run", "a" * 300, "/proc/nothing/run"])
def test_a_folder_that_cannot_be_made(run, tmp_path, inside):
    folder = str(tmp_path / inside)
    for options in ([], ["--fresh"]):
        status, output = run(*options, "--run-dir", folder)
        assert status == 2
        (message,) = output.splitlines()
        assert f"error: {folder} cannot be the folder of a run (" in message
        assert message.endswith("name another one with --run-dir")


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EMFILE]
)
def test_what_the_system_refuses_is_one_sentence(capsys, number):
    def write():
        raise OSError(number, os.strerror(number), "runs/a/loss.png")

    assert reporting_errors(write) == 1
    assert capsys.readouterr().err == f"error: runs/a/loss.png: {os.strerror(number)}.\n"


def test_wrong_arguments_are_reported(capsys):
    def refuse():
        raise ArgumentError("softcap = 0: must be positive")

    assert reporting_errors(refuse) == 2
    assert capsys.readouterr().err == "error: softcap = 0: must be positive\n"


def test_a_disk_that_fills_up_is_reported(capsys):
    def write():
        raise OSError(28, "No space left on device", "metrics.jsonl")

    assert reporting_errors(write) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError) as caught:
        reporting_errors(lambda: 1 / 0)
    assert "This is a bug in jaxformer" in caught.value.__notes__[-1]
