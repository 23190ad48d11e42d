"""`jaxformer rows`: the first rows of every shipped kind of data, as the model sees them."""

import json

import numpy as np
import pytest
from hf_checkpoints import save_checkpoint
from PIL import Image
from typed_commands import printed, refused

pytestmark = pytest.mark.more

SENTENCE = "The old dog number {} chased another dog through the garden."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for document in range(40):
        sentences = (SENTENCE.format(n) for n in range(document, document + 9))
        (folder / f"{document:02}.txt").write_text("\n".join(sentences))
    return str(folder)


@pytest.fixture
def show(capsys, tmp_path, monkeypatch):
    """Runs the command in an empty folder; returns its JSON objects."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        lines = printed(capsys, "rows", *arguments, "--json").splitlines()
        return [json.loads(line) for line in lines if line[0] == "{"]

    return run


def learned(row, name):
    return [part["text"] for part in row["texts"][name] if part["learned"]]


def text(row, name):
    return "".join(part["text"] for part in row["texts"][name])


SMALL = ("--data.tokenizer", "TrainTokenizer", "--data.tokenizer.vocab-size", "500")
SHORT = ("--data.sequence-length", "48", "--data.batch-size", "8")
HELD_OUT = ("--data.validation-fraction", "0.2")


@pytest.mark.parametrize("name", ["gpt2", "llama", "tiny_decoder"])
def test_next_tokens(name, show, corpus, tmp_path):
    first, second = show(name, "--data.source", corpus, *SMALL, *SHORT)
    assert (first["row"], second["row"]) == (0, 1)
    assert "dog number " in text(first, "text")
    inputs, targets = (first["arrays"][each] for each in ("inputs", "targets"))
    assert inputs[1:] == targets[:-1]
    assert first["pieces"]["inputs"][0] == "<|endoftext|>"
    assert "".join(learned(first, "text")) == text(first, "text").removeprefix("<|endoftext|>")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["roberta", "ernie", "bert", "albert"])
def test_masked_tokens(name, show, corpus):
    (row,) = show(name, "--data.source", corpus, *SMALL, *SHORT, *HELD_OUT, "-n", "1")
    arrays, pieces = row["arrays"], row["pieces"]
    places = np.flatnonzero(arrays["weights"])
    assert len(places) > 0
    assert "".join(learned(row, "targets")) != ""
    assert {pieces["inputs"][0], *pieces["inputs"]} >= {"[CLS]", "[SEP]"}
    assert [p for p in places if pieces["inputs"][p] == "[MASK]"]
    if name in ("bert", "albert"):
        assert arrays[{"bert": "next_sentence", "albert": "sentence_order"}[name]] in (0, 1)


@pytest.mark.parametrize("name", ["bart", "t5", "tiny_seq2seq_span_corruption"])
def test_denoising_and_spans(name, show, corpus):
    (row,) = show(name, "--data.source", corpus, *SMALL, *SHORT, "-n", "1")
    hidden = "[MASK]" if name == "bart" else "<extra_id_0>"
    assert hidden in text(row, "inputs")
    assert "".join(learned(row, "targets")) == text(row, "targets")
    assert row["arrays"]["decoder_inputs"][1:3] == row["arrays"]["targets"][:2]


@pytest.mark.slow
def test_translation_images_and_tags(show, tmp_path):
    (row,) = show("tiny_translation", "-n", "1")
    assert text(row, "inputs").startswith("Abkhazian")
    assert "".join(learned(row, "targets")).startswith("Abchasisch")
    (row,) = show("tiny_vit", "-n", "1")
    assert row["texts"] == {}
    assert row["arrays"]["images"]["shape"] == [8, 8, 1]
    assert set(row["arrays"]["images"]) == {"dtype", "shape", "min", "mean", "max"}
    (row,) = show("tiny_encoder_tagging", "-n", "1", *SHORT)
    assert "inputs" in row["pieces"]
    assert "targets" not in row["pieces"]
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(10):
            pixels = np.full((20, 20, 3), 10 * n, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{n}.png")
    folder = ("--data.source.path", "photos", "--data.validation-source", "None")
    (row,) = show("vit", *folder, "-n", "1")
    assert row["arrays"]["images"]["shape"] == [224, 224, 3]


def test_a_terminal_has_tables(capsys, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--data.source", corpus, *SMALL, *SHORT, "-n", "1", "--tokens", "5")
    out = printed(capsys, "rows", "tiny_decoder", *options)
    assert out.startswith("row 0; training targets are in [[ ]]:\n  <|endoftext|>[[The old")
    assert "... and 43 more (--tokens)" in out
    (line,) = (line.split() for line in out.splitlines() if line.startswith("0 "))
    assert line[1:3] == ["<|endoftext|>", "0"]
    assert "rows = 0: must be" in refused(capsys, "rows", "tiny_decoder", "-n", "0")


# Tasks of a checkpoint ----------------------------------------------------------------------------


def jsonl(name, rows):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {k: str(save_checkpoint(k, folder / k)) for k in ("bert", "llama", "t5")}


@pytest.mark.torch
def test_labels_spans_choices_and_tags(show, models):
    bert = ("--init-from", models["bert"], "-n", "1", "--data.sequence-length", "48")
    labels = ["good", "bad"] * 20
    jsonl("l.jsonl", [{"text": f"the dog {n}", "label": x} for n, x in enumerate(labels)])
    row, *_ = show("finetune_classification", "--data.train", "l.jsonl", *bert)
    assert text(row, "inputs").startswith("[CLS]")
    assert row["arrays"]["label"] == 1  # "bad" comes first
    context, words = "The captain sells the red boat.", ["red", "boat"]
    asked = {"context": context, "question": "What ?"}
    answers = [{"text": [w], "answer_start": [context.index(w)]} for w in words * 10]
    jsonl("q.jsonl", [asked | {"id": str(n), "answers": a} for n, a in enumerate(answers)])
    row, *_ = show("finetune_qa", "--data.train", "q.jsonl", *bert[:-2])
    start, end = row["arrays"]["span"]
    assert "".join(row["pieces"]["inputs"][start : end + 1]).lower() in ("red", "boat")

    choice = {"sent1": "the dog", "sent2": "it"} | {f"ending{i}": f"runs {i}" for i in range(4)}
    jsonl("c.jsonl", [choice | {"label": n % 4} for n in range(40)])
    row, *_ = show("finetune_multiple_choice", "--data.train", "c.jsonl", *bert)
    assert row["arrays"]["choice"] in range(4)
    assert text(row, "inputs").count("[CLS]") == 4

    jsonl("n.jsonl", [{"tokens": ["the", "dog"], "ner_tags": ["O", "B-X"]} for _ in range(40)])
    row, *_ = show("finetune_tagging", "--data.train", "n.jsonl", *bert)
    assert "[SEP]" in row["pieces"]["inputs"]


@pytest.mark.torch
@pytest.mark.slow
def test_chats_preferences_and_summaries(show, models):
    llama = ("--init-from", models["llama"], "-n", "1", "--data.sequence-length", "64")
    said = [{"role": "user", "content": "Who paints?"}, {"role": "assistant", "content": "She."}]
    jsonl("chat.jsonl", [{"messages": said}] * 40)
    row, *_ = show("sft", "--data.train", "chat.jsonl", "--data.template", "ChatML", *llama)
    assert "Who paints?" in text(row, "text")
    assert learned(row, "text")[0].startswith("She.")

    pair = {"prompt": "Who paints?", "chosen": " She.", "rejected": " Nobody."}
    jsonl("pairs.jsonl", [pair] * 40)
    row, *_ = show("dpo", "--data.train", "pairs.jsonl", *llama)
    assert learned(row, "chosen")[0].startswith(" She.")
    assert learned(row, "rejected")[0].startswith(" Nobody.")
    judged = [(f"Who {n}?", f" She {n}.", n % 2 == 0) for n in range(40)]
    names = ("prompt", "completion", "label")
    jsonl("judged.jsonl", [dict(zip(names, each, strict=True)) for each in judged])
    row, *_ = show("kto", "--data.train", "judged.jsonl", *llama)
    assert learned(row, "answer")[0].startswith(" She ")
    assert row["arrays"]["desirable"] in (0, 1)

    pairs = ((f"the dog runs {n}", f"dog {n}") for n in range(40))
    jsonl("sums.jsonl", [{"document": text, "summary": short} for text, short in pairs])
    t5 = ("--init-from", models["t5"], "-n", "1")
    row, *_ = show("finetune_summarization", "--data.train", "sums.jsonl", *t5)
    number = text(row, "inputs").removesuffix("</s>").split()[-1]
    assert "".join(learned(row, "targets")) == f"dog {number}</s>"


@pytest.mark.torch
def test_pretraining_goes_on_with_the_tokens_of_the_run(show, models, corpus):
    row, *_ = show("pretrain", "--init-from", models["llama"], "--data.source", corpus, "-n", "1")
    assert "dog number " in text(row, "text")
