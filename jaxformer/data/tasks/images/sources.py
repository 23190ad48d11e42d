"""Sources of labelled images: scikit-learn's digits, folders, and tables of files."""

import abc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxformer.data.bad_rows import BadRows, OnBadRow
from jaxformer.data.files.find import check_no_splits, ending_of, is_folder
from jaxformer.data.files.record import IMAGE_COLUMNS, EmbeddedFile, Record, recognised
from jaxformer.data.files.tables import TABLES, read_records
from jaxformer.data.labels import label_of
from jaxformer.data.tasks.images.pixels import FIT, Scaling, scaled_pixels
from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.io.paths import AnyPath, any_path, is_remote
from jaxformer.io.staging import staged

_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_METADATA = tuple(f"metadata.{ending}" for ending in ("csv", "jsonl", "parquet"))
"""The table of an image folder of the library `datasets`."""
_OPTION = "--data.source.image"
_HIDDEN = re.compile(r"/\.")

Row = TypeVar("Row")


@dataclass
class ImageSet:
    """Images in a fixed order, each decoded on access."""

    names: list[str]
    """The name of each image, which determines its side of the validation split."""
    labels: list[str]
    """The label of each image."""
    decode: Callable[[int], np.ndarray]
    """Returns an image, float32 [height, width, channels] between 0 and 1, by its number."""


@dataclass(frozen=True)
class ImageSource(abc.ABC):
    """A source of labelled images; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def load(self, size: tuple[int, int], channels: int, scaling: Scaling = FIT) -> ImageSet:
        """Finds the images.

        Args:
            size: The height and width of all images.
            channels: 1 for grey, 3 for red, green and blue.
            scaling: How they get this size.

        Raises:
            DataError: There are no images, or they cannot have this size and these channels.
        """


@dataclass(frozen=True)
class Digits(ImageSource):
    """The 1797 photographs of handwritten digits in scikit-learn: 8 x 8, one channel.

    References:
        Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, https://doi.org/10.24432/C50P49
    """

    def load(self, size, channels, scaling=FIT):
        if (*size, channels) != (8, 8, 1):
            raise DataError(
                f"Digits are 8 x 8 pixels of 1 channel, but image_size={size} and "
                f"channels={channels} are configured"
            )
        from sklearn.datasets import load_digits  # takes a second to import

        digits = load_digits()
        images = (digits.images / 16).astype(np.float32)[..., None]
        labels = [str(digit) for digit in digits.target]
        return ImageSet(list(map(str, range(len(labels)))), labels, images.__getitem__)


@dataclass(frozen=True)
class ImageFolder(ImageSource):
    """A folder with a sub-folder of images for each label."""

    path: str
    """The folder; images in nested sub-folders belong to the top one."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name."""
        return _table_of(any_path(path, "path")) is None

    def load(self, size, channels, scaling=FIT):
        optional_module("PIL", "ImageFolder")
        root = staged(any_path(self.path, "path"), _is_image)
        names, labels = _labelled_by_folder(root)
        files = [root / name for name in names]
        return ImageSet(names, labels, _decoder(files, size, channels, scaling))


@dataclass(frozen=True)
class ImageTable(ImageSource):
    """A table with the path of an image and its label in each row."""

    path: str
    """The table: .csv, .tsv, .jsonl, .parquet; or a folder of images with a metadata.csv (.jsonl,
    .parquet). Paths may be relative to its folder."""

    image: str | None = None
    """The column of the paths, or of the images themselves, as `datasets` keeps them in Parquet;
    None: recognised by its name ("image", "file_name", "path", ...)."""

    label: str = "label"
    """The column of the label."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name."""
        return _table_of(any_path(path, "path")) is not None

    def load(self, size, channels, scaling=FIT):
        optional_module("PIL", "ImageTable")
        table = _table_of(any_path(self.path, "path"))
        if table is None:
            raise DataError(
                f"{self.path} is not a table: expected {', '.join(TABLES)}, or a folder"
            )
        rows, named = [], NamedImages(table.parent)
        for record in read_records(table):
            columns = (self.image,) if self.image else None
            (column,) = columns or recognised(record, IMAGE_COLUMNS, _OPTION, (self.label,))
            rows.append((*file_of(record, column, named), label_of(record, self.label)))
        if not rows:
            raise DataError(f"{table} has no rows")
        files, names, labels = map(list, zip(*rows, strict=True))
        return ImageSet(names, labels, _decoder(files, size, channels, scaling))


class NamedImages:
    """The images that the rows of a table name, in its folder or anywhere else."""

    def __init__(self, folder: AnyPath):
        self._folder = folder
        # The files of a folder in a store are listed once.
        self._there = folder.files() if is_remote(folder) else {}

    def file(self, record: Record, column: str) -> AnyPath:
        """Returns the image file of a row."""
        name = os.path.expanduser(record.text(column))
        file = any_path(name, column) if is_remote(name) else self._folder / name
        if name not in self._there and not file.is_file():
            raise DataError(f"{record.where}: {file} does not exist, or is not a file")
        return file


def _decoder(
    files: Sequence[AnyPath | EmbeddedFile], size: tuple[int, int], channels: int, scaling: Scaling
) -> Callable[[int], np.ndarray]:
    """Returns a function that decodes an image, given its number."""
    return lambda index: scaled_pixels(files[index], size, channels, scaling)


def _labelled_by_folder(root: Path) -> tuple[list[str], list[str]]:
    """The names of the images below a folder, and the label of each, its top sub-folder."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder (looked from {Path.cwd()})")
    names = [name for name in image_names(root) if "/" in name and not _HIDDEN.search(f"/{name}")]
    if not names:
        raise DataError(
            f"{root} holds no images: expected {root}/LABEL/FILE with one of the endings "
            f"{', '.join(sorted(_ENDINGS))}; or a table of their paths and labels"
        )
    labels = [name.partition("/")[0] for name in names]
    if any(name.count("/") > 1 for name in names):
        check_no_splits(root, sorted(set(labels)))
    folders = {folder.name for folder in root.iterdir() if folder.is_dir()}
    if without := sorted(name for name in folders - set(labels) if not name.startswith(".")):
        raise DataError(
            f"{root / without[0]} holds no images, and every folder in {root} is a label: put "
            f"images in it ({', '.join(sorted(_ENDINGS))}), or remove it"
        )
    return names, labels


def file_of(record: Record, column: str, named: NamedImages) -> tuple[Any, str]:
    """Returns the file that a row of a table contains or names, and the file's name."""
    value = record.value(column)
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        name = f"{record.number} {value.get('path') or ''}"
        return EmbeddedFile(record.where, value["bytes"]), name
    return named.file(record, column), record.text(column)


def _table_of(path: AnyPath) -> AnyPath | None:
    """The table at a path, or in a folder of images, if there is one."""
    if is_folder(path):
        return next((path / name for name in _METADATA if (path / name).is_file()), None)
    return path if ending_of(path) in TABLES else None


def image_names(root: AnyPath) -> list[str]:
    """Returns the names of the images in a folder and in the folders within, sorted."""
    if is_remote(root):
        return sorted(filter(_is_image, root.files()))
    return sorted(
        Path(folder, file).relative_to(root).as_posix()
        for folder, files in _walk(root)
        for file in files
        if _is_image(file)
    )


def decodable(
    rows: Sequence[Row], decode: Callable[[Row], Any], on_bad_row: OnBadRow, source: object
) -> Sequence[Row]:
    """Returns the rows whose images can be decoded; all, unchecked, if a bad one stops the run."""
    if on_bad_row == "stop":
        return rows

    def error_of(row: Row) -> DataError | None:
        try:
            decode(row)
        except DataError as error:
            return error
        return None

    bad, kept = BadRows(on_bad_row), []
    with ThreadPoolExecutor() as pool:
        for row, error in zip(rows, pool.map(error_of, rows), strict=True):
            if error is None:
                kept.append(row)
            else:
                bad.add(error)
    bad.finish(source, len(rows))
    return kept


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in _ENDINGS


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with its files; links are followed, except for circles."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    for folder, _, files in os.walk(root, onerror=refuse, followlinks=True):
        home = Path(folder).resolve()
        if os.path.islink(folder) and Path(folder).parent.resolve().is_relative_to(home):
            raise DataError(f"{folder} is a link to {home}, which contains it: remove it")
        yield folder, files
