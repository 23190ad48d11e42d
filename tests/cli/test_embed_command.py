"""`jaxformer embed`: what it prints and writes."""

import json

import numpy as np
import pytest
from sentence_models import save_transformer, save_whole
from typed_commands import command, printed, status_of

from jaxformer.pretrained.embedding.api import embed, score_pairs

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    return save_transformer(folder, "BertForSequenceClassification", num_labels=1)


def test_texts_are_shown_and_compared(whole, capsys):
    shown = printed(capsys, "embed", whole, "a cat", "the dog", "--prompt-name", "query")
    vectors = embed(whole, ["a cat", "the dog"], prompt_name="query")
    assert "2 vectors of 10 values" in shown
    assert "dot" in shown
    assert f"{vectors[0] @ vectors[1]:.4f}" in shown


def test_vectors_are_written(whole, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a cat\nthe dog sat\n")
    for name in ("vectors.npy", "vectors.jsonl"):
        options = ("--file", tmp_path / "texts.txt", "--output", tmp_path / name)
        command("embed", whole, "sky", *options)
    expected = embed(whole, ["sky", "a cat", "the dog sat"])
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), expected)
    rows = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["sky", "a cat", "the dog sat"]
    written = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(written, expected)
    capsys.readouterr()
    shown = json.loads(printed(capsys, "embed", whole, "sky", "--json"))
    assert shown.keys() == rows[0].keys()
    np.testing.assert_allclose(shown["embedding"], rows[0]["embedding"], rtol=1e-5, atol=1e-6)


def test_a_cross_encoder_scores_the_first_with_the_others(scorer, tmp_path, capsys):
    output = printed(capsys, "embed", scorer, "a cat", "the dog", "blue sky", "--json")
    rows = [json.loads(line) for line in output.splitlines()]
    pairs = [("a cat", "the dog"), ("a cat", "blue sky")]
    assert [tuple(row["pair"]) for row in rows] == pairs
    expected = score_pairs(scorer, pairs)
    np.testing.assert_array_equal(np.array([row["score"] for row in rows], np.float32), expected)
    command("embed", scorer, "a cat", "the dog", "--output", tmp_path / "scores.npy")
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected[:1], rtol=1e-6)
    assert f"{expected[0]:.4f}" in printed(capsys, "embed", scorer, "a cat", "the dog")


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
        assert status_of("embed", *arguments) != 0
        found = capsys.readouterr()
        assert found.err.startswith("error: ")
        assert found.err.count("\n") == 1
        assert not found.out
