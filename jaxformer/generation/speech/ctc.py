"""Labels from the scores of frames: the likeliest path, prefix beams, and the times of labels."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from jaxformer.checks import FINITE, at_least, check_argument, check_arguments

_NEVER = -np.inf


class Hypothesis(NamedTuple):
    """Labels for some frames."""

    labels: tuple[int, ...]
    """Without blanks."""
    score: float
    """Their log-probability over all alignments, plus the added terms."""


class Interval(NamedTuple):
    """The frames of a label or a word."""

    start: int
    stop: int
    """The frame after the last."""


def best_path(log_probs: np.ndarray, *, blank: int) -> tuple[int, ...]:
    """Returns the labels of the likeliest class of each frame, from log-probabilities `[T, V]`."""
    _check(log_probs, blank)
    path = log_probs.argmax(axis=1).tolist()
    return tuple(label for label, _ in groupby(path) if label != blank)


class Scorer:
    """Terms added to the log-probability of labels during a search; this class adds nothing.

    A subclass keeps the labels of a prefix in a separate state.
    """

    separator: int | None = None
    """A label without effect after itself and at both ends, such as a space."""
    start: Any = None
    """The state without labels."""

    def after(self, state: Any, label: int) -> Any:
        """Returns the state with one more label."""
        return state

    def score(self, state: Any) -> float:
        """Returns the term for the labels so far."""
        return 0.0

    def next_scores(self, state: Any) -> np.ndarray:
        """Returns the term for each label as the next one: float64 `[V]`, or `[1]`."""
        return np.zeros(1)

    def final_score(self, state: Any) -> float:
        """Returns the term for no further label."""
        return self.score(state)


def prefix_beams(
    log_probs: np.ndarray,
    *,
    blank: int,
    num_beams: int,
    length_bonus: float = 0.0,
    scorer: Scorer | None = None,
) -> list[Hypothesis]:
    r"""Searches for the label sequence with the largest score over all of its alignments.

    .. math:: s(y) = \log \sum_{\pi \in \mathcal{B}^{-1}(y)} \prod_t p_{t, \pi_t} + \beta |y| + f(y)

    A prefix is kept with two probabilities: of the paths that end with a blank, and of those that
    end with its last label.

    Args:
        log_probs: float `[T, V]`.
        blank: The id of the blank.
        num_beams: The prefixes that are kept at each frame.
        length_bonus: β, which is added for each label.
        scorer: f, such as that of a language model. Sequences that differ only in its separators at
            the ends, or in their repeats, count as one; the likeliest spelling is kept.

    Returns:
        The kept sequences, the best one first.

    References:
        Graves, 2008, Supervised Sequence Labelling with Recurrent Neural Networks, section 7.5;
        Hannun et al., 2014 (https://arxiv.org/abs/1408.2873), algorithm 1.
    """
    _check(log_probs, blank)
    check_arguments(num_beams=(num_beams, at_least(1)), length_bonus=(length_bonus, FINITE))
    scorer = scorer or Scorer()
    classes = log_probs.shape[1]
    prefixes: list[tuple[int, ...]] = [()]
    states = [scorer.start]
    blanks, labels = np.zeros(1), np.full(1, _NEVER)
    for frame in np.asarray(log_probs, np.float64):
        total = np.logaddexp(blanks, labels)
        last = np.array([prefix[-1] if prefix else -1 for prefix in prefixes])
        # A label after itself is a new one only after a blank.
        extended = total[:, None] + frame[None, :]
        rows = np.flatnonzero(last >= 0)
        extended[rows, last[rows]] = blanks[rows] + frame[last[rows]]
        extended[:, blank] = _NEVER
        stays = np.where(last >= 0, labels + frame[last], _NEVER)
        ends = total + frame[blank]
        if scorer.separator is not None:
            rows = np.flatnonzero(last == scorer.separator)
            stays[rows] = np.logaddexp(stays[rows], extended[rows, scorer.separator])
            extended[rows, scorer.separator] = _NEVER
        place = {prefix: number for number, prefix in enumerate(prefixes)}
        for number, prefix in enumerate(prefixes):
            parent = place.get(prefix[:-1]) if prefix else None
            if parent is not None:
                # This extension of the parent is a prefix that is kept already.
                stays[number] = np.logaddexp(stays[number], extended[parent, prefix[-1]])
                extended[parent, prefix[-1]] = _NEVER
        lengths = np.array([len(prefix) for prefix in prefixes])
        added = np.array([scorer.score(state) for state in states])
        next_added = np.stack([scorer.next_scores(state) for state in states])
        kept_scores = np.logaddexp(ends, stays) + length_bonus * lengths + added
        new_scores = extended + length_bonus * (lengths[:, None] + 1) + next_added
        scores = np.concatenate([kept_scores, new_scores.ravel()])
        order = np.argsort(-scores, kind="stable")[:num_beams]
        order = order[scores[order] > _NEVER]
        count = len(prefixes)
        is_new, inside = order >= count, np.minimum(order, count - 1)
        parents, following = np.divmod(np.maximum(order - count, 0), classes)
        blanks = np.where(is_new, _NEVER, ends[inside])
        labels = np.where(is_new, extended[parents, following], stays[inside])
        olds = np.where(is_new, parents, inside).tolist()
        labelled = zip(following.tolist(), is_new, strict=True)
        news = [(label,) if new else () for label, new in labelled]
        steps = list(zip(olds, news, strict=True))
        states = [scorer.after(states[old], *new) if new else states[old] for old, new in steps]
        prefixes = [prefixes[old] + new for old, new in steps]
    totals = np.logaddexp(blanks, labels) + length_bonus * np.array([len(p) for p in prefixes])
    found = zip(prefixes, totals.tolist(), map(scorer.final_score, states), strict=True)
    return sorted(_merged(found, scorer.separator), key=lambda each: -each.score)


def _merged(
    found: Iterable[tuple[tuple[int, ...], float, float]], separator: int | None
) -> list[Hypothesis]:
    """Returns labels, with their log-probability and added terms, once for each text."""
    texts: dict[tuple[int, ...], list[tuple[float, tuple[int, ...], float]]] = {}
    for labels, total, added in found:
        first = int(labels[:1] == (separator,))
        stop = len(labels) - int(labels[first:][-1:] == (separator,))
        texts.setdefault(labels[first:stop], []).append((total, labels, added))
    merged = []
    for same in texts.values():
        _, labels, added = max(same)
        total = np.logaddexp.reduce([total for total, _, _ in same])
        merged.append(Hypothesis(labels, float(total + added)))
    return merged


def align(log_probs: np.ndarray, labels: Sequence[int], *, blank: int) -> list[Interval]:
    """Returns the frames of each label in the likeliest alignment (Viterbi).

    The labels are without blanks. ArgumentError: there are fewer frames than an alignment needs.
    """
    if not labels:
        _check(log_probs, blank)
        return []
    path = alignment_path(log_probs, labels, blank=blank)
    places = [np.flatnonzero(path == 2 * number + 1) for number in range(len(labels))]
    return [Interval(int(own[0]), int(own[-1]) + 1) for own in places]


def alignment_path(log_probs: np.ndarray, labels: Sequence[int], *, blank: int) -> np.ndarray:
    """Returns the state of each frame in the likeliest alignment (Viterbi), int `[T]`.

    States are blanks and labels in turn: state 2u + 1 is label u, and the others are blanks. See
    `align` for the arguments.
    """
    scores, skips = _lattice(log_probs, labels, blank)
    score = _first(scores)
    steps = np.zeros(scores.shape, np.int8)
    for frame in range(1, len(scores)):
        choices = _arrivals(score, skips)
        steps[frame] = choices.argmax(axis=0)
        score = choices.max(axis=0) + scores[frame]
    state = len(score) - 1
    if labels:
        state -= int(score[-2] > score[-1])
    path = np.zeros(len(scores), int)
    for frame in range(len(scores) - 1, -1, -1):
        path[frame] = state
        state -= int(steps[frame, state])
    return path


def occupancy(log_probs: np.ndarray, labels: Sequence[int], *, blank: int) -> np.ndarray:
    r"""Returns how likely an alignment of the labels is in each state at each frame.

    .. math:: \gamma_{t s} = \frac{\alpha_{t s} \beta_{t s}}{\sum_{s'} \alpha_{t s'} \beta_{t s'}}

    See `align` for the arguments.

    Returns:
        float64 `[T, 2 U + 1]`, the states of `alignment_path`; each row sums to 1.

    References:
        Graves et al., 2006 (https://www.cs.toronto.edu/~graves/icml_2006.pdf), section 4.1.
    """
    scores, skips = _lattice(log_probs, labels, blank)
    forward = _forward(scores, skips)
    # The states in reverse order are a lattice too, in which a skip leaves where it arrived.
    reverse_skips = np.concatenate([skips[2:], np.zeros(min(2, len(skips)), bool)])[::-1]
    backward = _forward(scores[::-1, ::-1], reverse_skips)[::-1, ::-1]
    joint = forward + backward - scores
    return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))


def _forward(scores: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Returns the log-probability of all paths to each state at each frame, `[T, 2 U + 1]`."""
    total = np.empty(scores.shape)
    total[0] = _first(scores)
    for frame in range(1, len(scores)):
        arrivals = np.logaddexp.reduce(_arrivals(total[frame - 1], skips), axis=0)
        total[frame] = arrivals + scores[frame]
    return total


def _lattice(
    log_probs: np.ndarray, labels: Sequence[int], blank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the score of each state at each frame, and which states are reached from two before.

    A state follows itself, the one before it, or the one before that, unless this would skip a
    blank between equal labels.
    """
    _check(log_probs, blank)
    frames = len(log_probs)
    repeats = sum(a == b for a, b in zip(labels[1:], labels[:-1], strict=True)) if labels else 0
    fits = len(labels) + repeats <= frames
    check_argument("labels", tuple(labels), fits, f"labels that {frames} frames can hold")
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    skips = np.zeros(len(states), bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    return np.asarray(log_probs, np.float64)[:, states], skips


def _first(scores: np.ndarray) -> np.ndarray:
    """Returns the scores of the first frame, which is in one of the first two states."""
    return np.where(np.arange(scores.shape[1]) < 2, scores[0], _NEVER)


def _arrivals(score: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Returns the scores with which a state is reached from itself and the two before it."""
    never = np.full(2, _NEVER)
    before = np.concatenate([never[:1], score[:-1]])
    skipped = np.where(skips, np.concatenate([never, score])[: len(score)], _NEVER)
    return np.stack([score, before, skipped])


def _check(log_probs: np.ndarray, blank: int) -> None:
    shape = np.shape(log_probs)
    check_argument("log_probs", shape, len(shape) == 2 and shape[0] > 0, "[T, V] with a frame")
    check_argument("blank", blank, 0 <= blank < shape[1], f"from 0 to {shape[1] - 1}")
