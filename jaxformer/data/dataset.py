"""Batches in an order that is a pure function of (seed, step), prepared ahead of each step."""

import abc
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import grain
import numpy as np
from grain.experimental import index_shuffle
from numpy.typing import ArrayLike

from jaxformer.data.ramp import Phase, phase_at
from jaxformer.errors import ConfigError

Batch = dict[str, np.ndarray]
"""The arrays of a batch by name; the first axis of each counts the rows."""


class ExampleSource(abc.ABC):
    """Random access to a known number of examples, like a grain `RandomAccessDataSource`.

    Unlike grain's, it reads with a random generator, for masking and augmentation.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abc.abstractmethod
    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns one row of a batch: the same arrays with the same shapes for every index.

        Args:
            index: From 0 to `len(self) - 1`.
            rng: The row's generator, a function of the seed and of the row's number in the
                order of training, so that the result depends neither on threads nor on hosts.
        """

    def blank(self) -> Batch:
        """Returns a row of the same shapes with all weights 0."""
        row = self.read(0, np.random.default_rng(0))
        weights = (name for name in row if name.endswith("weights"))
        return row | {name: np.zeros_like(row[name])[()] for name in weights}

    def index(self, number: int, seed: int) -> int:
        """Returns the row with number n in the endless order of training.

        Every epoch of `len(self)` numbers is a new permutation of all rows. Any number, in any
        epoch, is computed directly, without a list.

        Args:
            number: n, from 0 on.
            seed: Chooses the order.
        """
        epoch, place = divmod(number, len(self))
        return index_shuffle(place, max_index=len(self) - 1, seed=(seed + epoch) % 2**32, rounds=4)

    def epochs(self, number: int) -> tuple[float, ...]:
        """Returns the number of epochs of each source in the first `number` rows of the order."""
        return (number / len(self),)


class Dataset:
    """Batches of numpy arrays [B, ...] in an order that is a function of (seed, step).

    Args:
        examples: The examples; each gives one row of a batch.
        batch_size: Rows of a batch over all hosts, after the ramp if there is one.
        seed: Chooses the order and the examples' random choices.
        read_options: How many threads prepare how many batches ahead.
        phases: The shapes of the batches of training, in order; () is one phase.
        cut: Number of parts -> the examples cut into this many parts: example i * parts + p is part
            p of example i.
    """

    def __init__(
        self,
        examples: ExampleSource,
        batch_size: int,
        seed: int,
        read_options: grain.ReadOptions,
        phases: Sequence[Phase] = (),
        cut: Mapping[int, ExampleSource] = MappingProxyType({}),
    ):
        self.examples, self.batch_size = examples, batch_size
        self.phases = tuple(phases) or (Phase(batch_size),)
        self.seed, self.read_options = seed, read_options
        self._cut = {1: examples, **cut}

    @property
    def num_rows(self) -> int:
        """The number of rows, each of which is read once per epoch."""
        return len(self.examples)

    def rows_before(self, step: int) -> int:
        """Returns how many rows are read before a step; parts of a row count as fractions."""
        return phase_at(self.phases, step).rows_before(step)

    def batch(self, step: int, rows: ArrayLike | None = None) -> Batch:
        """Returns the batch of a training step: a pure function of the seed and the step.

        Row r of step s is number n = s * batch_size + r of an endless order, see
        `ExampleSource.index`. Hosts that split the rows of a batch together read exactly the rows
        that one host would. In a phase that cuts rows into parts, row r is part r mod parts of row
        r div parts of a batch of whole rows.

        Args:
            step: The step, counted from 0.
            rows: int [rows], which rows of the batch this host needs; None means all of them.

        Returns:
            Arrays [rows, T].
        """
        phase = phase_at(self.phases, step)
        first, parts = phase.rows_before(step), phase.parts
        examples, read = self._cut[parts], []
        for row in self._wanted(rows, phase.batch_size):
            number, part = divmod(int(row), parts)
            index = self.examples.index(first + number, self.seed) * parts + part
            read.append(examples.read(index, self._rng(first + number, part)))
        return stack(read)

    def rows(self) -> Iterator[Batch]:
        """Yields every row once, in the order of the data, as in training."""
        for number in range(self.num_rows):
            yield self.examples.read(number, self._rng(number))

    def iterate(
        self, start_step: int = 0, rows: ArrayLike | None = None, stop_step: int | None = None
    ) -> grain.DatasetIterator:
        """Yields `batch(step, rows)` for start_step, start_step + 1, ..., prepared by threads.

        The threads start at once, so that the first batches are ready when compilation is.

        Args:
            start_step: The first step.
            rows: int [rows], which rows of each batch this host needs; None means all of them.
                If phases differ in their batch size, the steps must be of one phase.
            stop_step: The step before which to end; None: never.

        Returns:
            An iterator over batches.
        """
        stop = sys.maxsize if stop_step is None else stop_step
        return self._prefetched(partial(self.batch, rows=rows), start_step, stop)

    def epoch(
        self,
        batch_size: int | None = None,
        rows: ArrayLike | None = None,
        max_batches: int | None = None,
    ) -> grain.DatasetIterator:
        """Yields every row once, in order, for evaluation; the same batches each time.

        All batches have the same shape: the last is filled up with rows of weight 0, so that the
        sum of losses over the sum of weights is exact. "row", int32 [B], is the index of each row's
        example, and -1 for rows that only fill up the batch.

        Args:
            batch_size: Rows of a batch over all hosts; None takes that of training.
            rows: int [rows], which rows of each batch this host needs; None means all of them.
            max_batches: The maximum number of batches; if there are more rows, evenly spaced ones
                are taken.

        Returns:
            An iterator over batches.
        """
        size = batch_size or self.batch_size
        total = self.num_rows if max_batches is None else min(self.num_rows, size * max_batches)
        wanted = self._wanted(rows, size)

        def batch(index: int) -> Batch:
            return stack([self._evaluated(index * size + int(row), total) for row in wanted])

        return self._prefetched(batch, 0, -(-total // size))

    def _evaluated(self, number: int, total: int) -> Batch:
        if number >= total:
            return self.examples.blank() | {"row": np.int32(-1)}
        index = number * self.num_rows // total
        return self.examples.read(index, self._rng(number)) | {"row": np.int32(index)}

    def _rng(self, number: int, part: int = 0) -> np.random.Generator:
        # The highest word of the counter, which draws never reach, distinguishes parts.
        philox = np.random.Philox(key=[self.seed, number], counter=[0, 0, 0, part])
        return np.random.Generator(philox)

    def _prefetched(self, batch, start: int, stop: int) -> grain.DatasetIterator:
        steps = grain.MapDataset.range(start, max(start, stop))
        iterator = iter(steps.map(batch).to_iter_dataset(self.read_options))
        iterator.start_prefetch()
        return iterator

    def _wanted(self, rows: ArrayLike | None, batch_size: int) -> np.ndarray:
        wanted = np.arange(batch_size) if rows is None else np.asarray(rows)
        if wanted.size == 0 or wanted.min() < 0 or wanted.max() >= batch_size:
            raise ConfigError(f"rows must be within a batch of {batch_size}, got {wanted.tolist()}")
        return wanted


def stack(examples: list[Batch]) -> Batch:
    """Returns rows of the same shapes as a batch."""
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}


def padded(values: np.ndarray, size: int, fill: float) -> np.ndarray:
    """Returns values [n] followed by `fill` up to `size`, of the same dtype."""
    # Several times as fast as `np.pad`.
    row = np.full(size, fill, values.dtype)
    row[: len(values)] = values
    return row


def hash_of(text: str) -> int:
    """Returns a hash of a text, below 2^64 and the same on all machines."""
    # A file's name may contain bytes that are not UTF-8; Python represents them as lone surrogates.
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
