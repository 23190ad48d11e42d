"""Combines sources of examples: one after the other, or mixed in chosen proportions."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxformer.data.dataset import Batch, ExampleSource, hash_of
from jaxformer.errors import ConfigError


class ConcatenatedExamples(ExampleSource):
    """The rows of several sources, one source after the other.

    Attributes:
        sources: The sources; their rows have the same arrays with the same shapes.
    """

    def __init__(self, sources: Sequence[ExampleSource]):
        self.sources = tuple(sources)
        self._starts = np.cumsum([0, *map(len, self.sources)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        source = self.source_of(index)
        return self.sources[source].read(index - int(self._starts[source]), rng)

    def blank(self) -> Batch:
        return self.sources[0].blank()

    def source_of(self, index: int) -> int:
        """Returns the source of row `index`."""
        return int(np.searchsorted(self._starts, index, side="right")) - 1


class MixedExamples(ConcatenatedExamples):
    """Sources mixed in given proportions, each with independent epochs.

    The sources take turns in a fixed order, so that among the first n rows of the order

        n_i = n w_i / sum_j w_j

    come from source i, rounded to about one row. The k-th row from a source is row k of that
    source's endless order: a permutation of its rows in every epoch, independent of the weights and
    the other sources.

    Attributes:
        weights: The share of each source in the order, summing to 1.
    """

    def __init__(self, sources: Sequence[ExampleSource], weights: Sequence[float]):
        """The weights must be above 0, but need not sum to 1."""
        super().__init__(sources)
        _check_alike(self.sources)
        # Reads weights as decimals: 0.7 means 7/10, not the nearest binary fraction.
        exact = [Fraction(str(weight)) for weight in weights]
        common = math.lcm(*(weight.denominator for weight in exact))
        self._turns = [int(weight * common) for weight in exact]
        self.weights = tuple(turns / sum(self._turns) for turns in self._turns)

    def index(self, number: int, seed: int) -> int:
        before = self.counts(number)
        after = self.counts(number + 1)
        (source,) = (i for i, count in enumerate(before) if after[i] > count)
        own = self.sources[source].index(before[source], hash_of(f"{seed}/source {source}"))
        return int(self._starts[source]) + own

    def epochs(self, number: int) -> tuple[float, ...]:
        counts = zip(self.counts(number), self.sources, strict=True)
        return tuple(count / len(source) for count, source in counts)

    def counts(self, number: int) -> list[int]:
        """Returns how many of the first `number` rows of the order come from each source.

        Source i gets its rounded share of the rows that the sources before it leave.
        """
        counts, left = [], sum(self._turns)
        for turns in self._turns:
            counts.append((2 * number * turns + left) // (2 * left))
            number, left = number - counts[-1], left - turns
        return counts


def _check_alike(sources: Sequence[ExampleSource]) -> None:
    def arrays(source: ExampleSource) -> dict:
        return {key: (np.shape(value), value.dtype) for key, value in source.blank().items()}

    for number, source in enumerate(sources):
        if not len(source):
            raise ConfigError(f"sources.{number} has no rows: leave it out of the mixture")
        if arrays(source) != arrays(sources[0]):
            raise ConfigError(
                f"sources.{number} has rows of {_format_arrays(arrays(source))}, but sources.0 of "
                f"{_format_arrays(arrays(sources[0]))}: only rows with the same arrays can be mixed"
            )


def _format_arrays(arrays: dict) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in arrays.items())
