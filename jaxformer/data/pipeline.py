"""The pipeline: rows in an order that is a function of (seed, step), prepared ahead of the step."""

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import partial

import grain
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.data.corpus import load_or_build
from jaxformer.data.objectives import CausalLM, Objective, Row
from jaxformer.data.packing import Joined, Packing, Rows, TokenStream
from jaxformer.data.sources import Source, StandardLibrary
from jaxformer.data.splitting import Split
from jaxformer.data.tokenizers import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how it is cut into batches."""

    source: Source = StandardLibrary()
    """Where the documents come from."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    packing: Packing = Joined()
    """How documents become rows."""

    objective: Objective = CausalLM()
    """What the model is given of a row, and what it must predict."""

    sequence_length: int = 256
    """Tokens of a row."""

    batch_size: int = 16
    """Rows of a step, over all hosts."""

    seed: int = 0
    """Chooses the order of the rows, and an objective's random choices."""

    validation_fraction: float = 0.02
    """The share of the documents held out for validation."""

    split_seed: int = 0
    """Chooses which documents are held out; runs that differ in `seed` alone stay comparable."""

    max_validation_batches: int | None = 50
    """The most batches an evaluation reads, spread evenly over the validation rows; None reads all.
    """

    prefetch_threads: int = 2
    """Threads that prepare batches ahead of the step."""

    prefetch_batches: int = 8
    """Batches kept ready."""

    def __post_init__(self):
        for name in ("sequence_length", "batch_size", "prefetch_threads"):
            _at_least(name, getattr(self, name), 1)
        for name in ("seed", "split_seed"):
            _at_least(name, getattr(self, name), 0)
        if self.max_validation_batches is not None:
            _at_least("max_validation_batches", self.max_validation_batches, 1)
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}"
            )
        if self.prefetch_batches < self.prefetch_threads:
            raise ConfigError(
                f"prefetch_batches ({self.prefetch_batches}) must be at least prefetch_threads "
                f"({self.prefetch_threads}): each thread prepares a batch of its own"
            )


@dataclass(frozen=True)
class Datasets:
    """What a run trains on: the tokenizer and the two sides of the corpus."""

    tokenizer: Tokenizer
    train: "Dataset"
    validation: "Dataset"


def prepare(config: DataConfig, folder: str | os.PathLike) -> Datasets:
    """Reads, tokenises and packs the corpus, or takes what an earlier start left in the folder.

    Args:
        config: What to prepare.
        folder: The run's folder; the tokenizer and the tokens are kept in it.

    Raises:
        DataError: The corpus is missing, empty, unreadable or shorter than one row.
    """
    split = Split(config.source, config.validation_fraction, config.split_seed)
    corpus = load_or_build(split, config.tokenizer, folder)
    needed = config.sequence_length + 1
    if len(corpus.train.tokens) < needed:
        raise DataError(
            f"the training documents are shorter than one sequence: {len(corpus.train.tokens)} "
            f"tokens, but sequence_length={config.sequence_length} needs {needed}; give more text "
            f"or a sequence_length of at most {len(corpus.train.tokens) - 1}"
        )
    make = partial(Dataset.make, config=config, pad_id=corpus.tokenizer.pad_id)
    return Datasets(
        corpus.tokenizer,
        train=make(corpus.train, name="train"),
        validation=make(corpus.validation, name="validation"),
    )


class Dataset:
    """The rows of one side of the corpus, as batches of numpy arrays [B, T].

    A batch holds "inputs" and "targets" (int32) and "weights" (float32, 0 where nothing is
    predicted), and for packed documents "segments" and "positions" (int32).

    Attributes:
        stream: The tokens.
        rows: The rows over them.
        batch_size: Rows of a batch over all hosts.
    """

    def __init__(
        self,
        stream: TokenStream,
        rows: Rows,
        objective: Objective,
        batch_size: int,
        seed: int,
        read_options: grain.ReadOptions,
    ):
        self.stream, self.rows, self.batch_size = stream, rows, batch_size
        self._objective, self._seed, self._read_options = objective, seed, read_options
        # Grain's shuffle computes each index on its own: any epoch, no list of rows in memory.
        self._order = grain.MapDataset.range(rows.num_rows).shuffle(seed=seed % 2**32)
        self._order[0]  # its statistics must be set up before threads read it

    @classmethod
    def make(cls, stream: TokenStream, config: DataConfig, pad_id: int, name: str) -> "Dataset":
        """Returns the dataset that a config asks for.

        Args:
            stream: The tokens.
            config: Packing, objective, sizes and seed.
            pad_id: The token that fills rows up.
            name: Keeps the random choices of the two sides apart.
        """
        digest = hashlib.blake2b(f"{config.seed}/{name}".encode(), digest_size=8).digest()
        return cls(
            stream,
            config.packing.rows(stream, config.sequence_length, pad_id),
            config.objective,
            config.batch_size,
            seed=int.from_bytes(digest, "big"),
            read_options=grain.ReadOptions(config.prefetch_threads, config.prefetch_batches),
        )

    @property
    def num_rows(self) -> int:
        """The number of rows, which is the length of an epoch."""
        return self.rows.num_rows

    def batch(self, step: int, rows: ArrayLike | None = None) -> Batch:
        """Returns the batch of a training step: a pure function of the seed and the step.

        Row r of step s is number n = s * batch_size + r of an endless order in which every epoch
        of `num_rows` is a new permutation of all rows. Hosts that split the rows of a batch
        between them read together exactly what one host would.

        Args:
            step: The step, counted from 0.
            rows: int [rows], which rows of the batch this host needs; None means all of them.

        Returns:
            Arrays [rows, T].
        """
        wanted = self._wanted(rows, self.batch_size)
        numbers = (step * self.batch_size + int(row) for row in wanted)
        return _stack([self._example(self.rows.read(self._order[n]), n) for n in numbers])

    def iterate(
        self, start_step: int = 0, rows: ArrayLike | None = None, stop_step: int | None = None
    ) -> grain.DatasetIterator:
        """Yields `batch(step, rows)` for start_step, start_step + 1, ..., prepared by threads.

        The threads start at once, so that the first batches are ready when compilation is.

        Args:
            start_step: The first step.
            rows: int [rows], which rows of each batch this host needs; None means all of them.
            stop_step: The step before which to end; None goes on without end.
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
        sum of losses over the sum of weights is exact.

        Args:
            batch_size: Rows of a batch over all hosts; None takes that of training.
            rows: int [rows], which rows of each batch this host needs; None means all of them.
            max_batches: The most batches to yield; if the rows fill more, rows evenly spaced
                over all of them are taken.
        """
        size = batch_size or self.batch_size
        total = self.num_rows if max_batches is None else min(self.num_rows, size * max_batches)
        wanted = self._wanted(rows, size)

        def batch(index: int) -> Batch:
            return _stack([self._evaluated(index * size + int(row), total) for row in wanted])

        return self._prefetched(batch, 0, -(-total // size))

    def _evaluated(self, number: int, total: int) -> Batch:
        if number >= total:
            return self._example(self.rows.blank(), number)
        return self._example(self.rows.read(number * self.num_rows // total), number)

    def _example(self, row: Row, number: int) -> Batch:
        generator = np.random.Generator(np.random.Philox(key=[self._seed, number]))
        return self._objective(row, generator)

    def _prefetched(self, batch, start: int, stop: int) -> grain.DatasetIterator:
        steps = grain.MapDataset.range(start, max(start, stop))
        iterator = iter(steps.map(batch).to_iter_dataset(self._read_options))
        iterator.start_prefetch()
        return iterator

    def _wanted(self, rows: ArrayLike | None, batch_size: int) -> np.ndarray:
        wanted = np.arange(batch_size) if rows is None else np.asarray(rows)
        if wanted.size == 0 or wanted.min() < 0 or wanted.max() >= batch_size:
            raise ConfigError(f"rows must lie in a batch of {batch_size}, got {wanted.tolist()}")
        return wanted


def _stack(examples: list[Batch]) -> Batch:
    return {key: np.stack([example[key] for example in examples]) for key in examples[0]}


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
