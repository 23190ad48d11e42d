"""Labels from the scores of frames: prefix beams and alignments beside all paths."""

from collections import defaultdict
from itertools import groupby, pairwise, product

import numpy as np
import pytest

from jaxformer.errors import ArgumentError
from jaxformer.generation.speech.ctc import (
    Interval,
    align,
    alignment_path,
    best_path,
    occupancy,
    prefix_beams,
)


def scores_of(frames, classes, seed=0):
    logits = 2 * np.random.default_rng(seed).standard_normal((frames, classes))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def labels_of(path, blank):
    return tuple(label for label, _ in groupby(path) if label != blank)


def all_labels(log_probs, blank):
    """Every label sequence with its log-probability."""
    frames, classes = log_probs.shape
    found = defaultdict(lambda: -np.inf)
    for path in product(range(classes), repeat=frames):
        score = sum(log_probs[t, label] for t, label in enumerate(path))
        labels = labels_of(path, blank)
        found[labels] = np.logaddexp(found[labels], score)
    return found


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("bonus", [0.0, 1.5, -2.0])
@pytest.mark.parametrize("seed", range(4))
def test_enough_beams_find_the_best_of_all_sequences(seed, bonus, blank):
    log_probs = scores_of(5, 3, seed)
    expected = all_labels(log_probs, blank)
    found = prefix_beams(log_probs, blank=blank, num_beams=200, length_bonus=bonus)
    assert len(found) == len(expected) == len({each.labels for each in found})
    for labels, score in found:
        assert score == pytest.approx(expected[labels] + bonus * len(labels), abs=1e-9)
    assert found == sorted(found, key=lambda each: -each.score)
    best = max(expected, key=lambda labels: expected[labels] + bonus * len(labels))
    assert found[0].labels == best


def test_few_beams_keep_the_best_prefixes():
    log_probs = scores_of(40, 9)
    one, ten = (prefix_beams(log_probs, blank=0, num_beams=n) for n in (1, 10))
    assert len(one) == 1
    assert len(ten) == 10
    assert ten[0].score >= one[0].score
    # A path that is nearly certain is found by any search.
    sure = np.log(np.full((6, 4), 0.01))
    path = [1, 1, 0, 1, 3, 3]
    sure[np.arange(6), path] = np.log(0.97)
    assert best_path(sure, blank=0) == prefix_beams(sure, blank=0, num_beams=2)[0].labels
    assert best_path(sure, blank=0) == (1, 1, 3)


def test_labels_need_frames():
    log_probs = scores_of(3, 3)
    assert len(align(log_probs, (1, 2, 1), blank=0)) == 3
    with pytest.raises(ArgumentError, match=r"labels = \(1, 1, 2\).*that 3 frames can hold"):
        align(log_probs, (1, 1, 2), blank=0)
    with pytest.raises(ArgumentError, match="num_beams = 0"):
        prefix_beams(log_probs, blank=0, num_beams=0)
    with pytest.raises(ArgumentError, match="blank = 3: must be from 0 to 2"):
        best_path(log_probs, blank=3)


@pytest.mark.parametrize("labels", [(), (1,), (1, 1), (1, 2), (2, 1, 2), (1, 1, 2), (2, 2, 2)])
def test_the_lattice_is_that_of_all_paths(labels):
    log_probs, blank = scores_of(5, 3), 0
    states = [blank, *(state for label in labels for state in (label, blank))]
    expected, best = np.zeros((5, len(states))), (-np.inf, None)
    for path in product(range(len(states)), repeat=5):
        if labels_of([states[s] for s in path], blank) != labels or not _advances(path, states):
            continue
        score = sum(log_probs[t, states[s]] for t, s in enumerate(path))
        best = max(best, (score, path))
        expected[np.arange(5), path] += np.exp(score)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(occupancy(log_probs, labels, blank=blank), expected, atol=1e-12)
    assert tuple(alignment_path(log_probs, labels, blank=blank)) == best[1]
    runs = [(state, len(list(group))) for state, group in groupby(best[1])]
    stops = np.cumsum([size for _, size in runs])
    said = [
        Interval(int(stop - size), int(stop))
        for (state, size), stop in zip(runs, stops, strict=True)
        if states[state] != blank
    ]
    assert align(log_probs, labels, blank=blank) == said


def _advances(path, states):
    """Whether a path begins and ends at an end, and leaves out nothing but blanks."""
    ends = path[0] < 2 and path[-1] >= len(states) - 2
    steps = pairwise(path)
    return ends and all(
        b - a in (0, 1) or (b - a == 2 and b % 2 == 1 and states[a] != states[b]) for a, b in steps
    )
