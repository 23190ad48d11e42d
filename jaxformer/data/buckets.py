"""Batches of rows of similar length, so that little is padded and few programs are compiled."""

import abc
from collections.abc import Sequence
from functools import lru_cache

import grain
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.data.dataset import Batch, Dataset, ExampleSource, stack
from jaxformer.errors import ConfigError

_CANDIDATES = 100


class SizedExamples(ExampleSource):
    """Examples that can be padded to any length."""

    sizes: np.ndarray
    """int [rows], the length of each row before padding."""
    buckets: int | None = None
    """The number of lengths to which rows are padded in training; None: all have one length."""

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        return self.read_padded(index, rng, int(self.sizes.max()))

    @abc.abstractmethod
    def read_padded(self, index: int, rng: np.random.Generator, length: int) -> Batch:
        """Returns a row that is padded to a length of at least its size."""


def bucket_lengths(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    r"""Returns the lengths to which rows are padded, with the fewest padded places.

    .. math:: \min_{\ell_1 < \dots < \ell_K} \sum_i \min \{ \ell_k : \ell_k \ge s_i \}

    Args:
        sizes: The length of each row.
        count: K, the maximum number of lengths. Candidates are the sizes at 100 quantiles of the
            rows.

    Returns:
        The lengths, the shortest first; the last is that of the longest row.
    """
    ordered = np.sort(np.asarray(sizes))
    shares = np.linspace(0, len(ordered) - 1, _CANDIDATES).round().astype(int)
    edges = np.unique(ordered[shares])
    upto = np.searchsorted(ordered, edges, side="right")
    # The lowest cost of all rows up to each edge, and the lengths that give it.
    cost, chains = (edges * upto).astype(float), [(int(edge),) for edge in edges]
    for _ in range(min(count, len(edges)) - 1):
        pairs = cost[:, None] + edges[None, :] * (upto[None, :] - upto[:, None])
        pairs[np.tril_indices(len(edges))] = np.inf
        best, lowest = pairs.argmin(axis=0), pairs.min(axis=0)
        chains = [
            (*chains[best[place]], int(edge)) if lowest[place] < cost[place] else chains[place]
            for place, edge in enumerate(edges)
        ]
        cost = np.minimum(lowest, cost)
    return chains[-1]


class BucketedDataset(Dataset):
    """Batches whose rows are padded to one of a few lengths.

    An epoch is a new order of all rows within the buckets, cut into batches, whose order is random
    too. If the rows of a bucket do not fill its last batch, some are read twice.

    Args:
        examples: The examples.
        batch_size: Rows of a batch over all hosts.
        seed: Chooses the order and the examples' random choices.
        read_options: How many threads prepare how many batches ahead.
        lengths: The lengths of the buckets, see `bucket_lengths`.
    """

    def __init__(
        self,
        examples: SizedExamples,
        batch_size: int,
        seed: int,
        read_options: grain.ReadOptions,
        lengths: Sequence[int],
    ):
        super().__init__(examples, batch_size, seed, read_options)
        self.lengths = tuple(lengths)
        places = np.searchsorted(self.lengths, examples.sizes)
        if len(places) and places.max() >= len(self.lengths):
            raise ConfigError(
                f"lengths: the longest bucket has {self.lengths[-1]} places: must have at least "
                f"{examples.sizes.max()}, the length of the longest row"
            )
        self._members = [np.flatnonzero(places == k) for k in range(len(self.lengths))]
        self._per_epoch = sum(-(-len(own) // batch_size) for own in self._members)
        self._plan = lru_cache(maxsize=2)(self._planned)

    @classmethod
    def of(cls, plain: Dataset, count: int) -> "BucketedDataset":
        """Returns the batches of a dataset of `SizedExamples` in at most `count` lengths."""
        lengths = bucket_lengths(plain.examples.sizes, count)
        return cls(plain.examples, plain.batch_size, plain.seed, plain.read_options, lengths)

    @property
    def padding(self) -> float:
        """The share of the places of an epoch that are padding."""
        planned = self._plan(0)
        read = sum(self.examples.sizes[rows].sum() for rows, _ in planned)
        return 1 - float(read / sum(len(rows) * length for rows, length in planned))

    def batch(self, step: int, rows: ArrayLike | None = None) -> Batch:
        """Returns the batch of a training step, see `Dataset.batch`, with a bucket's length."""
        epoch, place = divmod(step, self._per_epoch)
        chosen, length = self._plan(epoch)[place]
        first = self.rows_before(step)
        return stack(
            [
                self.examples.read_padded(int(chosen[row]), self._rng(first + int(row)), length)
                for row in self._wanted(rows, self.batch_size)
            ]
        )

    def _planned(self, epoch: int) -> list[tuple[np.ndarray, int]]:
        """Returns the batches of an epoch, in order: the rows, and the length of their padding."""
        rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 1, 0]))
        found = []
        for own, length in zip(self._members, self.lengths, strict=True):
            if len(own):
                order = rng.permutation(own)
                order = np.resize(order, -(-len(own) // self.batch_size) * self.batch_size)
                found += [(part, length) for part in order.reshape(-1, self.batch_size)]
        return [found[place] for place in rng.permutation(len(found))]
