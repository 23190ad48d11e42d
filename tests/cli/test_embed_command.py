"""`jaxformer embed`: what it prints and writes."""

import json

import numpy as np
import pytest
from sentence_models import save_transformer, save_whole

from jaxformer.cli import main as cli
from jaxformer.pretrained.embedding.api import embed, score_pairs

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    return save_transformer(folder, "BertForSequenceClassification", num_labels=1)


def run(*arguments):
    return cli.main(["embed", *map(str, arguments)])


def test_texts_are_shown_and_compared(whole, capsys):
    assert run(whole, "a cat", "the dog", "--prompt-name", "query") == 0
    shown = capsys.readouterr().out
    vectors = embed(whole, ["a cat", "the dog"], prompt_name="query")
    assert "2 vectors of 10 values" in shown
    assert "dot" in shown
    assert f"{vectors[0] @ vectors[1]:.4f}" in shown


def test_vectors_are_written(whole, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a cat\nthe dog sat\n")
    for name in ("vectors.npy", "vectors.jsonl"):
        options = ("--file", tmp_path / "texts.txt", "--output", tmp_path / name)
        assert run(whole, "sky", *options) == 0
    expected = embed(whole, ["sky", "a cat", "the dog sat"])
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), expected)
    rows = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["sky", "a cat", "the dog sat"]
    written = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(written, expected)
    capsys.readouterr()
    assert run(whole, "sky", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == rows[0].keys()
    np.testing.assert_allclose(shown["embedding"], rows[0]["embedding"], rtol=1e-5, atol=1e-6)


@pytest.mark.more
def test_a_cross_encoder_scores_the_first_with_the_others(scorer, tmp_path, capsys):
    assert run(scorer, "a cat", "the dog", "blue sky", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pairs = [("a cat", "the dog"), ("a cat", "blue sky")]
    assert [tuple(row["pair"]) for row in rows] == pairs
    expected = score_pairs(scorer, pairs)
    np.testing.assert_array_equal(np.array([row["score"] for row in rows], np.float32), expected)
    assert run(scorer, "a cat", "the dog", "--output", tmp_path / "scores.npy") == 0
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected[:1], rtol=1e-6)
    assert run(scorer, "a cat", "the dog") == 0
    assert f"{expected[0]:.4f}" in capsys.readouterr().out


def test_what_is_wrong_is_one_sentence(whole, scorer, tmp_path, capsys):
    for arguments in (
        (whole,),
        (whole, "a", "--output", tmp_path / "vectors.txt"),
        (whole, "a", "--output", tmp_path / "nowhere" / "vectors.npy"),
        (whole, "a", "--prompt-name", "qery"),
        (whole, "a", "--file", tmp_path / "nothing.txt"),
        (scorer, "a"),
        (scorer, "a", "b", "--normalize"),
        (tmp_path, "a"),
    ):
        assert run(*arguments) != 0
        found = capsys.readouterr()
        assert found.err.startswith("error: ")
        assert found.err.count("\n") == 1
        assert not found.out
