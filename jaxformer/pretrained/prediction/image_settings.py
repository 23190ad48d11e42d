"""Reads a checkpoint's image preprocessing from preprocessor_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checks import at_least
from jaxformer.data.tasks.images.pixels import FILTERS, PREPROCESSOR, Resize, by_short_side, middle
from jaxformer.errors import DataError
from jaxformer.io.model_files import read_object
from jaxformer.pretrained.prediction.image_patches import sides_for_patches

PROCESSOR = "processor_config.json"
_IMAGES = "image_processor"
"""The file of a processor of texts and images, and its field for images."""
_HALF = (0.5, 0.5, 0.5)
_BICUBIC = {"resample": 3}
_CUT = {"do_center_crop": True, "crop_size": 224}
_BY_SHORT_SIDE = {
    **_BICUBIC,
    **_CUT,
    "size": {"shortest_edge": 224},
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
# Defaults of the processors in transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Beit": _BICUBIC,
    "DeiT": {**_BICUBIC, **_CUT, "size": 256},
    "Siglip": _BICUBIC,
    "Siglip2": {"patch_size": 16, "max_num_patches": 256},
    "CLIP": _BY_SHORT_SIDE,
    "Bit": _BY_SHORT_SIDE,
}
_SUFFIXES = ("FeatureExtractor", "ImageProcessorFast", "ImageProcessorPil", "ImageProcessor")


@dataclass(frozen=True)
class ImageSettings:
    """How images are converted to a model's pixels."""

    path: Path
    """The file, for messages."""
    values: Mapping[str, Any]
    """Its values."""

    @classmethod
    def of_folder(cls, folder: Path) -> "ImageSettings":
        """Returns the settings of a checkpoint's folder."""
        values = (read_object(folder, PROCESSOR) or {}).get(_IMAGES)
        path = folder / PROCESSOR
        if not isinstance(values, dict):
            values = read_object(folder, PREPROCESSOR)
            path = folder / PREPROCESSOR
        if values is None:
            raise DataError(
                f"{path} does not exist: it defines how images are scaled and normalised; copy the "
                "checkpoint's file there"
            )
        # Older files call processors feature extractors.
        name = str(values.get("image_processor_type") or values.get("feature_extractor_type"))
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        own = _DEFAULTS.get(name, {})
        usual = {"size": 224, "resample": 2, "image_mean": _HALF, "image_std": _HALF}
        given = {key: value for key, value in values.items() if value is not None}
        if "max_num_patches" in own:
            given = {key: x for key, x in given.items() if key not in ("do_center_crop", "size")}
        else:
            given.pop("max_num_patches", None)  # other processors do not read it
        settings = cls(path, usual | own | given)
        if isinstance(given.get("size"), int) and isinstance(own.get("size"), dict):
            settings.values["size"] = {"shortest_edge": given["size"]}
        settings._check()
        return settings

    @property
    def max_patches(self) -> int | None:
        """The maximum number of patches of a scaled image; None: images have a fixed size."""
        return self.values.get("max_num_patches")

    def pixels(self, image: Any, channels: int) -> np.ndarray:
        """Converts a Pillow image to a model's pixels, float32 [height, width, channels]."""
        if self.values.get("do_resize", True):
            image = image.resize(self._scaled(image.size), self.values["resample"])
        if self.values.get("do_center_crop", False):
            width, height = self._size("crop_size", 224)
            image = middle(image, (height, width))
        pixels = np.asarray(image, np.float32).reshape(image.size[1], image.size[0], channels)
        if self.values.get("do_rescale", True):
            pixels = pixels * np.float32(self.values.get("rescale_factor", 1 / 255))
        if self.values.get("do_normalize", True):
            mean, std = (self._numbers(f"image_{name}", channels) for name in ("mean", "std"))
            pixels = (pixels - mean) / std
        return pixels

    def of_one_size(self, usual: tuple[int, int]) -> tuple[tuple[int, int], Resize]:
        """Returns one size for all images, by default `usual`, and the method of scaling to it."""
        resample = FILTERS[self.values["resample"]]
        if self.max_patches is not None:
            return usual, Resize(usual, resample)
        sides = size = None
        if self.values.get("do_resize", True):
            given = self.values["size"]
            short = given.get("shortest_edge") if isinstance(given, dict) else None
            sides = (short,) if short else self._size("size")[::-1]
            size = sides * 2 if short else sides
        if self.values.get("do_center_crop", False):
            size = self._size("crop_size", 224)[::-1]
        return size or usual, Resize(sides, resample)

    def reads_as(self, other: "ImageSettings") -> bool:
        """Whether these settings give the same pixels as others for every image."""

        def read(settings: ImageSettings) -> tuple[Any, ...]:
            size, scaling = settings.of_one_size((1, 1))
            norm = [np.broadcast_to(x, 3).tolist() for x in settings.normalisation(3)]
            cut = settings.values.get("do_center_crop", False) or len(scaling.size or ()) != 1
            return settings.max_patches, size, scaling, norm, cut

        return read(self) == read(other)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the mean and standard deviation of pixels in [0, 1], by channel."""
        scale = 1.0
        if self.values.get("do_rescale", True):
            scale = self.values.get("rescale_factor", 1 / 255)
        unit = scale * 255 if scale != 1 / 255 else 1.0
        if not self.values.get("do_normalize", True):
            return (0.0,), (1 / unit,)
        found = []
        for name in ("image_mean", "image_std"):
            numbers = np.ravel(self.values[name]).tolist()
            numbers = numbers[: self._numbers(name, channels).size]
            found.append(tuple(float(number) / unit for number in numbers))
        return found[0], found[1]

    def _scaled(self, given: tuple[int, int]) -> tuple[int, int]:
        """Returns the width and height to which an image is scaled."""
        if self.max_patches is not None:
            sides = sides_for_patches(given[::-1], self.values["patch_size"], self.max_patches)
            return sides[::-1]
        size = self.values["size"]
        if not isinstance(size, dict) or "shortest_edge" not in size:
            return self._size("size")
        return by_short_side(given, size["shortest_edge"])

    def _size(self, name: str, default: int | None = None) -> tuple[int, int]:
        """Reads the width and height of a field."""
        size = self.values.get(name, default)
        if isinstance(size, dict):
            return size["width"], size["height"]
        return (size, size) if isinstance(size, int) else (size[1], size[0])

    def _numbers(self, name: str, channels: int) -> np.ndarray:
        """Reads a field with one number, or one for each channel."""
        numbers = np.array(self.values[name], np.float32)
        # The file of a greyscale model has three equal numbers.
        same = channels == 1 and numbers.size > 1 and (numbers == numbers.flat[0]).all()
        return numbers[:1] if same else numbers

    def _check(self) -> None:
        for name in ("size", "crop_size"):
            size = self.values.get(name, 224)
            sides = {"height", "width"} if name == "crop_size" else {"shortest_edge"}
            known = [sides, {"height", "width"}]
            numbers = size.values() if isinstance(size, dict) else np.ravel(size).tolist()
            fits = set(size) in known if isinstance(size, dict) else len(list(numbers)) <= 2
            whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers)
            if not (fits and whole):
                raise DataError(
                    f"{self.path}: {name} = {size!r}: must be a whole number of pixels, "
                    '{"height": H, "width": W}'
                    + (' or {"shortest_edge": S}' if name == "size" else "")
                )
        for name in ("patch_size", "max_num_patches"):
            if self.max_patches is not None and not at_least(1).allows(self.values[name]):
                raise DataError(
                    f"{self.path}: {name} = {self.values[name]!r}: must be {at_least(1).expected}"
                )
        for name in ("image_mean", "image_std"):
            numbers = np.ravel(self.values[name]).tolist()
            if not all(isinstance(n, int | float) for n in numbers) or len(numbers) not in (1, 3):
                raise DataError(
                    f"{self.path}: {name} = {self.values[name]!r}: must be a number or three, one "
                    "for each channel"
                )
        if self.values["resample"] not in range(6):
            raise DataError(
                f"{self.path}: resample = {self.values['resample']!r}: must be a filter of "
                "Pillow's: 0 (nearest), 2 (bilinear), 3 (bicubic), ..."
            )
