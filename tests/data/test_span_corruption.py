from collections import Counter

import numpy as np
import pytest
from corpora import token_row
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Bytes, Joined, SpanCorruption
from jaxformer.data.objectives.span_corruption import corrupt, noise_counts, noise_mask
from jaxformer.errors import ConfigError

TOKENIZER = Bytes().fit([], ["sentinels"])
SENTINELS = TOKENIZER.special_ids("sentinels")
END, PAD = TOKENIZER.end_of_text_id, TOKENIZER.pad_id

objectives = st.builds(
    SpanCorruption,
    noise_density=st.floats(0.05, 0.5),
    mean_span=st.floats(1.5, 12.0),
    final_sentinel=st.booleans(),
)


def example_of(objective, size, sequence_length, seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 256, size)
    raw = objective.raw_length(sequence_length)
    example = objective.bind(TOKENIZER, sequence_length)(token_row(tokens, raw, PAD), rng)
    return tokens, example


def merged(example):
    """The text again: each sentinel of the inputs gives way to what follows it in the targets."""
    inputs = example["inputs"][example["segments"] > 0].tolist()
    targets = example["targets"][example["weights"] > 0].tolist()
    assert (inputs.pop(), targets.pop()) == (END, END)
    sentinels = set(SENTINELS.tolist())
    spans, text = {}, []
    for token in targets:
        if token in sentinels:
            assert token not in spans
            current = spans[token] = []
        else:
            current.append(token)
    for token in inputs:
        text += spans.pop(token) if token in sentinels else [token]
    return text, spans


@given(objectives, st.integers(3, 90), st.floats(0, 1), st.integers(0, 2**32))
def test_inputs_and_targets_merge_back_into_the_text(objective, length, share, seed):
    size = 1 + int(share * (objective.raw_length(length) - 1))
    tokens, example = example_of(objective, size, length, seed)
    text, left = merged(example)
    assert text == tokens.tolist()
    assert list(left.values()) == [[]] * objective.final_sentinel, "only the final one is empty"


@given(objectives, st.integers(3, 200), st.integers(0, 2**32))
def test_a_whole_row_fills_its_shapes(objective, length, seed):
    _, example = example_of(objective, objective.raw_length(length), length, seed)
    lengths = objective.lengths(length)
    assert example["inputs"].shape == example["segments"].shape == (lengths["inputs"],) == (length,)
    assert example["targets"].shape == (lengths["decoder_inputs"],)
    for key in ("segments", "decoder_segments", "weights"):
        assert (example[key] == 1).all(), key
    assert example["inputs"][-1] == example["targets"][-1] == END
    assert example["decoder_inputs"][0] == PAD
    np.testing.assert_array_equal(example["decoder_inputs"][1:], example["targets"][:-1])


@pytest.mark.parametrize(("inputs", "raw", "targets"), [(512, 568, 114), (1024, 1137, 229)])
def test_the_lengths_of_t5(inputs, raw, targets):
    published = SpanCorruption(final_sentinel=False)
    assert published.raw_length(inputs) == raw
    assert published.lengths(inputs) == {"inputs": inputs, "decoder_inputs": targets}
    assert SpanCorruption().lengths(inputs)["decoder_inputs"] == targets + 1


@given(st.integers(20, 2000), st.floats(0.1, 0.5), st.floats(1.5, 20.0))
def test_lengths_are_the_published_helpers(inputs, density, mean_span):
    """The search of the released code, written down again: it fills the inputs exactly."""

    def becomes(length):
        noise = round(length * density)
        spans = max(1, round(noise / mean_span))
        return length - noise + spans + 1, noise + spans + 1

    length = inputs
    while becomes(length + 1)[0] <= inputs:
        length += 1
    objective = SpanCorruption(density, mean_span, final_sentinel=False)
    assert objective.raw_length(inputs) == length
    assert (inputs, objective.lengths(inputs)["decoder_inputs"]) == becomes(length)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.booleans())
def test_corruption_token_by_token(noise, final):
    """The paper's replacement of spans, one token at a time, for any mask."""
    tokens, sentinels = np.arange(1000, 1000 + len(noise)), np.arange(99, 0, -1)
    source, targets, used = [], [], 0
    for place, gone in enumerate(noise):
        begins = gone and (place == 0 or not noise[place - 1])
        if begins:
            source.append(sentinels[used])
            targets.append(sentinels[used])
            used += 1
        (targets if gone else source).append(tokens[place])
    targets += [sentinels[used]] * final
    found = corrupt(tokens, np.array(noise), sentinels, final)
    assert [part.tolist() for part in found] == [source, targets]


def test_all_masks_are_equally_likely():
    # 10 tokens, of which 4 go in 2 spans: 5 x 3 ways to cut what stays and what goes.
    rng, draws = np.random.default_rng(0), 15_000
    masks = [tuple(noise_mask(10, 0.4, 2.0, rng).tolist()) for _ in range(draws)]
    possible = set()
    for kept, gone in ((k, g) for k in range(1, 6) for g in range(1, 4)):
        stretches = [False] * kept + [True] * gone + [False] * (6 - kept) + [True] * (4 - gone)
        possible.add(tuple(stretches))
    counts = Counter(masks)
    assert set(counts) == possible
    expected = draws / len(possible)
    deviation = sum((count - expected) ** 2 / expected for count in counts.values())
    assert deviation < 36.1, "chi-squared, 14 degrees of freedom, p = 0.001"


@given(st.integers(2, 300), st.floats(0.05, 0.5), st.floats(1.5, 10.0), st.integers(0, 2**32))
def test_masks_have_the_counts_asked_for(length, density, mean_span, seed):
    noise, spans = noise_counts(length, density, mean_span)
    mask = noise_mask(length, density, mean_span, np.random.default_rng(seed))
    starts = np.flatnonzero(np.diff(mask.astype(int), prepend=0) == 1)
    assert mask.shape == (length,)
    assert (mask.sum(), len(starts)) == (noise, spans)
    assert not mask[0]
    assert mask[-1]
    assert abs(noise - density * length) <= 1
    assert spans == 1 or abs(noise / spans - mean_span) < mean_span / spans


def test_sentinels_are_the_last_ids_the_first_of_them_last():
    np.testing.assert_array_equal(SENTINELS, TOKENIZER.vocab_size - 1 - np.arange(100))
    _, example = example_of(SpanCorruption(mean_span=20.0), 500, 500, seed=0)
    used = [token for token in example["inputs"].tolist() if token > PAD]
    assert used == SENTINELS[: len(used)].tolist()
    assert len(used) == round(round(0.15 * 500) / 20)


def test_targets_are_padded_to_a_length():
    padded, plain = SpanCorruption(target_length=24), SpanCorruption()
    (_, expected), (_, found) = (example_of(each, 60, 60, seed=0) for each in (plain, padded))
    length = len(expected["targets"])
    assert padded.lengths(60) == {"inputs": 60, "decoder_inputs": 24}
    for name, array in found.items():
        size = len(expected[name])
        np.testing.assert_array_equal(array[:size], expected[name])
    assert len(found["targets"]) == 24
    assert found["weights"].sum() == expected["weights"].sum() > 0
    with pytest.raises(ConfigError, match=f"target_length = 8: must be at least the {length} "):
        SpanCorruption(target_length=8).validate(Joined(), 60)
