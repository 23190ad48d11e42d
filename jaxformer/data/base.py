"""`Data`, the base class of every kind of training data, and the data sets that it prepares."""

import abc
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import grain

from jaxformer.checks import FRACTION, Rule, at_least, check_fields, check_types, optional
from jaxformer.data.buckets import BucketedDataset, SizedExamples
from jaxformer.data.dataset import Dataset, ExampleSource, hash_of
from jaxformer.data.labels import load_labels, shown
from jaxformer.data.ramp import Phase, Stage, phases_of
from jaxformer.data.tokenizers.specs import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Datasets:
    """The training and validation sides of the data, and the tokenizer if there is one."""

    train: Dataset | None
    """None if only the validation side was requested."""
    validation: Dataset
    tokenizer: Tokenizer | None = None
    tokens_per_byte: float | None = None
    """Predicted tokens per byte of validation text, if every token is predicted."""
    labels: tuple[str, ...] = ()
    """The names of the labels in the order of their numbers, if the data have labels."""
    summary: tuple[tuple[str, str], ...] = ()
    """The lines about the data in the report at the start of a run: (name, value)."""

    def report(self) -> list[tuple[str, str]]:
        """Returns the lines about the data in the report at the start of a run: (name, value)."""
        rows = list(self.summary or self.sides())
        if self.labels:
            rows.append(("labels", f"{len(self.labels)}: {shown(self.labels, most=6)}"))
        return rows

    def sides(self) -> list[tuple[str, str]]:
        """Returns the lines of the report about the two sides: (name, value)."""
        sides = {"training": self.train, "validation": self.validation}
        return [
            (name, f"{side.num_rows:,} rows") for name, side in sides.items() if side is not None
        ]


@dataclass(frozen=True, kw_only=True)
class Data(abc.ABC):
    """The source of batches; there is a subclass for each kind of data."""

    head: ClassVar[str] = "language_model"
    """The head that the data train: "language_model", "masked_language_model",
    "classification", "multi_label", "regression", "multiple_choice", "token_classification",
    "span", "masked_pixels", "ctc", "quantized_frames" or "contrastive". A subclass whose fields
    determine it defines a property. A model from a checkpoint gets this head."""

    has_text: ClassVar[bool] = True
    """Whether a row has a text, as ids."""

    has_images: ClassVar[bool] = False
    """Whether a row has an image, as pixels."""

    sounds_as: ClassVar[str | None] = None
    """The array of a row's sound, which the model reads instead of the text: "waveforms",
    "spectrograms" or "images"; None: a row has no sound."""

    _fraction: ClassVar[Rule] = FRACTION

    also_called: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "train": "source",
            "source": "train",
            "validation": "validation_source",
            "validation_source": "validation",
        }
    )
    """Additional names of fields on the command line."""

    sequences_per_row: ClassVar[int] = 1
    """The number of sequences in a row of a batch: two for a pair of answers."""

    preference: ClassVar[str | None] = None
    """The preference loss that reads the data, "DPO" or "KTO"; None for other losses."""

    takes_lengths: ClassVar[bool] = False
    """Whether a stage of a ramp may have shorter rows, see `data.ramp`."""

    batch_size: int = 16
    """The rows of a step, over all hosts; with a ramp, of a step after its last stage."""

    ramp: tuple[Stage, ...] = ()
    """The stages at the start of the run that have another batch size or shorter rows, in order."""

    seed: int = 0
    """Chooses the order of the rows, and an objective's random choices."""

    validation_fraction: float = 0.02
    """The share of the documents held out for validation."""

    split_seed: int = 0
    """Chooses which documents are held out; runs that differ only in `seed` stay comparable."""

    max_validation_batches: int | None = 50
    """The maximum number of batches of an evaluation, spread evenly over the validation rows; None:
    all.
    """

    prefetch_threads: int = 2
    """The number of threads that prepare batches ahead of the step."""

    prefetch_batches: int = 8
    """The number of batches that are kept ready."""

    def __post_init__(self):
        check_types(self, "data")
        check_fields(
            self,
            "data",
            batch_size=at_least(1),
            seed=at_least(0),
            split_seed=at_least(0),
            validation_fraction=self._fraction,
            max_validation_batches=optional(at_least(1)),
            prefetch_threads=at_least(1),
            prefetch_batches=at_least(self.prefetch_threads),
        )
        # A length that comes from the checkpoint is checked later.
        if self.ramp and getattr(self, "sequence_length", 0) is not None:
            phases_of(self)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The parts of a run whose batches have one shape, in order; one without a ramp."""
        return phases_of(self)

    def without_ramp(self, **shape: Any) -> "Data":
        """Returns the same data with this shape, by default the last one, for all batches."""
        return replace(self, ramp=(), **shape)

    def steps_for(self, rows: float) -> int:
        """Returns the number of steps that read this many of the longest rows, at least one."""
        steps = (phase.step_after(rows) for phase in self.phases)
        ends = (phase.stop for phase in self.phases)
        return next(max(1, n) for n, end in zip(steps, ends, strict=True) if not end or n <= end)

    @property
    def images_alone(self) -> bool:
        """Whether a row has an image but no text."""
        return self.has_images and not self.has_text

    @property
    def num_sequences(self) -> int:
        """The number of sequences that the model reads in a step, over all hosts."""
        return self.batch_size * self.sequences_per_row

    @property
    @abc.abstractmethod
    def lengths(self) -> dict[str, int]:
        """The tokens of a row: of "inputs", and of "decoder_inputs" for an encoder-decoder."""

    @property
    def text_lengths(self) -> dict[str, int]:
        """The positions that rows use: `lengths`, unless rows have several texts side by side."""
        return self.lengths

    def start_id(self, tokenizer: Tokenizer) -> int | None:
        """Returns the first input of the decoder of an encoder-decoder; None without one."""
        del tokenizer

    longest_row: ClassVar[int] = 512
    """The maximum number of tokens of a row if `sequence_length` is None and the checkpoint allows
    more."""

    def of_length(self, length: int) -> "Data":
        """Returns the data with the length of rows that was left to the checkpoint."""
        return replace(self, sequence_length=length)

    def as_found(self) -> "Data":
        """Returns the data with settings recognised from the first row; the same if all are set.

        Raises:
            DataError: The training data are missing or unreadable.
        """
        return self

    def training_labels(self) -> tuple[str, ...]:
        """Returns the labels of the training data in the order of their numbers; () without labels.

        Raises:
            DataError: The training data are missing or unreadable.
        """
        return ()

    @abc.abstractmethod
    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads the data, or loads the results of an earlier start from the folder.

        Args:
            folder: The run's folder, in which the tokenizer and prepared data are saved.

        Returns:
            Both sides of the data, and the tokenizer if there is one.

        Raises:
            DataError: The data are missing, empty or unreadable.
        """

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        """Reads the validation side, with the tokenizer and the labels of the run.

        The training data are read only if the validation rows are a share of them.

        Args:
            folder: The run's folder.

        Returns:
            The validation side; "train" may be None.

        Raises:
            DataError: The data are missing, empty or unreadable, or have an unknown label.
        """
        home = Path(folder, "tokenizer")
        tokenizer = load_tokenizer(home) if self.has_text and home.is_dir() else None
        labels = load_labels(folder)
        examples = self.validation_examples(tokenizer, labels)
        if examples is None:
            return self.prepare(folder)
        return Datasets(None, self.dataset(examples, "validation"), tokenizer, labels=labels)

    def validation_examples(
        self, tokenizer: Tokenizer | None, labels: tuple[str, ...]
    ) -> ExampleSource | None:
        """Returns the examples for validation, or None if they are a share of the training data.

        Args:
            tokenizer: The run's tokenizer.
            labels: The names of the run's labels, in the order of their numbers.
        """
        del tokenizer, labels
        return None

    def dataset(
        self,
        examples: ExampleSource,
        name: str,
        cut: Mapping[int, ExampleSource] = MappingProxyType({}),
    ) -> Dataset:
        """Returns the batches of some examples; training batches grow with the ramp.

        Training rows that can be padded to any length are batched by similar length.

        Args:
            examples: One side of the data.
            name: "train" or "validation"; makes the random choices of the two independent.
            cut: Number of parts -> the same rows, each cut into this many parts, for stages of
                shorter rows.
        """
        plain = Dataset(
            examples,
            self.batch_size,
            seed=hash_of(f"{self.seed}/{name}"),
            read_options=grain.ReadOptions(self.prefetch_threads, self.prefetch_batches),
            phases=self.phases if name == "train" else (),
            cut=cut,
        )
        sized = name == "train" and isinstance(examples, SizedExamples)
        return BucketedDataset.of(plain, examples.buckets) if sized and examples.buckets else plain
