from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Joined, Packed, TokenStream
from jaxformer.data.objectives.base import next_tokens
from jaxformer.data.text.packing import best_fit_decreasing

END, PAD = 0, 1
DOCUMENTS = st.lists(st.integers(0, 40), min_size=1, max_size=20)
LENGTHS = st.integers(1, 17)


def stream_of(lengths):
    """Documents of distinct tokens, so that every place of the stream can be identified."""
    tokens, offsets, token = [END], [0], 2
    for length in lengths:
        tokens += [*range(token, token + length), END]
        token += length
        offsets.append(len(tokens) - 1)
    return TokenStream(np.array(tokens, np.uint16), np.array(offsets, np.int64), 0)


def examples(packing, stream, sequence_length):
    rows = packing.rows(stream, sequence_length, PAD)
    return [next_tokens(rows.read(i)) for i in range(rows.num_rows)]


@given(lengths=DOCUMENTS, size=LENGTHS)
@pytest.mark.parametrize("packing", [Joined(), Packed()], ids=str)
def test_every_token_is_an_input_and_a_target_once(packing, lengths, size):
    stream = stream_of(lengths)
    inputs, targets = Counter(), Counter()
    for example in examples(packing, stream, size):
        assert all(array.shape == (size,) for array in example.values())
        counted = example["weights"] > 0
        inputs.update(example["inputs"][counted].tolist())
        targets.update(example["targets"][counted].tolist())
        assert (example["inputs"][~counted] == PAD).all()
    assert inputs == Counter(stream.tokens[:-1].tolist())
    assert targets == Counter(stream.tokens[1:].tolist())


@given(lengths=DOCUMENTS, size=LENGTHS)
def test_joined_rows_are_the_stream_cut_up(lengths, size):
    stream = stream_of(lengths)
    rows = examples(Joined(), stream, size)
    inputs = np.concatenate([row["inputs"] for row in rows])
    weights = np.concatenate([row["weights"] for row in rows])
    count = stream.num_targets
    np.testing.assert_array_equal(inputs[:count], stream.tokens[:-1])
    np.testing.assert_array_equal(weights, np.arange(len(weights)) < count)
    assert len(weights) - count < size, "only the last row may be padded"
    assert set(rows[0]) == {"inputs", "targets", "weights"}


@given(lengths=DOCUMENTS, size=LENGTHS)
def test_packed_segments_are_pieces_of_documents(lengths, size):
    stream = stream_of(lengths)
    documents = [
        stream.tokens[start : end + 1].tolist()
        for start, end in zip(stream.offsets[:-1], stream.offsets[1:], strict=True)
    ]
    for row in examples(Packed(), stream, size):
        present = row["segments"][row["segments"] > 0]
        assert (np.diff(present) >= 0).all()
        assert set(present.tolist()) == set(range(1, len(set(present.tolist())) + 1))
        np.testing.assert_array_equal(row["segments"] > 0, row["weights"] > 0)
        np.testing.assert_array_equal(row["positions"][row["segments"] == 0], 0)
        for segment in set(present.tolist()):
            place = row["segments"] == segment
            np.testing.assert_array_equal(row["positions"][place], np.arange(place.sum()))
            piece = [*row["inputs"][place].tolist(), int(row["targets"][place][-1])]
            np.testing.assert_array_equal(row["targets"][place], piece[1:])
            assert any(
                piece == document[start : start + len(piece)]
                for document in documents
                for start in range(0, len(document), size)
            )


@pytest.mark.parametrize("packing", [Joined(), Packed()], ids=str)
def test_a_blank_row_has_the_arrays_of_the_others(packing):
    rows = packing.rows(stream_of([3, 9]), 4, PAD)
    blank, other = next_tokens(rows.blank()), next_tokens(rows.read(0))
    assert {k: (v.shape, v.dtype) for k, v in blank.items()} == {
        k: (v.shape, v.dtype) for k, v in other.items()
    }
    assert (blank["inputs"] == PAD).all()
    assert not blank["weights"].any()
    dtypes = {k: v.dtype for k, v in blank.items()}
    assert dtypes.pop("weights") == np.float32
    assert set(dtypes.values()) == {np.dtype(np.int32)}


@given(lengths=st.lists(st.integers(1, 30), max_size=60), capacity=st.integers(30, 50))
def test_best_fit_fills_rows_without_overflow(lengths, capacity):
    lengths = np.array(lengths, np.int64)
    row_of = best_fit_decreasing(lengths, capacity)
    used = np.bincount(row_of, weights=lengths) if len(lengths) else np.zeros(0)
    assert (used > 0).all()
    assert (used <= capacity).all()
    # An item opens a row only if it fits into no other, so no two rows could be made one.
    assert len(used) < 2 or np.sort(used)[:2].sum() > capacity


def test_best_fit_takes_the_tightest_row():
    # 6 and 5 open rows with 4 and 5 left of 10; the 4 fits the first exactly.
    assert best_fit_decreasing(np.array([4, 6, 5]), 10).tolist() == [0, 0, 1]


def test_packing_wastes_little_on_documents_of_many_lengths():
    stream = stream_of(np.random.default_rng(0).geometric(1 / 40, size=400))
    for packing, share in ((Packed(), 0.98), (Joined(), 0.99)):
        assert stream.num_targets > share * packing.rows(stream, 64, PAD).num_rows * 64
