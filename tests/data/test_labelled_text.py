import dataclasses
import itertools
import json

import numpy as np
import pytest
from corpora import all_rows
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Bytes, TrainTokenizer
from jaxformer.data.labels import save_labels
from jaxformer.data.tasks import Classes, LabelledText, Number
from jaxformer.data.tasks.sequences import RowEncoder, SpecialTokens, truncated_lengths
from jaxformer.errors import DataError


def table(folder, rows, name="train.tsv", header="a\tb\tlabel"):
    file = folder / name
    file.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n")
    return str(file)


@pytest.fixture
def config(tmp_path):
    rows = [(f"first {n}", f"second{n}", "yes" if n % 3 else "no") for n in range(40)]
    return LabelledText(
        train=table(tmp_path, rows),
        text=("a", "b"),
        tokenizer=Bytes(),
        sequence_length=32,
        batch_size=4,
        validation_fraction=0.2,
    )


def test_a_pair_is_laid_out_as_bert_does(config, tmp_path):
    data = config.prepare(tmp_path / "run")
    rows, end = all_rows(data.validation), data.tokenizer.end_of_text_id
    tokens = rows["inputs"][0]
    first, second = np.flatnonzero(tokens == end)[1:].tolist()
    assert tokens[0] == end  # bytes have no [CLS]
    text = data.tokenizer.decode
    assert text(tokens[1:first]).startswith("first ")
    assert text(tokens[first + 1 : second]) == text(tokens[1:first]).replace("first ", "second")
    size = second + 1
    assert (tokens[size:] == data.tokenizer.pad_id).all()
    assert rows["segments"][0].tolist() == [1] * size + [0] * (32 - size)
    types = [0] * (first + 1) + [1] * (second - first) + [0] * (32 - size)
    assert rows["token_types"][0].tolist() == types


def test_the_usual_names_of_special_tokens_are_found(config, tmp_path):
    spec = TrainTokenizer(kind="wordpiece", vocab_size=60)
    data = dataclasses.replace(config, tokenizer=spec).prepare(tmp_path / "run")
    special = SpecialTokens.of(data.tokenizer)
    assert special == SpecialTokens.bert(*map(data.tokenizer.token_id, ("[CLS]", "[SEP]")))
    assert (all_rows(data.train)["inputs"][:, 0] == special.frames[0].gaps[0]).all()


def test_labels_are_numbered_and_kept(config, tmp_path):
    data = config.prepare(tmp_path / "run")
    assert data.labels == ("no", "yes")
    assert json.loads((tmp_path / "run" / "labels.json").read_text()) == ["no", "yes"]
    rows = all_rows(data.train)
    for tokens, label in zip(rows["inputs"], rows["label"], strict=True):
        number = int(data.tokenizer.decode(tokens).split("second")[1])
        assert label == (1 if number % 3 else 0)
    assert rows["label"].dtype == np.int32
    assert (rows["label_weights"] == 1).all()


def test_regression(config, tmp_path):
    rows = [(f"x{n}", f"y{n}", str(n / 4)) for n in range(8)]
    config = dataclasses.replace(config, train=table(tmp_path, rows), labels=Number())
    data = config.prepare(tmp_path / "run")
    rows = [all_rows(side) for side in (data.train, data.validation)]
    labels = np.concatenate([side["label"] for side in rows])
    assert labels.dtype == np.float32
    assert sorted(labels.tolist()) == [n / 4 for n in range(8)]
    assert data.labels == ()


def test_other_labels_in_the_same_folder_are_refused(tmp_path):
    save_labels(tmp_path, ["a", "b"])
    assert save_labels(tmp_path, ["a", "b"]) == ("a", "b")
    with pytest.raises(DataError, match=r"labels\.json holds the labels 'a', 'b'.* 'a', 'c'"):
        save_labels(tmp_path, ["a", "c"])


def test_whole_numbers_keep_their_order():
    assert Classes().names(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert Classes().names(["10", "9", "x"]) == ("10", "9", "x")


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 30))
def test_the_longer_text_is_cut_first(first, second, space):
    """The same as taking one token after another from the longer text, of equal ones the second."""
    kept = [first, second]
    while sum(kept) > space:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert truncated_lengths((first, second), space) == tuple(kept)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=2), st.integers(4, 20))
def test_a_row_is_never_longer_than_asked(sizes, length):
    texts = [np.full(size, 10 + number, np.int32) for number, size in enumerate(sizes)]
    row = RowEncoder(Bytes().fit(()), SpecialTokens.bert(1, 2), length).joined(texts)
    assert len(row.ids) == len(row.types) == min(length, sum(sizes) + 1 + len(sizes))
    assert row.cut == (len(row.ids) < sum(sizes) + 1 + len(sizes))
    assert row.ids[0] == 1
    assert row.ids[-1] == 2
    assert (row.ids == 2).sum() == len(sizes)
    pieces = itertools.groupby(zip(row.ids, row.types, strict=True), lambda pair: pair[1])
    assert len(list(pieces)) == len(sizes)


def test_long_rows_are_cut_on_request(config, tmp_path, caplog):
    rows = [("one", "two", "no"), ("one " * 20, "two", "yes"), ("one " * 10, "two", "yes")]
    config = dataclasses.replace(config, validation=table(tmp_path, rows, "dev.tsv"))
    message = r"dev\.tsv:3: 86 tokens, more than data\.sequence_length = 32, and so have 2 of 3 "
    with pytest.raises(DataError, match=message + "rows: set .* to 86, .*--data.truncate"):
        config.prepare(tmp_path / "run")
    data = dataclasses.replace(config, truncate=True).prepare(tmp_path / "run")
    assert "2 of 3 rows are longer than data.sequence_length = 32 and were cut" in caplog.text
    assert all_rows(data.validation)["segments"].sum(1).tolist() == [9, 32, 32]


@pytest.mark.parametrize("label", ['""', '"  "', "NaN", "[1]", "{}", "null"])
def test_a_missing_label_is_refused(config, tmp_path, label):
    file = tmp_path / "a.jsonl"
    file.write_text(
        f'{{"a": "x", "b": "y", "label": "no"}}\n{{"a": "x", "b": "y", "label": {label}}}'
    )
    with pytest.raises(DataError, match=r"a\.jsonl:2: no label: column 'label' holds"):
        dataclasses.replace(config, train=str(file)).prepare(tmp_path / "run")


@pytest.mark.parametrize("labels", [("--5", "1"), ("9" * 5000, "1"), ("\u00b2", "1")])
def test_labels_that_look_like_numbers_are_names(labels):
    assert Classes().names(labels) == tuple(sorted(labels))


@pytest.mark.parametrize("label", ["nan", "inf", "1e39", "-1e39", "1e999", "x", ""])
def test_a_number_beyond_float32_is_refused(label):
    with pytest.raises(DataError, match=r"there: the label .* is not a number"):
        Number().values([label], (), ["there"])


def test_a_label_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"label .* surrogate pair"):
        save_labels(tmp_path, ["\ud800"])


def test_a_decoder_reads_the_row_one_token_later(config, tmp_path):
    config = dataclasses.replace(config, decoder_start="pad")
    data = config.prepare(tmp_path / "run")
    assert config.lengths == {"inputs": 32, "decoder_inputs": 32}
    assert config.start_id(data.tokenizer) == data.tokenizer.pad_id
    rows = all_rows(data.train)
    assert (rows["decoder_inputs"][:, 0] == data.tokenizer.pad_id).all()
    assert (rows["decoder_inputs"][:, 1:] == rows["inputs"][:, :-1]).all()
    assert (rows["decoder_segments"] == rows["segments"]).all()
