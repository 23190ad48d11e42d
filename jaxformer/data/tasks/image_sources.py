"""Sources of labelled images: scikit-learn's digits, and folders."""

import abc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxformer.data.bad_rows import BadRows, OnBadRow
from jaxformer.errors import DataError, StorageError
from jaxformer.extras import optional_module
from jaxformer.io.files import ordinary_file
from jaxformer.io.paths import AnyPath, any_path, is_remote
from jaxformer.io.staging import staged

_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_MODES = {1: "L", 3: "RGB"}

Row = TypeVar("Row")


class ImageSet(abc.ABC):
    """Images in a fixed order, each decoded when it is asked for.

    Attributes:
        names: The name of each image, which decides its side of the validation split.
        labels: The label of each image.
    """

    names: list[str]
    labels: list[str]

    @abc.abstractmethod
    def decode(self, index: int) -> np.ndarray:
        """Returns float32 [height, width, channels] between 0 and 1.

        Raises:
            DataError: It cannot be decoded.
        """


@dataclass(frozen=True)
class ImageSource(abc.ABC):
    """A place that labelled images come from; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def load(self, size: tuple[int, int], channels: int) -> ImageSet:
        """Finds the images.

        Args:
            size: The height and width that all are to have.
            channels: 1 for grey, 3 for red, green and blue.

        Raises:
            DataError: There are none, or they cannot have this form.
        """


@dataclass(frozen=True)
class Digits(ImageSource):
    """The 1797 photographs of handwritten digits that scikit-learn carries: 8 x 8, one channel.

    References:
        Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, https://doi.org/10.24432/C50P49
    """

    def load(self, size, channels):
        if (*size, channels) != (8, 8, 1):
            raise DataError(
                f"Digits are 8 x 8 pixels of 1 channel, but image_size={size} and "
                f"channels={channels} are asked for"
            )
        return _DigitSet()


@dataclass(frozen=True)
class ImageFolder(ImageSource):
    """A folder with a sub-folder of images for each label.

    An image of another size is scaled to fill the wanted one, and what hangs over on two sides is
    cut off.
    """

    path: str
    """The folder; sub-folders of sub-folders count to the one on top."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether a path without the name of a source stands for one of these: any does."""
        del path
        return True

    def load(self, size, channels):
        optional_module("PIL", "ImageFolder")
        return _FolderSet(staged(any_path(self.path, "path"), _is_image), size, channels)


class _DigitSet(ImageSet):
    def __init__(self):
        from sklearn.datasets import load_digits  # takes a second to import

        digits = load_digits()
        self._images = (digits.images / 16).astype(np.float32)[..., None]
        self.labels = [str(digit) for digit in digits.target]
        self.names = [str(number) for number in range(len(self.labels))]

    def decode(self, index):
        return self._images[index]


class _FolderSet(ImageSet):
    def __init__(self, root: Path, size: tuple[int, int], channels: int):
        if not root.is_dir():
            raise DataError(f"{root} is not a folder (looked from {Path.cwd()})")
        self._root, self._size, self._channels = root, size, channels
        self.names = [name for name in image_names(root) if "/" in name]
        if not self.names:
            raise DataError(
                f"{root} holds no images: expected {root}/LABEL/FILE with one of the endings "
                f"{', '.join(sorted(_ENDINGS))}"
            )
        folders = {folder.name for folder in root.iterdir() if folder.is_dir()}
        if without := sorted(folders - set(self.labels)):
            raise DataError(
                f"{root / without[0]} holds no images, and every folder in {root} is a label: put "
                f"images in it ({', '.join(sorted(_ENDINGS))}), or take it away"
            )

    @cached_property
    def labels(self) -> list[str]:
        return [name.partition("/")[0] for name in self.names]

    def decode(self, index):
        return fitted_pixels(self._root / self.names[index], self._size, self._channels)


def image_names(root: AnyPath) -> list[str]:
    """Returns the names of the images in a folder and in the folders within, sorted.

    Raises:
        DataError: A folder cannot be read.
    """
    if is_remote(root):
        return sorted(filter(_is_image, root.files()))
    return sorted(
        Path(folder, file).relative_to(root).as_posix()
        for folder, files in _walk(root)
        for file in files
        if _is_image(file)
    )


def open_image(file: Path, channels: int) -> Any:
    """Returns an image of Pillow's, with 8 bits for each channel.

    Args:
        file: The file.
        channels: 1 for grey, 3 for red, green and blue.

    Raises:
        DataError: It cannot be decoded.
        StorageError: It is in a store that cannot be reached, or refuses.
    """
    from PIL import Image, ImageOps

    if channels not in _MODES:
        raise DataError(f"{file}: image files have 1 or 3 channels, but the model reads {channels}")
    try:
        with Image.open(ordinary_file(file)) as image:
            # Cameras save how they were held beside the pixels.
            return ImageOps.exif_transpose(_eight_bits(image)).convert(_MODES[channels])
    except (DataError, StorageError):
        raise
    except Exception as error:  # Pillow's decoders raise many, of damaged files
        raise DataError(f"{file}: not an image that can be decoded: {error}") from error


def fitted_pixels(file: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    """Returns an image, scaled to fill a size, of which the rest is cut off.

    Args:
        file: The file.
        size: Height and width.
        channels: 1 for grey, 3 for red, green and blue.

    Returns:
        float32 [height, width, channels] between 0 and 1.

    Raises:
        DataError: It cannot be decoded.
    """
    from PIL import ImageOps

    fitted = ImageOps.fit(open_image(file, channels), size[::-1])
    return (np.asarray(fitted, np.float32) / 255).reshape(*size, -1)


def decodable(
    rows: Sequence[Row], decode: Callable[[Row], Any], on_bad_row: OnBadRow, source: object
) -> Sequence[Row]:
    """Returns the rows whose images can be decoded; all, unseen, where a bad one stops the run.

    Args:
        rows: The rows.
        decode: Decodes the image of one.
        on_bad_row: What becomes of one that cannot be decoded. Where it is left out, each is tried.
        source: Where they come from, for messages.

    Raises:
        DataError: Too many cannot be decoded; names the first of them.
    """
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
    bad.settle(source, len(rows))
    return kept


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in _ENDINGS


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with its files; links are followed, but not in a circle."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    for folder, _, files in os.walk(root, onerror=refuse, followlinks=True):
        home = Path(folder).resolve()
        if os.path.islink(folder) and Path(folder).parent.resolve().is_relative_to(home):
            raise DataError(f"{folder} is a link to {home}, which contains it: take it away")
        yield folder, files


def _eight_bits(image: Any) -> Any:
    """Scales pixels of 16 bits, which Pillow would cut off at 255."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, whose scale is not known; convert it to 8 or 16 bits")
    return image
