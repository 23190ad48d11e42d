"""The scores of constant answers, which ignore the inputs: the figures to beat."""

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

import numpy as np

from jaxformer.data import Batch, Dataset
from jaxformer.models import (
    Classification,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    MultiLabel,
    Regression,
    TokenClassification,
)

_MOST_BATCHES = 50


def trivial_answers(
    heads: Sequence[Head], train: Dataset, validation: Dataset, max_batches: int | None
) -> dict[str, float]:
    """Scores the best constant answer to the training rows on the validation rows.

    For labels and tokens that is the most frequent one of the training rows (and, for the loss,
    their frequencies); for numbers it is their mean.

    Args:
        heads: The model's heads.
        train: The training rows, of which at most some batches are read.
        validation: The validation rows.
        max_batches: The most batches of the validation rows to read; None: all.

    Returns:
        Metrics as `Evaluator.evaluate` names them, for the heads that have such an answer.
    """
    seen = list(train.epoch(max_batches=_MOST_BATCHES))
    asked = list(validation.epoch(max_batches=max_batches))
    return of_heads({head.name: constant_answer(head, seen, asked) for head in heads})


@singledispatch
def constant_answer(
    head: Head, train: Iterable[Batch], validation: Iterable[Batch]
) -> dict[str, float]:
    """The scores of a head's best constant answer; empty for heads without one."""
    del head, train, validation
    return {}


@constant_answer.register(LanguageModel)
@constant_answer.register(MaskedLanguageModel)
@constant_answer.register(TokenClassification)
def _of_tokens(head, train, validation):
    return _of_choices(train, validation, "targets", "weights")


@constant_answer.register
def _(head: Classification, train, validation):
    return _of_choices(train, validation, head.label, f"{head.label}_weights")


@constant_answer.register
def _(head: MultiLabel, train, validation):
    names = head.label, f"{head.label}_weights"
    labels, weights = _rows(train, *names)
    # One row more with each label and one without, so that what the rows lack is possible.
    shares = (weights @ labels + 1.0) / (weights.sum() + 2.0)
    labels, weights = _rows(validation, *names)
    losses = -(labels * np.log(shares) + (1 - labels) * np.log(1 - shares)).mean(axis=1)
    return {"loss": float(np.average(losses, weights=weights))}


@constant_answer.register
def _(head: Regression, train, validation):
    names = head.label, f"{head.label}_weights"
    numbers, weights = _joined(train, *names)
    guess = np.average(numbers, weights=weights)
    numbers, weights = _joined(validation, *names)
    return {"squared_error": float(np.average((numbers - guess) ** 2, weights=weights))}


def _of_choices(train, validation, target: str, weight: str) -> dict[str, float]:
    choices, weights = _joined(train, target, weight)
    asked, asked_weights = _joined(validation, target, weight)
    size = int(max(choices.max(), asked.max())) + 1
    # One more of each, so that what the training rows lack is not impossible.
    counts = np.bincount(choices, weights, size) + 1.0
    true = np.bincount(asked, asked_weights, size)
    loss = -np.sum(true * np.log(counts / counts.sum())) / true.sum()
    return {"loss": float(loss), "accuracy": float(true[counts.argmax()] / true.sum())}


def _rows(batches: Iterable[Batch], value: str, weight: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of all rows, [rows, labels], and the rows' weights."""
    pairs = [(batch[value], batch[weight]) for batch in batches]
    return tuple(np.concatenate(side) for side in zip(*pairs, strict=True))


def _joined(batches: Iterable[Batch], value: str, weight: str) -> tuple[np.ndarray, np.ndarray]:
    """All values and their weights, flat."""
    pairs = [(batch[value].ravel(), batch[weight].ravel()) for batch in batches]
    return tuple(np.concatenate(side) for side in zip(*pairs, strict=True))


def of_heads(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores of the heads: "<head>_<name>", if there are several."""
    several = len(found) > 1
    return {
        f"{head}_{name}" if several else name: value
        for head, own in found.items()
        for name, value in own.items()
    }
