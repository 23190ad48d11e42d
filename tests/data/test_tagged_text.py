import keyword
import tokenize
from collections import Counter
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from jaxformer.data import Bytes, TrainTokenizer
from jaxformer.data.tasks import ColumnFile, PythonTokens, TaggedText
from jaxformer.data.tasks.tags.sources import _words, read_columns
from jaxformer.errors import DataError

SENTENCES = "EU ORG\nrejects O\nGerman MISC\n\nPeter PER\nBlackburn PER\n\nBRUSSELS LOC\n"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "train.txt").write_text(SENTENCES * 3)
    (tmp_path / "dev.txt").write_text(SENTENCES)
    return TaggedText(
        train=ColumnFile(str(tmp_path / "train.txt")),
        validation=ColumnFile(str(tmp_path / "dev.txt")),
        tokenizer=Bytes(),
        sequence_length=32,
        batch_size=3,
    )


def test_the_first_piece_of_each_word_has_the_tag(config, tmp_path):
    data = config.prepare(tmp_path / "run")
    assert data.labels == ("LOC", "MISC", "O", "ORG", "PER")
    (batch,) = data.validation.epoch()
    expected = [
        [("E", "ORG"), (" ", "O"), (" ", "MISC")],
        [("P", "PER"), (" ", "PER")],
        [("B", "LOC")],
    ]
    for row in range(3):
        places = np.flatnonzero(batch["weights"][row])
        found = [
            (
                data.tokenizer.decode([batch["inputs"][row, i]]),
                data.labels[batch["targets"][row, i]],
            )
            for i in places
        ]
        assert found == expected[row]
        text = data.tokenizer.decode(batch["inputs"][row])
        assert text in ("EU rejects German", "Peter Blackburn", "BRUSSELS")


def test_a_long_sentence_is_cut_on_request(config, tmp_path):
    config = replace(config, sequence_length=10)
    message = r"train\.txt:1: 19 tokens, more than data\.sequence_length = 10, and so have 6 of 7 "
    with pytest.raises(DataError, match=message + "rows: set data.sequence_length to 28"):
        config.prepare(tmp_path / "run")
    data = replace(config, truncate=True).prepare(tmp_path / "run")
    (batch,) = data.validation.epoch(batch_size=3)
    assert batch["weights"].sum(1).tolist() == [2, 2, 1]
    assert (batch["inputs"][0] != data.tokenizer.pad_id).all()


def test_sentences_of_conll_2003(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP B-PER"
    (tmp_path / "train.txt").write_text(text)
    sentences = list(read_columns(tmp_path / "train.txt"))
    assert [[word.fields[0] for word in s] for s in sentences] == [["EU", "rejects"], ["Peter"]]
    assert sentences[1][0].fields[-1] == "B-PER"
    assert sentences[1][0].where.endswith("train.txt:7")


def test_a_file_without_sentences_is_refused(config, tmp_path):
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(DataError, match=r"train\.txt.* has no sentences"):
        config.prepare(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "tag", "message"),
    [
        ("EU NNP ORG\n", 3, r"no column 3; there are 3.*EU | NNP | ORG"),
        ("EU\nrejects\n", -1, "word=0 and tag=-1 are the same column of 1"),
    ],
)
def test_columns_that_cannot_be_are_named(tmp_path, text, tag, message):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match=rf"a\.txt:1: {message}"):
        list(ColumnFile(str(tmp_path / "a.txt"), tag=tag).sentences())


def test_python_tokens_are_those_of_the_library():
    text = (
        'def area(r):  # of a circle\n    """Say for."""\n    return 3.14 * r ** 2 if r else "0"\n'
    )
    found = [(word.text.strip(), word.tag) for _, word in _words("x.py", text)]
    assert ("for.", "string") not in found
    assert ('for."""', "string") in found
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.NAME:
            kind = "keyword" if keyword.iskeyword(token.string) else "name"
            assert (token.string, kind) in found
    counts = Counter(tag for _, tag in found)
    assert counts == {
        "keyword": 4, "name": 4, "operator": 5, "number": 2, "string": 3, "comment": 4
    }  # fmt: skip
    assert "".join(w.text for _, w in _words("x.py", "a = f(b)\n")) == "a = f(b)"


def test_a_module_that_breaks_off_gives_what_there_is():
    assert [word.text for _, word in _words("x.py", "a = (\n")] == ["a", " =", " ("]


def test_the_default_needs_no_file(tmp_path):
    config = TaggedText(
        train=PythonTokens(max_bytes=200_000),
        tokenizer=TrainTokenizer(vocab_size=400),
        sequence_length=64,
        truncate=True,
        validation_fraction=0.2,
    )
    data = config.prepare(tmp_path)
    assert data.labels == ("comment", "keyword", "name", "number", "operator", "string")
    batch = data.train.batch(0)
    assert set(np.unique(batch["targets"])) <= set(range(6))
    assert (batch["weights"] <= batch["segments"]).all()


def test_a_sentence_without_tokens_counts_for_nothing(config, tmp_path):
    spec = TrainTokenizer(kind="wordpiece", vocab_size=60)
    nothing = "\u200b"  # WordPiece takes it away
    text = (tmp_path / "train.txt").read_text() + f"\n{nothing} O\n"
    (tmp_path / "train.txt").write_text(text)
    source = ColumnFile(str(tmp_path / "train.txt"))
    data = replace(config, train=source, validation=source, tokenizer=spec)
    (batch,) = data.prepare(tmp_path / "run").validation.epoch(batch_size=20, max_batches=1)
    assert (batch["weights"].sum(1)[batch["row"] >= 0] == 0).sum() == 1
