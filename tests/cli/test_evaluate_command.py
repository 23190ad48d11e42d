"""python -m jaxformer evaluate: the metrics of a run on data of one's own, and nothing else."""

import hashlib
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import random_parameters, tiny, tiny_encoder, tiny_encoder_decoder
from train_steps import DESCENT, on_devices, program_of
from typed_commands import command, printed, refused

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.checkpoints.saved_run import SavedRun, chosen_step
from jaxformer.cli.training.evaluate import Evaluation
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, TextFiles, TrainTokenizer
from jaxformer.data.tasks import LabelledText, ParallelText, SpanText
from jaxformer.distributed import MeshConfig
from jaxformer.io.serialization import to_json
from jaxformer.models import Classification, Span
from jaxformer.training.evaluation.evaluate import Evaluator

pytestmark = pytest.mark.more

BPE = TrainTokenizer(kind="bpe", vocab_size=300)
SIZES = {"vocab_size": 320, "num_layers": 1, "position": tiny().position}


def config_of(model, data, **train):
    return Config(model, data, DESCENT, TrainConfig(**train))


def make_run(folder, config, steps=(3,)):
    """A run that has not learned anything, but has other parameters at every step."""
    open_run_folder(folder, config)
    config.data.prepare(folder)
    checkpoints = Checkpointer(folder / "checkpoints", to_json(config), keep=5)
    for step in steps:
        state = {"params": random_parameters(config.model, step), "opt_state": {"m": np.zeros(3)}}
        if config.train.ema_decay is not None:
            state["ema"] = random_parameters(config.model, 100 + step)
        checkpoints.save(step, state)
    checkpoints.close()
    return folder


def contents(folder):
    """Every file of a run but what evaluations write, with its digest."""
    written = {"evaluation.json", "translations.txt"}
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in written
    }


def read(file):
    return json.loads(Path(file).read_text())


def metrics_of(folder, config, step, **changes):
    """Those of `evaluate` on all rows of data with changes."""
    program = program_of(config.model)
    shapes, shardings = program.abstract_model.shapes, program.param_shardings
    params = SavedRun(folder, step).restore(shapes, shardings)
    data = replace(config.data, **changes).prepare(folder)
    return Evaluator(program, data, None).evaluate(params)


def write_reviews(file, number, labels=("bad", "good", "so-so")):
    words = ["film", "plot", "actor", "music", "end"]
    lines = [f"the {words[n % 5]} was {n}\t{labels[n % len(labels)]}" for n in range(number)]
    file.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A classifier of reviews with two checkpoints, whose training file has moved.

    The configuration says where it is.
    """
    folder = tmp_path_factory.mktemp("reviews")
    train = write_reviews(folder / "train.tsv", 30)
    data = LabelledText(
        train=str(train),
        tokenizer=BPE,
        sequence_length=16,
        batch_size=4,
        max_validation_batches=1,
        validation_fraction=0.3,
    )
    model = tiny_encoder(**SIZES, heads=(Classification(num_labels=3),))
    config = config_of(model, data)
    make_run(folder / "run", config, steps=(3, 5))
    moved = train.rename(folder / "moved.tsv")
    return folder, replace(config, data=replace(data, train=str(moved)))


def test_a_file_of_ones_own_without_the_training_file(reviews, capsys):
    folder, config = reviews
    run, dev = folder / "run", write_reviews(folder / "dev.tsv", 11, ("so-so", "bad"))
    before = contents(run)
    output = printed(capsys, "evaluate", run, "--data.validation", dev)
    found = read(run / "evaluation.json")
    assert (found["run"], found["step"], found["rows"]) == (str(run), 5, 11)
    assert found["data"]["validation"] == str(dev)
    assert found["metrics"] == pytest.approx(metrics_of(run, config, 5, validation=str(dev)))
    assert set(found["metrics"]) == {"loss", "accuracy", "macro_f1", "matthews"}
    assert contents(run) == before
    assert "macro f1" in output
    assert str(dev) in output
    assert output.endswith(f"written to {run}/evaluation.json\n")


def test_another_step_and_another_place(reviews):
    folder, config = reviews
    run, dev = folder / "run", write_reviews(folder / "dev.tsv", 11)
    output = folder / "older.json"
    command("evaluate", run, "--step", 3, "--output", output, "--data.validation", dev)
    expected = metrics_of(run, config, 3, validation=str(dev))
    assert read(output)["step"] == 3
    assert read(output)["metrics"] == pytest.approx(expected)


def test_the_rows_that_training_held_out(reviews):
    folder, config = reviews
    run = folder / "run"
    command("evaluate", run, "--data.train", config.data.train)
    held_out = config.data.prepare(run).validation
    found = read(run / "evaluation.json")
    assert found["rows"] == held_out.num_rows > config.data.batch_size
    assert found["metrics"] == pytest.approx(metrics_of(run, config, 5))


def test_a_mesh_larger_than_the_machine_becomes_one_device(reviews, tmp_path, capsys):
    _, config = reviews
    run = make_run(tmp_path / "run", replace(config, mesh=MeshConfig(data=2, tensor=32)))
    asked = ("evaluate", run, "--data.validation", write_reviews(tmp_path / "dev.tsv", 5))
    output = printed(capsys, *asked)
    assert "on one device: the run's mesh is larger than the 8 here" in output
    on_one = read(run / "evaluation.json")["metrics"]
    command(*asked, "--mesh.tensor", 1)
    assert read(run / "evaluation.json")["metrics"] == pytest.approx(on_one)
    assert "needs 32 devices, 8 are here" in refused(capsys, *asked, "--mesh.tensor", 16)


def test_averaged_parameters_are_what_counts(reviews, tmp_path, capsys):
    _, config = reviews
    run = make_run(tmp_path / "run", config_of(config.model, config.data, ema_decay=0.9))
    dev = write_reviews(tmp_path / "dev.tsv", 9)
    assert "3 (averaged parameters)" in printed(capsys, "evaluate", run, "--data.validation", dev)
    program = program_of(config.model)
    data = replace(config.data, validation=str(dev), max_validation_batches=None)
    params = on_devices(program, random_parameters(config.model, 103))
    expected = Evaluator(program, data.prepare(run), None).evaluate(params)
    assert read(run / "evaluation.json")["metrics"] == pytest.approx(expected)


def test_a_label_that_the_run_does_not_know(reviews, capsys):
    folder, _ = reviews
    dev = write_reviews(folder / "other.tsv", 5, ("bad", "superb"))
    error = refused(capsys, "evaluate", folder / "run", "--data.validation", dev)
    assert f"{dev}:3: the label 'superb'" in error
    assert "'bad', 'good', 'so-so'" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "train.tsv does not exist.* or other validation data"),
        (("--data.validation", "nowhere.tsv"), "nowhere.tsv does not exist"),
        (("--step", "4"), r"--step 4: no such checkpoint; .* contains 3, 5"),
        (("--data.tokenizer", "Bytes"), "--data.tokenizer: must be left out"),
        (("--output", "a.tsv"), "--output a.tsv: the metrics are JSON"),
        (("--output", "nowhere/a.json"), "--output nowhere/a.json cannot be written"),
        (("--data.validations", "x"), "did you mean --data.validation?"),
        (("--train.steps", "3"), "Unknown option --train.steps"),
    ],
)
def test_what_cannot_be_done_is_said(reviews, capsys, options, message):
    folder, _ = reviews
    assert re.search(message, refused(capsys, "evaluate", folder / "run", *options))


def test_help_lists_every_option(reviews, capsys):
    folder, _ = reviews
    output = printed(capsys, "evaluate", folder / "run", "--help")
    for field in fields(Evaluation):
        assert f"--{field.name}" in output
    assert "--data.validation " in output


def test_folders_that_are_no_finished_run(reviews, tmp_path, capsys):
    _, config = reviews
    assert "is not a run folder" in refused(capsys, "evaluate", tmp_path)
    open_run_folder(tmp_path / "new", config)
    assert "has no complete checkpoint" in refused(capsys, "evaluate", tmp_path / "new")
    run = make_run(tmp_path / "run", config, steps=(3, 5))
    (run / "checkpoints/5/files.json").unlink()
    assert chosen_step(run) == 3
    said = refused(capsys, "evaluate", run, "--step", 5)
    assert "--step 5: the checkpoint is damaged (files.json is missing)" in said
    (run / "tokenizer").rename(run / "elsewhere")
    assert "run/tokenizer is missing" in refused(capsys, "evaluate", run)
    assert not (run / "tokenizer").exists()


def test_translations_go_beside_the_metrics(tmp_path, capsys):
    for side in ("src", "tgt", "dev.src", "dev.tgt"):
        lines = [f"{side[-3:]} {n}" for n in range(7 if side.startswith("dev") else 20)]
        (tmp_path / side).write_text("\n".join(lines) + "\n")
    data = ParallelText(
        source=str(tmp_path / "src"),
        target=str(tmp_path / "tgt"),
        tokenizer=BPE,
        source_length=8,
        target_length=8,
        batch_size=4,
        validation_fraction=0.2,
    )
    sizes = {name: value for name, value in SIZES.items() if name != "position"}
    config = config_of(tiny_encoder_decoder(**sizes, num_decoder_layers=1), data)
    run = make_run(tmp_path / "run", config)
    (tmp_path / "src").unlink()
    files = ("--data.validation-source", tmp_path / "dev.src")
    files += ("--data.validation-target", tmp_path / "dev.tgt")
    output = printed(capsys, "evaluate", run, *files)
    assert "writing translations for 7 validation sources" in output
    assert "source       src 0\nreference    tgt 0\ntranslation  " in output
    assert {"loss", "perplexity", "bleu", "chrf"} <= set(read(run / "evaluation.json")["metrics"])
    assert len((run / "translations.txt").read_text().splitlines()) == 8


def test_text_that_a_run_has_kept(tmp_path, capsys):
    for number in range(6):
        (tmp_path / "books").mkdir(exist_ok=True)
        (tmp_path / f"books/{number}.txt").write_text(f"book {number} is about {number**5}.\n" * 9)
    data = DataConfig(
        source=TextFiles(str(tmp_path / "books")),
        tokenizer=Bytes(),
        sequence_length=16,
        batch_size=4,
        validation_fraction=0.3,
    )
    run = make_run(tmp_path / "run", config_of(tiny(**SIZES), data))
    command("evaluate", run)
    first = read(run / "evaluation.json")
    assert {"loss", "perplexity", "accuracy", "bits_per_byte"} == set(first["metrics"])
    (tmp_path / "books").rename(tmp_path / "shelf")
    before = contents(run)
    command("evaluate", run)
    assert read(run / "evaluation.json")["metrics"] == first["metrics"]
    refused(capsys, "evaluate", run, "--data.source.path", tmp_path / "nowhere")
    command("evaluate", run, "--data.source.path", tmp_path / "shelf/2.txt")
    assert read(run / "evaluation.json")["metrics"] != first["metrics"]
    own = ("--data.validation", "TextFiles", "--data.validation.path", tmp_path / "shelf/2.txt")
    command("evaluate", run, *own)
    whole = read(run / "evaluation.json")
    size = (tmp_path / "shelf/2.txt").stat().st_size
    assert whole["rows"] == -(-(size + 1) // data.sequence_length)
    assert contents(run) == before


def test_nothing_to_measure(tmp_path, capsys):
    context = "x" * 40  # one word, longer than a window
    answers = [{"text": context, "answer_start": 0}]
    qas = [{"id": "1", "question": "?", "answers": answers}] * 2
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    data = SpanText(
        train=str(file),
        validation=str(file),
        tokenizer=Bytes(),
        sequence_length=24,
        question_length=4,
        stride=8,
        batch_size=4,
    )
    run = make_run(tmp_path / "run", config_of(tiny_encoder(**SIZES, heads=(Span(),)), data))
    assert "has a target" in refused(capsys, "evaluate", run)
    assert not (run / "evaluation.json").exists()
