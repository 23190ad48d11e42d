"""Algorithmic tasks: strings over a small alphabet, and the output of a rule for each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_field, check_fields
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource, hash_of, padded
from jaxformer.data.objectives.base import after_prefix, teacher_forced
from jaxformer.errors import ConfigError, did_you_mean

SYMBOLS = ("<pad>", "=", "<end>", "+", "?", "_", "0", "1", "2", "3", "4")
"""The text of each token: padding, the end of the input, the end of a sum, the sign between two
numbers, a hidden symbol, a blank, and the digits."""
VOCAB_SIZE = len(SYMBOLS)
PAD, EQUALS, END, PLUS, HIDDEN, BLANK, ZERO = range(7)
_SORTED_SYMBOLS = 5

Pair = tuple[np.ndarray, np.ndarray]


class Rule(NamedTuple):
    """A task: how an input of n symbols is drawn, and its output."""

    draw: Callable[[np.random.Generator, int], Pair]
    """Draws an input of n tokens and its output of at most n, both int32."""
    shortest: int
    """The minimum number of symbols of an input."""
    chance: float
    """The expected accuracy of a random guess among the possible symbols."""


def _copy(rng: np.random.Generator, size: int) -> Pair:
    bits = ZERO + rng.integers(0, 2, size)
    return bits, bits


def _reverse(rng: np.random.Generator, size: int) -> Pair:
    bits = ZERO + rng.integers(0, 2, size)
    return bits, bits[::-1]


def _parity(rng: np.random.Generator, size: int) -> Pair:
    bits = rng.integers(0, 2, size)
    return ZERO + bits, np.array([ZERO + bits.sum() % 2])


def _addition(rng: np.random.Generator, size: int) -> Pair:
    first = int(rng.integers(1, size - 1))
    terms = [rng.integers(0, 2, first), rng.integers(0, 2, size - 1 - first)]
    total = np.zeros(max(map(len, terms)) + 1, int)
    for term in terms:
        total[: len(term)] += term
    for place in range(len(total) - 1):
        total[place + 1] += total[place] // 2
        total[place] %= 2
    kept = np.max(np.flatnonzero(total), initial=0) + 1
    given = [*(ZERO + terms[0]), PLUS, *(ZERO + terms[1])]
    return np.array(given), np.array([*(ZERO + total[:kept]), END])


def _sorting(rng: np.random.Generator, size: int) -> Pair:
    symbols = ZERO + rng.integers(0, _SORTED_SYMBOLS, size)
    return symbols, np.sort(symbols)


def _missing_duplicate(rng: np.random.Generator, size: int) -> Pair:
    twice = ZERO + np.tile(rng.integers(0, 2, size // 2), 2)
    place = int(rng.integers(0, len(twice)))
    answer = twice[place]
    twice[place] = HIDDEN
    return np.concatenate([twice, np.full(size % 2, BLANK)]), np.array([answer])


RULES = {
    "copy": Rule(_copy, 1, 0.5),
    "reverse": Rule(_reverse, 1, 0.5),
    "parity": Rule(_parity, 1, 0.5),
    "addition": Rule(_addition, 3, 0.5),
    "sorting": Rule(_sorting, 1, 1 / _SORTED_SYMBOLS),
    "missing_duplicate": Rule(_missing_duplicate, 2, 0.5),
}
"""The tasks by name."""


def check_task(task: str, name: str) -> None:
    """Checks the name of a task."""
    if task not in RULES:
        advice = did_you_mean(task, RULES) or f": must be one of {', '.join(RULES)}"
        raise ConfigError(f"{name} = {task!r}{advice}")


@dataclass(frozen=True)
class Algorithmic(Data):
    """Examples of an algorithmic task, drawn from a seed.

    An example is an input x of n symbols and its output y. The tasks and alphabets are those of a
    study of length generalisation:

    - "copy", "reverse": y is x, or x backwards; x has two symbols.
    - "parity": y is the number of ones in x, modulo 2.
    - "addition": x is two binary numbers with "+" between them, the lowest digit first; y is their
      sum without zeros at its end, and an end token.
    - "sorting": y is x sorted; x has five symbols.
    - "missing_duplicate": x is a string twice, with one symbol hidden; y is that symbol. A blank
      follows where n is odd.

    A decoder reads "x = y" and predicts y; a prefix decoder sees all of "x =" in both directions;
    an encoder-decoder reads x and writes y. Rows of all tasks have the same number of tokens.

    References:
        Ruoss et al. 2023, Randomized Positional Encodings Boost Length Generalization of
        Transformers, https://arxiv.org/abs/2305.16843
    """

    task: str = "copy"
    """The task: copy, reverse, parity, addition, sorting or missing_duplicate."""

    length: int = 16
    """The maximum number of symbols of an input; each number is equally likely."""

    min_length: int | None = None
    """The minimum number of symbols of an input; None: the minimum of the task."""

    num_rows: int = 1 << 16
    """The number of examples of an epoch; `validation_fraction` times as many are drawn separately
    for validation."""

    layout: Literal["decoder", "prefix", "encoder_decoder"] = "decoder"
    """The family of models that the rows are for."""

    def __post_init__(self):
        super().__post_init__()
        check_task(self.task, "data.task")
        least = self.rule.shortest
        check_fields(self, "data", length=at_least(least), num_rows=at_least(1))
        if self.min_length is not None:
            fits = least <= self.min_length <= self.length
            check_field(self, "min_length", fits, f"from {least} to length = {self.length}", "data")

    @property
    def rule(self) -> Rule:
        """The rule of the task."""
        return RULES[self.task]

    @property
    def lengths(self) -> dict[str, int]:
        if self.layout == "encoder_decoder":
            return {"inputs": self.length, "decoder_inputs": self.length}
        return {"inputs": 2 * self.length}

    def of_length(self, length: int, num_rows: int) -> "Algorithmic":
        """Returns `num_rows` examples for validation, with inputs of exactly `length` symbols."""
        own = {"length": length, "min_length": length, "num_rows": 2 * num_rows}
        return replace(self, **own, validation_fraction=0.5)

    def prepare(self, folder):
        del folder
        held_out = max(1, round(self.num_rows * self.validation_fraction))
        train = AlgorithmicExamples(self, self.num_rows, f"{self.seed}/train")
        validation = AlgorithmicExamples(self, held_out, f"{self.split_seed}/validation")
        return Datasets(self.dataset(train, "train"), self.dataset(validation, "validation"))


class AlgorithmicExamples(ExampleSource):
    """Examples of a task, each a function of a seed and its index."""

    def __init__(self, config: Algorithmic, num_rows: int, seed: str):
        self.config, self._num_rows = config, num_rows
        self._seed = hash_of(f"{config.task}/{seed}")

    def __len__(self) -> int:
        return self._num_rows

    def pair(self, index: int) -> Pair:
        """Returns example `index`: the input int32 [n] and the output int32 [m], m <= n."""
        config = self.config
        rng = np.random.Generator(np.random.Philox(key=[self._seed, index]))
        shortest = config.rule.shortest if config.min_length is None else config.min_length
        size = int(rng.integers(shortest, config.length, endpoint=True))
        source, target = config.rule.draw(rng, size)
        return source.astype(np.int32), target.astype(np.int32)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        source, target = self.pair(index)
        lengths = self.config.lengths
        if self.config.layout == "encoder_decoder":
            return teacher_forced(source, target, lengths, PAD, EQUALS)
        tokens = np.concatenate([source, [EQUALS], target]).astype(np.int32)
        size = lengths["inputs"]
        example = {
            "inputs": padded(tokens[:-1], size, PAD),
            "targets": padded(tokens[1:], size, PAD),
            "weights": padded(np.ones(len(tokens) - 1, np.float32), size, 0),
        }
        example = after_prefix(example, len(source) + 1)
        if self.config.layout == "decoder":
            del example["prefix"]
        return example
