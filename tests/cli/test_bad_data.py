"""Wrong data files: one clear message, status 2, before compilation."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.config import load_config

# Other data than text, each with the model that reads them.
SUPERVISED = """
from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import *
from jaxformer.data.tasks.images.sources import ImageFolder
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.data.labels import Number
from jaxformer.data.tasks.parallel_text import ParallelText
from jaxformer.data.tasks.tags.sources import ColumnFile
from jaxformer.data.tasks.tags.tagged_text import TaggedText
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
    ("classes", {"rows.tsv": ""}, [], ["rows.tsv has no rows"]),
    ("classes", {"rows.tsv": "sentence\tlabel\n"}, [], ["rows.tsv has no rows"]),
    ("classes", {"rows.tsv": ROWS + "x\tc\n"}, [],
     ["num_labels = 2, but the training data has 3 labels ('a', 'b', 'c'): set num_labels = 3"]),
    ("classes", {}, ["--data.train", "none.tsv"], ["none.tsv does not exist (looked from"]),
    ("classes", {}, ["--data.sequence-length", "64"], ["has 32 positions", "length 64"]),
    ("numbers", {"rows.tsv": ROWS}, [], ["rows.tsv:", "the label 'a' is not a number"]),
    ("pairs", {"t": b"eins\n" * 8 + b"\xff\n"}, [], ["t:9: not UTF-8"]),
    ("pairs", {"s": "\n" * 9}, [], ["no line of s and t has text in both"]),
    ("tags", {"tags.txt": "one A\ntwo\n"}, [], ["tags.txt:2: 1 fields", "has 2: two"]),
    ("tags", {"tags.txt": "\n"}, [], ["tags.txt", "has no sentences"]),
    ("tags", {"dev.txt": "one A\ntwo C\n"},
     ["--data.validation", "ColumnFile", "--data.validation.path", "dev.txt"],
     ["dev.txt:2: the label 'C' is not one of the training data's: 'A', 'B'"]),
    ("images", {"images/c/notes.txt": ""}, [], ["images/c holds no images", "remove it"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "files", "options", "texts"), BAD_FILES)
def test_files(run_on, tmp_path, kind, files, options, texts):
    status, output = run_on(kind, GOOD[kind] | files, *options)
    assert status == 2, output
    assert "Traceback" not in output
    for text in texts:
        assert text in output
    assert not (tmp_path / "run").exists()


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


def test_a_folder_that_is_no_run_keeps_its_files(run_on, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, output = run_on("classes", GOOD["classes"])
    assert status == 2
    assert "contains notes.txt" in output
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_data_for_another_family(run_on, tmp_path):
    status, output = run_on("pairs", GOOD["pairs"], "--data", "DataConfig")
    assert status == 2
    assert "EncoderDecoderConfig has a decoder, for which CausalLM" in output
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
