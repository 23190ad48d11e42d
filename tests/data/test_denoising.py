from collections import Counter
from itertools import pairwise

import numpy as np
from corpora import token_row
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Bytes, Denoising, StandardLibrary, TrainTokenizer
from jaxformer.data.objectives.denoising import delete, ends_of_sentences, infill, permute_sentences

TOKENIZER = Bytes().fit([], Denoising.special_tokens)
CLS, MASK = (int(TOKENIZER.special_ids(role)[0]) for role in ("cls", "mask"))
END, PAD = TOKENIZER.end_of_text_id, TOKENIZER.pad_id
seeds = st.integers(0, 2**32)
lengths = st.integers(1, 100)
objectives = st.builds(
    Denoising,
    mask_ratio=st.floats(0, 1),
    mean_span=st.floats(0.1, 8),
    deletion=st.floats(0, 0.9),
    permute_sentences=st.booleans(),
)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(token in rest for token in part)


@given(lengths, st.floats(0, 1), st.floats(0.1, 8), seeds)
def test_infilling_hides_its_share_in_fewer_masks(length, ratio, mean_span, seed):
    tokens = np.arange(length)
    found = infill(tokens, ratio, mean_span, MASK, np.random.default_rng(seed))
    kept = found[found != MASK].tolist()
    assert is_subsequence(kept, tokens.tolist())
    assert len(kept) == length - round(ratio * length)
    assert len(found) <= length


def test_span_lengths_are_those_of_poisson():
    """Adjacent spans are distinguished by the gaps between the tokens that stay."""
    found = infill(np.arange(20_000), 0.02, 3.0, -1, np.random.default_rng(0))
    places = np.flatnonzero(found == -1)
    masks = len(places)
    hidden = 20_000 - (len(found) - masks)
    assert hidden == 400
    # Poisson(3): a share exp(-3) of the spans hides nothing, and only adds a mask.
    assert abs(hidden / masks - 3.0) < 5 * (3 / masks) ** 0.5
    lonely = places[(found[places - 1] != -1) & (found[(places + 1) % len(found)] != -1)]
    gaps = Counter((found[(lonely + 1) % len(found)] - found[lonely - 1] - 1).tolist())
    assert gaps[0] > 0
    assert gaps[2] + gaps[3] > gaps[0] + gaps[7]


def test_a_span_may_be_anywhere():
    rng, starts = np.random.default_rng(0), Counter()
    for _ in range(3000):
        found = infill(np.arange(20), 0.3, 1000.0, -1, rng).tolist()
        assert len(found) == 15
        starts[found.index(-1)] += 1
    assert set(starts) == set(range(15)), "one span of 6 tokens"
    assert sum((count - 200) ** 2 / 200 for count in starts.values()) < 36.1, "chi-squared"


@given(st.lists(st.booleans(), min_size=1, max_size=40), seeds)
def test_sentences_stay_whole_and_none_is_lost(ends, seed):
    tokens, ends = np.arange(len(ends)), np.array(ends)
    found = permute_sentences(tokens, ends, np.random.default_rng(seed))
    assert sorted(found.tolist()) == tokens.tolist()
    for token, following in pairwise(found):
        last = ends[token] or token == len(tokens) - 1
        assert last or following == token + 1


def test_all_orders_of_sentences_occur():
    rng, tokens = np.random.default_rng(0), np.arange(6)
    ends = np.array([0, 1, 0, 0, 1, 1], bool)
    orders = Counter(tuple(permute_sentences(tokens, ends, rng).tolist()) for _ in range(1200))
    assert len(orders) == 6
    assert all(abs(count - 200) < 65 for count in orders.values())


@given(lengths, st.floats(0, 0.99), seeds)
def test_deletion_drops_its_share(length, share, seed):
    tokens = np.arange(length)
    found = delete(tokens, share, np.random.default_rng(seed)).tolist()
    assert is_subsequence(found, tokens.tolist())
    assert len(found) == max(1, length - round(share * length))


def test_sentences_end_with_a_stop_a_line_or_the_document():
    texts = [document.text for document in StandardLibrary(max_bytes=50_000).documents()]
    tokenizer = TrainTokenizer("bpe", 400).fit(texts)
    ends = ends_of_sentences(tokenizer)
    ids = tokenizer.encode("One word. Two, words! Three?\nNone")
    stops = [tokenizer.decode([token])[-1] for token in ids[ends[ids]]]
    assert stops == [".", "!", "?", "\n"]
    assert ends[tokenizer.end_of_text_id]
    assert not ends[tokenizer.pad_id]


def row_of(text, size):
    return token_row(TOKENIZER.encode(text)[:size], size, PAD)


@given(objectives, st.text(min_size=1, max_size=80), st.integers(3, 60), seeds)
def test_the_decoder_gives_the_text_back(objective, text, length, seed):
    row = row_of(text, objective.raw_length(length))
    example = objective.bind(TOKENIZER, length)(row, np.random.default_rng(seed))
    assert all(value.shape == (length,) for value in example.values())
    counted = example["weights"] > 0
    expected = [CLS, *row.tokens[row.valid], END]
    assert example["targets"][counted].tolist() == expected
    assert example["decoder_inputs"][counted].tolist() == [END, *expected[:-1]]
    np.testing.assert_array_equal(example["decoder_segments"], counted)
    inputs = example["inputs"][example["segments"] > 0].tolist()
    assert (inputs[0], inputs[-1]) == (CLS, END)
    assert not Counter(inputs) - Counter(expected) - Counter([MASK] * length)
    assert (example["inputs"][example["segments"] == 0] == PAD).all()


def test_without_noise_inputs_are_the_targets():
    objective = Denoising(mask_ratio=0.0, permute_sentences=False)
    row = row_of("One. Two. Three.", 30)
    example = objective.bind(TOKENIZER, 32)(row, np.random.default_rng(0))
    np.testing.assert_array_equal(example["inputs"], example["targets"])
