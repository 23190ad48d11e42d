"""jaxformer tokenize, neighbours and fill-mask, on runs and on Hugging Face checkpoints."""

import json

import pytest
from hf_checkpoints import save_checkpoint
from tiny_models import random_parameters, tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision
from typed_commands import printed, refused

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Config
from jaxformer.data import DataConfig
from jaxformer.data.tokenizers.specs import Bytes

pytestmark = pytest.mark.more

SPECIAL = ("cls", "sep", "mask")


def make_run(folder, model):
    write_run(folder, Config(model, DataConfig(tokenizer=Bytes())), 0, random_parameters(model))
    Bytes().fit((), SPECIAL).save(folder / "tokenizer")
    return folder


def ids_of(capsys, *arguments):
    text = printed(capsys, "tokenize", *arguments, "--json")
    return [[token["id"] for token in json.loads(line)["tokens"]] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        (tiny(vocab_size=261), [256], []),
        (tiny_encoder_decoder(vocab_size=261), [], [256]),
        (tiny_encoder(vocab_size=261), [258], [259]),
    ],
    ids=["decoder", "encoder-decoder", "encoder"],
)
def test_a_run_reads_a_text_as_in_training(model, before, after, tmp_path, capsys):
    run = make_run(tmp_path / "run", model)
    assert ids_of(capsys, run, "a [MASK]") == [[*before, *b"a [MASK]", *after]]
    assert ids_of(capsys, run / "checkpoints" / "0", "a") == [[*before, *b"a", *after]]


def test_the_lines_of_a_file(tmp_path, capsys):
    run, file = make_run(tmp_path / "run", tiny(vocab_size=261)), tmp_path / "lines.txt"
    file.write_text("a\r\n\nbé")
    assert ids_of(capsys, run, "--file", file) == [[256, 97], [256], [256, *"bé".encode()]]
    text = printed(capsys, "tokenize", run, "bé")
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows[0] == ["0", "<|endoftext|>", "256", "special"]
    assert rows[2] == ["2", "Ã", "195", "1-2", "'é'"]


def test_fill_mask_and_neighbours_of_a_run(tmp_path, capsys):
    run = make_run(tmp_path / "run", tiny_encoder(vocab_size=261))
    text = printed(capsys, "fill-mask", run, "a[MASK] b[MASK]", "--k", "3", "--json")
    masks = json.loads(text)["masks"]
    assert [len(mask) for mask in masks] == [3, 3]
    assert all(0 < filled["score"] <= 1 for mask in masks for filled in mask)
    assert "write [MASK] for <mask>" in refused(capsys, "fill-mask", run, "a <mask>")
    found = json.loads(printed(capsys, "neighbours", run, "a", "--k", "2", "--json"))
    assert found["token"]["id"] == 97
    assert len(found["nearest"]) == 2
    said = refused(capsys, "neighbours", run, "king")
    assert "must be one token, and is 4: k i n g; give one of these pieces" in said


def test_a_model_of_images_reads_no_text(tmp_path, capsys):
    config = Config(tiny_vision(), DataConfig(tokenizer=Bytes()))
    write_run(tmp_path / "run", config, 0, random_parameters(config.model))
    for command in ("tokenize", "neighbours"):
        said = refused(capsys, command, tmp_path / "run", "a")
        assert "has no tokenizer: an image model needs none" in said
    said = refused(capsys, "fill-mask", tmp_path / "run", "[MASK]")
    assert "must have a masked language model head" in said


@pytest.mark.torch
@pytest.mark.slow
def test_tables_are_for_people(tmp_path, capsys):
    bert = save_checkpoint("bert", tmp_path / "bert")
    text = printed(capsys, "fill-mask", bert, "the [MASK] boat", "--k", "2")
    assert text.splitlines()[0].split() == ["score", "id", "token", "text"]
    text = printed(capsys, "fill-mask", bert, "[MASK] [MASK]", "--k", "1")
    assert [line for line in text.splitlines() if line.startswith("mask")] == ["mask 1", "mask 2"]
    text = printed(capsys, "neighbours", bert, "boat", "--k", "2")
    assert text.startswith("nearest to boat (id ")
    assert "give either a text" in refused(capsys, "tokenize", bert)
