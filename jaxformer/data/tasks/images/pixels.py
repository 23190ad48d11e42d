"""Reads image files as pixels, scaled to the size that a model reads."""

import abc
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxformer.checks import check_field, check_types
from jaxformer.data.files.record import EmbeddedFile
from jaxformer.errors import DataError, StorageError
from jaxformer.io.files import ordinary_file, write_text

PREPROCESSOR = "preprocessor_config.json"
"""The file with the settings of how images are scaled and normalised."""
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The filters of Pillow, in the order of their numbers."""

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Scaling(abc.ABC):
    """How an image is scaled to the size that a model reads; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, image: Any, size: tuple[int, int]) -> Any:
        """Returns the image in a size."""

    @abc.abstractmethod
    def settings(self, size: tuple[int, int]) -> dict[str, Any]:
        """Returns the fields of preprocessor_config.json that do the same, at least nearly."""


@dataclass(frozen=True)
class Fit(Scaling):
    """Scaled to cover the size (bicubic) and centre-cropped."""

    def __call__(self, image, size):
        from PIL import ImageOps

        return ImageOps.fit(image, size[::-1])

    def settings(self, size):
        height, width = size
        square = height == width
        sides = {"shortest_edge": height} if square else {"height": height, "width": width}
        return _settings(sides, "bicubic", size if square else None)


FIT = Fit()
"""The default scaling."""


@dataclass(frozen=True)
class Resize(Scaling):
    """Scaled as image processors of transformers do, then centre-cropped."""

    size: tuple[int, ...] | None = None
    """Height and width in pixels, which may change the aspect ratio; or only the shorter side.
    None: images are not scaled."""

    resample: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    """The filter."""

    def __post_init__(self):
        check_types(self)
        given = self.size is None or (len(self.size) in (1, 2) and min(self.size) >= 1)
        check_field(self, "size", given, "one or two numbers of pixels, or None")

    def __call__(self, image, size):
        if self.size is not None:
            sides = self.size[::-1]
            sides = sides if len(sides) == 2 else by_short_side(image.size, *sides)
            image = image.resize(sides, FILTERS.index(self.resample))
        return middle(image, size)

    def settings(self, size):
        if self.size is None:
            return _settings(None, self.resample, size)
        keys = ("height", "width") if len(self.size) == 2 else ("shortest_edge",)
        sides = dict(zip(keys, self.size, strict=True))
        return _settings(sides, self.resample, None if self.size == size else size)

    def rescaled(self, old: tuple[int, int], new: tuple[int, int]) -> "Resize":
        """Returns the same scaling for another (height, width), with the same share cropped."""
        if self.size is None or old == new:
            return self
        ratios = [wanted / given for wanted, given in zip(new, old, strict=True)]
        ratios = ratios if len(self.size) == 2 else [max(ratios)]
        size = tuple(round(side * ratio) for side, ratio in zip(self.size, ratios, strict=True))
        return Resize(size, self.resample)


def by_short_side(given: tuple[int, int], short: int) -> tuple[int, int]:
    """Returns the width and height with this shorter side and the same aspect ratio."""
    width, height = given
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def middle(image: Any, size: tuple[int, int]) -> Any:
    """Returns the centre crop (height, width) of a Pillow image, padded with black if needed."""
    height, width = size
    if image.size == (width, height):
        return image
    left = (image.size[0] - width) // 2
    top = (image.size[1] - height) // 2
    return image.crop((left, top, left + width, top + height))


def check_form(data: Any) -> None:
    """Checks the fields that define how images are read; None leaves one to the checkpoint."""
    check_field(data, "channels", data.channels in (None, 1, 3), "1 or 3")
    check_field(data, "image_size", min(data.image_size or (1,)) >= 1, "positive")
    for name in ("mean", "std"):
        given = getattr(data, name)
        fits = None in (given, data.channels) or len(given) in (1, data.channels)
        check_field(data, name, fits, f"one number, or {data.channels}")
    check_field(data, "std", data.std is None or min(data.std) > 0, "positive")


def preprocessor(
    scaling: Scaling,
    size: tuple[int, int],
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> dict[str, Any]:
    """Returns the preprocessor_config.json that reads images in the same way."""
    numbers = {f"image_{name}": list(x) for name, x in (("mean", mean), ("std", std))}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": channels == 3,
        **scaling.settings(size),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **{name: x * (channels // len(x)) for name, x in numbers.items()},
    }


def keep_preprocessor(folder: str | os.PathLike, values: Mapping[str, Any]) -> None:
    """Writes a preprocessor_config.json into a run's folder, next to its tokenizer."""
    file = Path(folder, "tokenizer", PREPROCESSOR)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(values, indent=2) + "\n")


def open_image(file: Path | EmbeddedFile, channels: int) -> Any:
    """Returns a Pillow image with 8 bits per channel."""
    from PIL import Image, ImageOps

    if channels not in _MODES:
        raise DataError(f"{file}: image files have 1 or 3 channels, but the model reads {channels}")
    try:
        embedded = isinstance(file, EmbeddedFile)
        with Image.open(io.BytesIO(file.content) if embedded else ordinary_file(file)) as image:
            # Cameras save the orientation separately from the pixels.
            return ImageOps.exif_transpose(_eight_bits(image)).convert(_MODES[channels])
    except (DataError, StorageError):
        raise
    except Exception as error:  # Pillow's decoders raise many errors about damaged files
        raise DataError(f"{file}: not an image that can be decoded: {error}") from error


def scaled_pixels(
    file: Path | EmbeddedFile, size: tuple[int, int], channels: int, scaling: Scaling
) -> np.ndarray:
    """Returns the pixels of an image in the size that a model reads."""
    scaled = scaling(open_image(file, channels), size)
    return (np.asarray(scaled, np.float32) / 255).reshape(*size, -1)


def _settings(
    sides: dict[str, int] | None, resample: str, crop: tuple[int, int] | None
) -> dict[str, Any]:
    """The fields of preprocessor_config.json that scale and centre-crop an image."""
    cut = {} if crop is None else {"crop_size": dict(zip(("height", "width"), crop, strict=True))}
    return {
        "do_resize": sides is not None,
        **({} if sides is None else {"size": sides}),
        "resample": FILTERS.index(resample),
        "do_center_crop": crop is not None,
        **cut,
    }


def _eight_bits(image: Any) -> Any:
    """Scales pixels of 16 bits, which Pillow would clip at 255."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits, whose scale is unknown; convert it to 8 or 16 bits")
    return image
