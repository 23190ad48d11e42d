"""A config without a model: what it takes from the checkpoint, and what its export gives."""

import json
import shutil
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from corpora import write_rows
from hf_checkpoints import SENTENCES
from tiny_models import tiny
from tuned_runs import shipped

from jaxformer.cli import main as cli
from jaxformer.config import Config, load_config, validate
from jaxformer.data.labels import Number
from jaxformer.data.tasks import ColumnFile
from jaxformer.errors import ConfigError
from jaxformer.functional import T5Bias
from jaxformer.hub.describe import describe_model
from jaxformer.io.components import with_values
from jaxformer.models import (
    Classification,
    LanguageModel,
    MaskedLanguageModel,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.training import loop
from jaxformer.training.loop import train
from jaxformer.training.resolve import fill
from jaxformer.training.result import TrainResult
from jaxformer.training.transfer.fields import model_for
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch
CONFIGS = Path(__file__).parents[2] / "configs"


def table(file, labels):
    """A table with a sentence in each row, and these labels in turn."""
    pairs = zip(SENTENCES, cycle(labels), strict=False)
    return write_rows(file, [{"sentence": text, "label": label} for text, label in pairs])


def experiment(name, origin, file, **data):
    """A shipped experiment on a table, for one step."""
    return shipped(f"finetune_{name}", origin, train=file, **data)


LABELS = ("spam", "ham", "eggs")
HEADS = {
    "bert": Classification(3),
    "roberta": Classification(3),
    "gpt2": Classification(3, pooling="last", bias=False),
    "llama": Classification(3, pooling="last", bias=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_a_classifier_is_that_of_transformers(tmp_path, checkpoint, kind):
    """Its class, its labels, and its scores on batches of other lengths and pairs of texts."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    file = table(tmp_path / "train.jsonl", LABELS)
    config = experiment("classification", checkpoint(kind), file)
    train(config, tmp_path / "run")
    model = load(tmp_path / "run", dtype=None, compute_dtype="float32")
    assert model.config.heads == (HEADS[kind],)
    save(model, tmp_path / "export")

    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export").eval()
    assert theirs.config.architectures == [type(theirs).__name__]
    assert type(theirs).__name__.endswith("ForSequenceClassification")
    assert theirs.config.label2id == {"eggs": 0, "ham": 1, "spam": 2}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    run = fill(config).config.data.prepare(tmp_path / "run")
    for row in range(3):
        batch = run.train.batch(0)
        ids = batch["inputs"][row][batch["segments"][row] > 0]
        with torch.no_grad():
            expected = theirs(input_ids=torch.tensor(ids)[None].long()).logits.numpy()
        found = model.outputs({"input_ids": np.asarray(ids)[None]})["logits"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert tokenizer(text)["input_ids"] == ids.tolist()  # what the run trained on
        (answer,) = pipeline("text-classification", model=theirs, tokenizer=tokenizer)([text])
        assert answer["label"] == ("eggs", "ham", "spam")[int(np.argmax(expected))]
    for side in ("left", "right"):
        batch = tokenizer(
            ["a b", "a longer text of words"],
            padding=True,
            padding_side=side,
            return_tensors="pt",
        )
        with torch.no_grad():
            expected = theirs(**batch).logits.numpy()
        for each in (model, load(tmp_path / "export")):  # with the mask, with the padding token
            found = each.outputs({name: ids.numpy() for name, ids in batch.items()})["logits"]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama"])
@pytest.mark.quick("bert", "gpt2")
def test_rows_are_those_of_the_checkpoints_tokenizer(tmp_path, checkpoint, kind):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint(kind))
    rows = [
        {"sentence": a, "other": b, "label": "xy"[len(a) % 2]}
        for a, b in zip(SENTENCES, reversed(SENTENCES), strict=True)
    ]
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    for columns in (("sentence",), ("sentence", "other")):
        config = experiment("classification", checkpoint(kind), file, text=columns)
        config = fill(replace(config, data=replace(config.data, sequence_length=200))).config
        data = config.data.prepare(tmp_path / "-".join(columns))
        found = {
            (
                tuple(row["inputs"][row["segments"] > 0]),
                tuple(row["token_types"][row["segments"] > 0]),
            )
            for row in (data.train.examples.read(n, None) for n in range(data.train.num_rows))
        }
        encoded = [
            tokenizer(*(row[column] for column in columns), return_token_type_ids=True)
            for row in rows
        ]
        encoded = {(tuple(x["input_ids"]), tuple(x["token_type_ids"])) for x in encoded}
        if kind in ("gpt2", "llama"):  # whose model has no token types
            found, encoded = ({ids for ids, _ in side} for side in (found, encoded))
        assert found <= encoded


def test_the_head_is_what_the_data_teach(tmp_path, checkpoint):
    bert, three = checkpoint("bert"), table(tmp_path / "three.jsonl", LABELS)
    numbers = table(tmp_path / "numbers.jsonl", (0.5, 1.5))
    tags = tmp_path / "tags.txt"
    tags.write_text("\n".join("a X\nb Y\nc Z\n" for _ in range(9)))
    model = fill(experiment("tagging", bert, ColumnFile(str(tags)))).config.model
    assert (model.heads, model.pooler) == ((TokenClassification(3),), None)
    model = fill(experiment("classification", bert, three)).config.model
    assert (model.heads, model.pooler) == ((Classification(3),), "tanh")
    config = experiment("classification", bert, numbers, labels=Number())
    assert fill(config).config.model.heads == (Regression(),)
    config = experiment("qa", bert, "squad.json", stride=8, question_length=8)
    assert fill(config).config.model.heads == (Span(),)
    text = load_config(str(CONFIGS / "tiny_encoder_mlm.py")).data
    masked = fill(Config(None, text, init_from=str(bert))).config.model
    assert masked.heads == (MaskedLanguageModel(),)
    llama = load_config(str(CONFIGS / "tiny_decoder.py")).data
    again = fill(Config(None, llama, init_from=str(checkpoint("llama")))).config
    assert again.model.heads == (LanguageModel(),)
    assert fill(again).config == again


@pytest.mark.parametrize(
    ("own", "head", "there"),
    [
        (LanguageModel(), "language_model", LanguageModel()),
        (LanguageModel(), "classification", Classification(3, pooling="last", bias=False)),
        (Classification(4, pooling="mean"), "classification", Classification(3, pooling="mean")),
        (Classification(3, pooling="mean"), "classification", Classification(3, pooling="mean")),
        (TokenClassification(2), "span", Span()),
    ],
)
def test_a_model_that_no_system_is_gets_its_head_too(own, head, there):
    model = tiny(position=T5Bias(bidirectional=False), heads=(own,))
    checkpoint = describe_model(model, FORMATS.values(), {})
    assert model_for(checkpoint, head, 3) == replace(model, heads=(there,))


@pytest.mark.slow
def test_a_head_of_the_same_size_is_kept_with_its_names(tmp_path, checkpoint):
    origin = checkpoint("bert_classifier")
    theirs = ("Positive", "neutral", "NEGATIVE")
    config = fill(experiment("classification", origin, table(tmp_path / "a.jsonl", theirs))).config
    assert config.data.label_order == ("NEGATIVE", "neutral", "Positive")
    train(with_values(config, {"optimizer.schedule.learning_rate": 0.0}), tmp_path / "run")
    save(load(tmp_path / "run", dtype=None), tmp_path / "export")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "export" / name).read_bytes() == (origin / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "names"),
    [((0, 1, 2), ("negative", "neutral", "positive")), (("c", "b", "a"), ("a", "b", "c"))],
)
def test_numbers_are_the_checkpoints_labels_and_other_names_are_the_datas(
    tmp_path, checkpoint, labels, names
):
    file = table(tmp_path / "a.jsonl", labels)
    train(experiment("classification", checkpoint("bert_classifier"), file), tmp_path / "run")
    values = load(tmp_path / "run").checkpoint.hf_config.values
    assert tuple(values["id2label"].values()) == names


@pytest.mark.slow
def test_a_head_of_another_size_starts_fresh_and_that_is_said(tmp_path, checkpoint, capsys):
    origin, file = checkpoint("bert_classifier"), table(tmp_path / "a.jsonl", ("x", "y"))
    config = experiment("classification", origin, file, sequence_length=32)
    model = fill(config).config.model
    train(replace(config, model=replace(model, dropout=0.25)), tmp_path / "run")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"BertForSequenceClassification of {origin}; changed: dropout 0.0 -> 0.25" in said
    assert "head: Classification of 2 labels, newly initialized" in said
    assert "left there: heads.label.output.bias" in said


@pytest.mark.slow
def test_regression_is_what_transformers_reads(tmp_path, checkpoint):
    import torch
    from transformers import AutoModelForSequenceClassification

    file = table(tmp_path / "a.jsonl", (0.25, 4, 2.5))
    config = experiment("classification", checkpoint("bert"), file, labels=Number())
    train(config, tmp_path / "run")
    model = load(tmp_path / "run", dtype=None, compute_dtype="float32")
    save(model, tmp_path / "export")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "export").eval()
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    ids = np.array([[2, 9, 11, 30, 3]], np.int32)
    expected = theirs(torch.tensor(ids).long()).logits.detach().numpy()
    np.testing.assert_allclose(model.outputs({"input_ids": ids})["logits"], expected, atol=1e-5)


def test_the_length_is_the_checkpoints(tmp_path, checkpoint):
    file = table(tmp_path / "a.jsonl", LABELS)
    lengths = {"bert": 64, "roberta": 48, "llama": 128, "gpt2": 128}
    for kind, length in lengths.items():
        config = fill(experiment("classification", checkpoint(kind), file)).config
        assert config.data.sequence_length == length
    config = experiment("classification", checkpoint("bert"), file, sequence_length=65)
    with pytest.raises(ConfigError, match="64 positions"):
        validate(fill(config).config, 1)


def test_a_causal_classifier_does_not_read_its_first_token(tmp_path, checkpoint):
    file = table(tmp_path / "a.jsonl", LABELS)
    config = fill(experiment("classification", checkpoint("llama"), file)).config
    model = replace(config.model, heads=(Classification(3),))
    with pytest.raises(ConfigError, match=r"model.heads.0.pooling = 'first': must be 'last' or"):
        validate(replace(config, model=model), 1)


def test_what_is_no_checkpoint_is_named(tmp_path):
    data = load_config(str(CONFIGS / "tiny_decoder.py")).data
    for name, message in (
        (str(tmp_path / "none"), "must be the folder of a run or of a Hugging Face checkpoint"),
        ("nobody/has-this", "has no complete copy of nobody/has-this"),
        (str(tmp_path), "is not a run folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            fill(Config(None, data, init_from=name))


@pytest.mark.slow
def test_epochs_become_steps_of_the_rows(tmp_path, checkpoint):
    file = table(tmp_path / "a.jsonl", LABELS)
    config = experiment("classification", checkpoint("bert"), file)
    config = replace(config, train=replace(config.train, steps=None, epochs=0.5))
    train(config, tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["train"]
    rows = config.data.split()[0]
    assert (saved["epochs"], saved["steps"]) == (0.5, -(-len(rows) // 2 // 8))


def test_the_command_line_changes_the_checkpoints_model(tmp_path, checkpoint, monkeypatch, capsys):
    calls, origin = [], str(checkpoint("llama"))
    result = TrainResult(Path(), 1, finished=True)
    monkeypatch.setattr(loop, "train", lambda *arguments, **_: calls.append(arguments) or result)
    file = table(tmp_path / "a.jsonl", LABELS)
    options = ["--init-from", origin, "--data.train", file]
    heads = ["--model.dropout", "0.2", "--model.heads.0.pooling", "mean"]
    assert cli.main(["train", "finetune_classification", *options, *heads]) == 0
    model = load_config(str(CONFIGS / "finetune_classification.py"))
    model = fill(replace(model, init_from=origin, data=calls[0][0].data)).config.model
    mean = replace(model.heads[0], pooling="mean")
    assert calls[0][0].model == replace(model, dropout=0.2, heads=(mean,))
    assert calls[0][0].train.epochs == 3

    epochs = ["--train.epochs", "1.5"]
    assert cli.main(["train", "tiny_decoder", *epochs]) == 0
    assert (calls[1][0].train.steps, calls[1][0].train.epochs) == (None, 1.5)
    with pytest.raises(SystemExit):  # the data need not be there to ask for the options
        cli.main(["train", "finetune_classification", "--init-from", origin, "--help"])
    assert "--model.heads.0.num-labels" in capsys.readouterr().out
    assert cli.main(["train", "finetune_classification", "--model.dropout", "0.2"]) == 2
    assert "--init-from" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_continues_without_its_checkpoint(tmp_path, checkpoint):
    origin = tmp_path / "origin"
    shutil.copytree(checkpoint("bert_classifier"), origin)
    theirs = ("positive", "neutral", "negative")
    config = experiment("classification", origin, table(tmp_path / "a.jsonl", theirs))
    train(config, tmp_path / "run")
    shutil.rmtree(origin)
    train(replace(config, train=replace(config.train, steps=2)), tmp_path / "run")
    assert load(tmp_path / "run", step=2).config == load(tmp_path / "run", step=1).config
    with pytest.raises(ConfigError, match="must be the folder of a run or"):
        train(config, tmp_path / "other")
