from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Bytes, Joined, SentencePairs, TokenStream
from jaxformer.errors import DataError

TOKENIZER = Bytes().fit([], SentencePairs.special_tokens)
CLS, SEP = (int(TOKENIZER.special_ids(role)[0]) for role in ("cls", "sep"))
END, PAD = TOKENIZER.end_of_text_id, TOKENIZER.pad_id
LABELS = ["next_sentence", "sentence_order"]
# Documents of distinct tokens, so that every piece can be identified.
DOCUMENTS = [list(range(60)), [60], list(range(61, 70)), [], list(range(70, 200))]


def stream_of(documents):
    tokens, offsets = [END], [0]
    for document in documents:
        tokens += [*document, END]
        offsets.append(len(tokens) - 1)
    return TokenStream(np.array(tokens, np.uint16), np.array(offsets, np.int64), 0)


def examples_of(length, label="next_sentence", documents=DOCUMENTS):
    objective = SentencePairs(label)
    return objective.examples(stream_of(documents), Joined(), length, TOKENIZER)


def document_of(token):
    return next(number for number, document in enumerate(DOCUMENTS) if token in document)


def halves(example):
    """The two pieces before masking, after checks of what surrounds them."""
    valid = example["segments"] > 0
    tokens, types = example["targets"][valid].tolist(), example["token_types"][valid]
    assert tokens[0] == CLS
    assert tokens[-1] == SEP
    middle = tokens.index(SEP)
    np.testing.assert_array_equal(types, np.arange(len(tokens)) > middle)
    assert not example["token_types"][~valid].any()
    assert (example["targets"][~valid] == PAD).all()
    return tokens[1:middle], tokens[middle + 1 : -1]


@pytest.mark.parametrize("label", LABELS)
@given(length=st.integers(5, 80), seed=st.integers(0, 2**32))
def test_labels_say_how_the_pieces_belong_together(label, length, seed):
    examples = examples_of(length, label)
    rng = np.random.default_rng(seed)
    for index in range(len(examples)):
        example = examples.read(index, rng)
        first, second = halves(example)
        assert first
        assert second
        assert END not in first + second
        whole = list(range(examples.starts[index], examples.ends[index]))
        whole = examples.stream.tokens[whole].tolist()
        if example[label] == 0:
            assert first + second == whole
        elif label == "sentence_order":
            assert second + first == whole
        else:
            assert first == whole[: len(first)]
            assert len(second) <= len(whole) - len(first)
            assert len({document_of(token) for token in second}) == 1
            assert document_of(first[0]) != document_of(second[0])
            assert np.diff(second).tolist() == [1] * (len(second) - 1)


@pytest.mark.parametrize("label", LABELS)
def test_labels_and_cuts_are_balanced(label):
    examples, rng = examples_of(23, label), np.random.default_rng(0)
    drawn = [examples.read(index % len(examples), rng) for index in range(2000)]
    assert abs(sum(int(example[label]) for example in drawn) - 1000) < 115
    cuts = {len(halves(example)[0]) for example in drawn}
    assert cuts == set(range(1, 20))


def test_other_pieces_come_from_all_other_documents():
    examples, rng = examples_of(23), np.random.default_rng(0)
    drawn = [examples.read(0, rng) for _ in range(500)]
    others = {token for e in drawn if e["next_sentence"] for token in halves(e)[1]}
    assert others == {*DOCUMENTS[2], *DOCUMENTS[4]}, "a document of one token makes no pair"


def test_rows_are_the_documents_cut_up():
    examples = examples_of(23)
    pieces = [
        examples.stream.tokens[start:end].tolist()
        for start, end in zip(examples.starts, examples.ends, strict=True)
    ]
    assert list(chain(*pieces)) == [*DOCUMENTS[0], *DOCUMENTS[2], *DOCUMENTS[4]]
    assert max(map(len, pieces)) == 20


@pytest.mark.parametrize("label", LABELS)
def test_tokens_are_masked_as_in_masked_language_modelling(label):
    examples, rng = examples_of(40, label), np.random.default_rng(0)
    for index in range(len(examples)):
        example = examples.read(index, rng)
        chosen = example["weights"] > 0
        assert chosen.sum() == max(1, round(0.15 * sum(map(len, halves(example)))))
        assert (example["inputs"] == example["targets"])[~chosen].all()
        assert not np.isin(example["targets"][chosen], [CLS, SEP, PAD]).any()


def test_the_next_sentence_needs_two_documents():
    with pytest.raises(DataError, match=r"next_sentence needs two documents .* and 1 of 3 have"):
        examples_of(20, documents=[[1, 2, 3], [4], []])
    assert len(examples_of(20, "sentence_order", [[1, 2, 3], [4], []])) == 1
