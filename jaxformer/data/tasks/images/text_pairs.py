"""Images and their texts, which a dual encoder learns to match."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.bad_rows import read_rows, with_skip_advice
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.files.record import Record
from jaxformer.data.rows import TaskData
from jaxformer.data.tasks.images.pixels import (
    Fit,
    check_form,
    keep_preprocessor,
    preprocessor,
    scaled_pixels,
)
from jaxformer.data.tasks.images.sources import NamedImages, decodable
from jaxformer.data.tasks.sequences import EncodedText, RowEncoder, SpecialTokens, model_inputs
from jaxformer.data.tokenizers.specs import TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.io.paths import any_path


class ImageTextPair(NamedTuple):
    """One row of the table."""

    where: str
    """ "file:line", for messages."""
    image: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class ImageTextPairs(TaskData[ImageTextPair]):
    """Rows of a table with the path of an image and its text; a model learns which belong together.

    A row of a batch has "images" float32 [height, width, channels], "inputs", "segments" and
    "token_types" int32 [T], and "pair_weights" float32. Every other row of a batch counts as a
    wrong answer, so the batch size matters, and texts or images that occur in two rows are harmful.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 2.2.
    """

    head: ClassVar[str] = "contrastive"
    has_images: ClassVar[bool] = True

    train: str = "train.jsonl"
    """The training table: .jsonl, .csv, .tsv or .parquet."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    image: str = "image"
    """The column with the path of the image; it may be relative to the folder of the table."""

    text: str = "text"
    """The column of the text."""

    tokenizer: TokenizerSpec = field(default=TrainTokenizer())
    """How text becomes tokens. This library's tokenizers put their end-of-text token after each
    text; others add their own special tokens.
    """

    sequence_length: int | None = 77
    """The maximum number of tokens of a text with special tokens; None: that of the checkpoint."""

    truncate: bool = False
    """Whether to cut longer texts; otherwise they are an error."""

    reads_padding: bool = False
    """Whether padding counts as text, as in SigLIP's training."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width; images are scaled to fill it, and the rest is cropped."""

    channels: int = 3
    """1 for grey, 3 for red, green and blue."""

    mean: tuple[float, ...] = (0.5,)
    """Subtracted from the pixels, which lie between 0 and 1: one number, or one per channel."""

    std: tuple[float, ...] = (0.5,)
    """Divides the pixels after that: one number, or one per channel."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(2)))
        check_form(self)

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def prepare(self, folder):
        """Like `TaskData.prepare`; also saves the settings of images next to the tokenizer."""
        found = super().prepare(folder)
        form = self.image_size, self.channels, self.mean, self.std
        keep_preprocessor(folder, preprocessor(Fit(), *form))
        return found

    def read(self, source: str) -> list[ImageTextPair]:
        optional_module("PIL", "ImageTextPairs")
        named = NamedImages(any_path(source, "path").parent)

        def pair(record: Record) -> ImageTextPair:
            image = named.file(record, self.image)
            return ImageTextPair(record.where, image, record.text(self.text))

        rows = read_rows(source, pair, self.on_bad_row)
        return decodable(rows, self.pixels, self.on_bad_row, source)

    def pixels(self, row: ImageTextPair) -> np.ndarray:
        """Returns the image of a row, float32 [height, width, channels] between 0 and 1."""
        try:
            return scaled_pixels(row.image, self.image_size, self.channels, Fit())
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from error

    def side_of(self, row):
        return str(row.image)

    def texts(self, row):
        return (row.text,)

    def examples(self, rows, tokenizer, labels=()):
        del labels
        special = SpecialTokens.around_text(tokenizer, own=True)
        length = self.sequence_length
        encoder = RowEncoder(tokenizer, special, length, truncate=self.truncate)
        texts = encoder.encode([(row.text,) for row in rows], [row.where for row in rows])
        return PairExamples(rows, texts, self, tokenizer.pad_id)


class PairExamples(ExampleSource):
    """Images, each decoded on access, with their tokenised texts."""

    def __init__(
        self,
        rows: Sequence[ImageTextPair],
        texts: Sequence[EncodedText],
        data: ImageTextPairs,
        pad_id: int,
    ):
        self._rows = rows
        self._texts = texts
        self._data = data
        self._pad_id = pad_id
        self._mean, self._std = (np.array(x, np.float32) for x in (data.mean, data.std))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        del rng
        try:
            pixels = self._data.pixels(self._rows[index])
        except DataError as error:
            raise DataError(with_skip_advice(error)) from error
        return self._row((pixels - self._mean) / self._std, self._texts[index], 1.0)

    def blank(self) -> Batch:
        pixels = np.zeros((*self._data.image_size, self._data.channels), np.float32)
        return self._row(pixels, self._texts[0], 0.0)

    def _row(self, pixels: np.ndarray, text: EncodedText, weight: float) -> Batch:
        inputs = model_inputs(text, self._data.sequence_length, self._pad_id)
        if self._data.reads_padding:
            inputs["segments"] = np.ones_like(inputs["segments"])
        return inputs | {"images": pixels, "pair_weights": np.float32(weight)}
