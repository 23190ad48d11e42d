from collections import Counter

import numpy as np
import pytest
from corpora import token_row
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import (
    Bytes,
    MaskedLM,
    StandardLibrary,
    TokenRow,
    TrainTokenizer,
)
from jaxformer.data.objectives.masking import Vocabulary, find_units, frame

TEXTS = [document.text for document in StandardLibrary(max_bytes=100_000).documents()]
TOKENIZERS = {
    name: spec.fit(TEXTS, MaskedLM.special_tokens)
    for name, spec in {
        "bytes": Bytes(),
        "bpe": TrainTokenizer("bpe", 500),
        "wordpiece": TrainTokenizer("wordpiece", 500),
        "unigram": TrainTokenizer("unigram", 500),
    }.items()
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
objectives = st.builds(
    MaskedLM,
    rate=st.floats(0.01, 1.0),
    whole_word=st.booleans(),
    max_span=st.none() | st.integers(1, 10),
)


def special(tokenizer, role):
    return int(tokenizer.special_ids(role)[0])


def row_of(tokenizer, size, seed=0, text=0.7, segments=False):
    """Words of a real text with end-of-text between documents, padded."""
    rng = np.random.default_rng(seed)
    ids = tokenizer.encode(TEXTS[seed % 3][100:])[: int(text * size)]
    ids = np.where(rng.random(len(ids)) < 0.05, tokenizer.end_of_text_id, ids)
    row = token_row(ids, size, tokenizer.pad_id)
    if not segments:
        return row
    numbers = 1 + np.cumsum(rng.random(size) < 0.1)
    numbers = np.where(row.valid, numbers - numbers[0] + 1, 0).astype(np.int32)
    return row._replace(segments=numbers, positions=np.zeros_like(row.tokens))


def example_of(objective, tokenizer, row, seed=0):
    function = objective.bind(tokenizer, len(row.tokens) + 2)
    return function(row, np.random.default_rng(seed))


@each_tokenizer
@given(objective=objectives, size=st.integers(1, 80), segments=st.booleans(), seed=st.integers(0))
def test_only_text_is_masked_and_at_least_one_token(tokenizer, objective, size, segments, seed):
    row = row_of(tokenizer, size, seed, segments=segments)
    example = example_of(objective, tokenizer, row, seed)
    chosen = example["weights"] > 0
    text = np.array([piece is not None for piece in tokenizer.pieces()])[example["targets"]]
    assert not (chosen & ~text).any(), "special tokens and padding are never chosen"
    assert chosen.any() == text.any()
    assert (example["inputs"] == example["targets"])[~chosen].all(), "others stay as they are"
    assert set(example["weights"].tolist()) <= {0.0, 1.0}
    if not objective.whole_word:
        assert chosen.sum() == (max(1, round(objective.rate * text.sum())) if text.any() else 0)


@each_tokenizer
def test_targets_are_the_row_in_its_frame(tokenizer):
    row = row_of(tokenizer, 40)
    example = example_of(MaskedLM(), tokenizer, row)
    count = row.valid.sum()
    assert example["targets"][0] == special(tokenizer, "cls")
    np.testing.assert_array_equal(example["targets"][1 : count + 1], row.tokens[:count])
    assert example["targets"][count + 1] == special(tokenizer, "sep")
    np.testing.assert_array_equal(example["segments"], np.arange(42) < count + 2)
    assert (example["targets"][count + 2 :] == tokenizer.pad_id).all()
    assert set(example) == {"inputs", "targets", "weights", "segments"}


def test_the_frame_of_packed_documents():
    segments = np.array([1, 1, 2, 2, 2, 0], np.int32)
    tokens = np.array([5, 6, 5, 7, 8, 1], np.int32)
    framed = frame(TokenRow(tokens, tokens, segments > 0, segments, segments), 90, 91, 1)
    assert framed["inputs"].tolist() == [90, 5, 6, 5, 7, 8, 91, 1]
    assert framed["segments"].tolist() == [1, 1, 1, 2, 2, 2, 2, 0]
    assert framed["positions"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("changes", [{}, {"max_span": 10}], ids=str)
def test_the_chosen_become_masks_others_or_stay(changes):
    tokenizer, objective = TOKENIZERS["bpe"], MaskedLM(**changes)
    row = row_of(tokenizer, 200, text=1.0)
    fates, rows = Counter(), 300
    for seed in range(rows):
        example = example_of(objective, tokenizer, row, seed)
        chosen = example["weights"] > 0
        masked = example["inputs"] == special(tokenizer, "mask")
        same = example["inputs"] == example["targets"]
        fates["mask"] += int((chosen & masked).sum())
        fates["keep"] += int((chosen & same).sum())
        fates["all"] += int(chosen.sum())
    # Tokens of a span share a fate, so their number is that of about 3.8 times fewer draws.
    for name, share in {"mask": 0.8, "keep": 0.1}.items():
        error = 4 * (share * (1 - share) / (fates["all"] / 4)) ** 0.5 + 0.1 / 500
        assert abs(fates[name] / fates["all"] - share) < error, name


def test_random_tokens_are_text_and_of_all_the_vocabulary():
    tokenizer = TOKENIZERS["bytes"]
    row = row_of(tokenizer, 200, text=1.0)
    objective = MaskedLM(rate=1.0, mask_share=0.0, random_share=1.0)
    found = np.concatenate(
        [example_of(objective, tokenizer, row, seed)["inputs"][1:-1] for seed in range(50)]
    )
    row_specials = row.tokens == tokenizer.end_of_text_id
    kept = np.tile(row_specials, 50)
    counts = np.bincount(found[~kept], minlength=tokenizer.vocab_size)
    assert not counts[256:].any()
    expected = counts.sum() / 256
    assert ((counts[:256] - expected) ** 2 / expected).sum() < 341, "chi-squared, p = 0.0003"


def test_every_place_is_chosen_equally_often():
    tokenizer = TOKENIZERS["bytes"]
    row = token_row(np.full(60, 97), 60)
    function = MaskedLM().bind(tokenizer, 62)
    counts = sum(function(row, np.random.default_rng(seed))["weights"] for seed in range(2000))
    assert counts[[0, -1]].sum() == 0
    share, expected = 9 / 60, 300
    assert (abs(counts[1:-1] - expected) < 5 * (2000 * share * (1 - share)) ** 0.5).all()


def words_of(kind, text):
    """The texts of the units that are masked together."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).astype(np.int32)
    units = find_units(ids, np.ones_like(ids), Vocabulary.of(tokenizer), whole_word=True)
    return [tokenizer.decode(ids[start:end]) for start, end in units]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
def test_words_are_told_apart(kind):
    text = "def unforgettable_name(argument1, weiß):\n    return  2*antidisestablishment"
    pieces = words_of(kind, text)
    assert "".join(pieces) == text
    words = [piece.strip() for piece in pieces]
    for word in ("unforgettable_name", "argument1", "weiß", "2", "antidisestablishment"):
        assert word in words, pieces


def test_words_of_wordpiece_are_told_apart():
    words = words_of("wordpiece", "the unforgettable argument(s) returned")
    assert words == ["the", "unforgettable", "argument", "(", "s", ")", "returned"]


@given(seed=st.integers(0, 2**32), max_span=st.none() | st.integers(1, 5))
def test_whole_words_are_chosen_whole(seed, max_span):
    tokenizer = TOKENIZERS["bpe"]
    objective = MaskedLM(rate=0.3, whole_word=True, max_span=max_span)
    example = example_of(objective, tokenizer, row_of(tokenizer, 80, seed, segments=True), seed)
    vocabulary = Vocabulary.of(tokenizer)
    units = find_units(example["targets"], example["segments"], vocabulary, whole_word=True)
    for start, end in units:
        assert len(set(example["weights"][start:end].tolist())) == 1
    longest = (units[:, 1] - units[:, 0]).max(initial=1)
    total = (units[:, 1] - units[:, 0]).sum()
    assert example["weights"].sum() <= max(longest, round(0.3 * total))


def test_spans_are_geometric_and_bounded():
    tokenizer, row = TOKENIZERS["bytes"], token_row(np.full(2000, 97), 2000)
    objective, lengths = MaskedLM(rate=0.02, max_span=10), Counter()
    for seed in range(300):
        weights = example_of(objective, tokenizer, row, seed)["weights"]
        edges = np.flatnonzero(np.diff(weights, prepend=0, append=0))
        lengths.update((edges[1::2] - edges[::2]).tolist())
    # SpanBERT's mean of 3.8; the last span of a row is cut to keep the number, rarely two touch.
    mean = sum(length * count for length, count in lengths.items()) / sum(lengths.values())
    assert 3.4 < mean < 4.0
    assert lengths[1] > lengths[2] > lengths[4] > lengths[9] > 0
