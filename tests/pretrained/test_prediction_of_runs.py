"""Predictions of a run are those that its evaluation measures."""

import itertools
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny_models import tiny, tiny_encoder, tiny_vision

import jaxformer
from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.config import Config
from jaxformer.data import TrainTokenizer
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.labels import Number
from jaxformer.data.tasks import (
    ColumnFile,
    ImageFolder,
    Images,
    LabelledText,
    SpanText,
    TaggedText,
)
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ArgumentError, DataError
from jaxformer.functional import Learned
from jaxformer.io.serialization import to_json
from jaxformer.models import Classification, Regression, Span, TokenClassification
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.step import TrainProgram

pytestmark = pytest.mark.more

BPE = TrainTokenizer(kind="bpe", vocab_size=300)
SIZES = {"vocab_size": 320, "num_layers": 1, "position": Learned(max_length=64)}
WORDS = ("lake", "a boat", "Zürich sells", "the red theorem", "10:45", "nobody", "paints it")


def measured(folder, config, seed=0):
    """Saves a run with random parameters.

    Returns what evaluation predicts for its validation rows, and its data.
    """
    open_run_folder(folder, config)
    data, random = config.data.prepare(folder), np.random.default_rng(seed)
    program = TrainProgram(config.model, config.optimizer, config.train, make_mesh(MeshConfig()))
    params = {
        # Large biases would give every row the same label.
        name: jax.device_put(random.normal(0, _scale(name), x.shape).astype("f4"), sharding)
        for (name, x), sharding in zip(
            program.abstract_model.shapes.items(), program.param_shardings.values(), strict=True
        )
    }
    checkpoints = Checkpointer(folder / "checkpoints", to_json(config), keep=1)
    checkpoints.save(3, {"params": params})
    checkpoints.close()
    (result,) = Evaluator(program, data, None).measure(params).values()
    return result, data


def _scale(name):
    return 0.0 if name.endswith("bias") else 3.0 if name == "embedding.table" else 1.0


def predicted(folder, records, **options):
    return open_predictor(folder, PredictionConfig(**{"batch_size": 4} | options)).predict(records)


def table(path, labels, count=17):
    """Pairs of texts; some are long."""
    random = np.random.default_rng(1)
    lines = ["a\tb\tlabel"]
    for number in range(count):
        a, b = (" ".join(random.choice(WORDS, random.integers(1, 5))) for _ in range(2))
        lines.append(f"{a}\t{b}\t{labels[number % len(labels)]}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("columns", [("a",), ("a", "b")])
@pytest.mark.quick("columns1")
def test_vectors_and_scores_of_a_run_with_a_tokenizer_of_its_own(columns, tmp_path, caplog):
    labels = ["no", "yes"]
    train, validation = (table(tmp_path / f"{side}.tsv", labels) for side in ("train", "dev"))
    data = LabelledText(
        train=train, validation=validation, text=columns, tokenizer=BPE, batch_size=4
    )
    model = tiny_encoder(**SIZES, heads=(Classification(num_labels=2),))
    run = tmp_path / "run"
    measured(run, Config(model, replace(data, sequence_length=64)))
    records = list(read_records(validation))
    texts = [tuple(record.values[name] for name in columns) for record in records]
    if len(columns) == 2:
        expected = [row["score_yes"] for row in predicted(run, records, scores=True)]
        found = jaxformer.score_pairs(run, texts)
        np.testing.assert_allclose(jax.nn.softmax(found)[:, 1], expected, atol=1e-5)
        return
    expected = [row["embedding"] for row in predicted(run, records, task="embeddings")]
    for asked in (jaxformer.load(run), str(run)):
        found = jaxformer.embed(asked, [text for (text,) in texts])
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert "the mean of the tokens' states" in caplog.text


HEADS = {
    "classes": (tiny_encoder, Classification(num_labels=3), {}, ["no", "yes", "maybe"]),
    "of a decoder": (tiny, Classification(num_labels=2, pooling="last"), {}, ["1", "0"]),
    "numbers": (tiny_encoder, Regression(), {"labels": Number()}, ["0.5", "3", "-1"]),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.quick("classes")
def test_labels_and_numbers(name, tmp_path):
    family, head, options, labels = HEADS[name]
    train, validation = (table(tmp_path / f"{side}.tsv", labels) for side in ("train", "dev"))
    data = LabelledText(
        train=train, validation=validation, text=("a", "b"), tokenizer=BPE, batch_size=4, **options
    )
    data = replace(data, sequence_length=64)
    result, datasets = measured(tmp_path / "run", Config(family(**SIZES, heads=(head,)), data))
    found = predicted(tmp_path / "run", list(read_records(validation)), scores=name == "classes")
    if name == "numbers":
        numbers = [row["score"] for row in found]
        np.testing.assert_allclose(numbers, result.predictions.predicted, atol=1e-5)
        return
    wanted = [datasets.labels[number] for number in result.predictions.predicted]
    assert [row["label"] for row in found] == wanted
    assert len(set(wanted)) > 1
    for row in found if name == "classes" else ():
        total = sum(row[f"score_{label}"] for label in datasets.labels)
        assert total == pytest.approx(1, abs=1e-5)
        assert row["score"] == row[f"score_{row['label']}"]


def test_tags_of_words_and_the_entities_that_they_mark(tmp_path):
    tags = ("O", "B-X", "I-X", "B-Y")
    sentences = [sentence.split() for sentence in WORDS + tuple(map(str.upper, WORDS))]
    numbers = itertools.count()
    lines = [[f"{word} {tags[next(numbers) % 4]}" for word in s] for s in sentences]
    file = tmp_path / "words.txt"
    file.write_text("\n\n".join("\n".join(sentence) for sentence in lines) + "\n")
    source = ColumnFile(str(file))
    data = TaggedText(train=source, validation=source, tokenizer=BPE, batch_size=4)
    model = tiny_encoder(**SIZES | {"position": Learned(max_length=128)})
    model = replace(model, heads=(TokenClassification(num_labels=4),))
    result, datasets = measured(tmp_path / "run", Config(model, data), seed=2)
    listed = [Record("x", {"words": words}) for words in sentences]
    found = predicted(tmp_path / "run", listed)
    wanted = [
        [datasets.labels[tag] for tag in row[places > 0]]
        for row, places in zip(
            result.predictions.predicted, result.predictions.weights, strict=True
        )
    ]
    assert [row["tags"] for row in found] == wanted
    assert len({tag for tags in wanted for tag in tags}) > 1
    texts = [Record("x", {"text": " ".join(words)}) for words in sentences]
    split = predicted(tmp_path / "run", texts)
    assert [row["words"] for row in split] == sentences
    assert [row["tags"] for row in split] == wanted
    assert [row["entities"] for row in split] == [row["entities"] for row in found]
    for words, row in zip(sentences, found, strict=True):
        starts = [tag for tag in row["tags"] if tag.startswith("B-")]
        assert len(row["entities"]) >= len(starts)
        assert all(e["word"] in " ".join(words) for e in row["entities"])


@pytest.mark.slow
def test_answers(tmp_path):
    context = "She paints the red boat. Nobody sells the lake, in Zürich! " * 4
    entries = [
        {"question": question, "context": context[: 40 * size], "answers": []}
        for question, size in (("Who?", 1), ("What is red?", 2), ("Lake?", 5), ("When?", 3))
    ]
    file = tmp_path / "dev.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    options = {"sequence_length": 64, "question_length": 16, "stride": 20, "batch_size": 4}
    data = SpanText(train=str(file), validation=str(file), tokenizer=BPE, **options)
    model = replace(tiny_encoder(**SIZES), heads=(Span(longest=7),))
    texts = set()
    for seed in range(3):
        run = tmp_path / f"run{seed}"
        result, datasets = measured(run, Config(model, data), seed)
        wanted, _ = datasets.validation.examples.best_answers(result)
        found = predicted(run, [Record("x", entry) for entry in entries])
        assert [row["answer"] for row in found] == wanted
        for entry, row in zip(entries, found, strict=True):
            if row["answer"]:
                assert entry["context"][row["start"] : row["end"]] == row["answer"]
        texts |= set(wanted)
    assert len(texts) > 2


def test_long_rows_are_cut_and_counted(tmp_path):
    train = table(tmp_path / "train.tsv", ["1", "0"])
    data = LabelledText(train=train, text=("a", "b"), tokenizer=BPE, sequence_length=64)
    model = tiny_encoder(**SIZES, heads=(Classification(num_labels=2),))
    measured(tmp_path / "run", Config(model, replace(data, validation=train)))
    predictor = open_predictor(tmp_path / "run", PredictionConfig(max_length=16))
    rows = [{"a": "lake " * 30, "b": "boat"}, {"a": "", "b": ""}]
    predictor.predict([Record("x", row) for row in rows])
    assert (predictor.cut, predictor.count, predictor.reader.max_length) == (1, 2, 16)
    with pytest.raises(ArgumentError, match="max_length = 65"):
        open_predictor(tmp_path / "run", PredictionConfig(max_length=65))
    (row,) = predicted(tmp_path / "run", [Record("x", {"a": "x", "b": "y"})], task="embeddings")
    assert len(row["embedding"]) == model.model_dim


def test_labels_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    labels, random, run = ("cat", "dog", "owl"), np.random.default_rng(0), tmp_path / "run"
    photos = tmp_path / "photos"
    for number, shape in enumerate([(32, 32, 3), (24, 40), (33, 21, 3)] * 3):
        folder = photos / labels[number // 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, shape, np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    source = ImageFolder(str(photos))
    size = {"image_size": (16, 24), "channels": 3}
    data = Images(source=source, validation_source=source, batch_size=4, **size)
    head, position = Classification(num_labels=3), Learned(max_length=7)
    model = tiny_vision(patch_size=(8, 8), position=position, heads=(head,), **size)
    result, _ = measured(run, Config(model, data))
    predictor = open_predictor(run, PredictionConfig(batch_size=4))
    records = list(predictor.reader.records(photos, True))
    wanted = [labels[number] for number in result.predictions.predicted]
    assert [row["label"] for row in predictor.predict(records)] == wanted
    assert len(set(wanted)) > 1
    (row,) = predicted(run, records[:1], task="embeddings", pooling="first")
    assert len(row["embedding"]) == model.model_dim
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(DataError, match=r"broken\.png: not an image that can be decoded"):
        predictor.predict([Record("x:1", {"file": str(tmp_path / "broken.png")})])
    with pytest.raises(DataError, match="holds no images"):
        predictor.reader.records(run, True)
