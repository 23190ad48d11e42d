"""Reads, scales, crops and normalises images for a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.files.record import IMAGE_COLUMNS
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.images.pixels import PREPROCESSOR, open_image, scaled_pixels
from jaxformer.data.tasks.images.sources import image_names
from jaxformer.errors import DataError
from jaxformer.hub.families import forward
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.hf_reader import scores_in
from jaxformer.pretrained.prediction.image_patches import image_inputs
from jaxformer.pretrained.prediction.image_settings import ImageSettings
from jaxformer.pretrained.prediction.reader import Arrays, FileReader


class Pixels(NamedTuple):
    """An image as a model reads it."""

    ids: np.ndarray
    """float32 [height, width, channels], in place of token ids."""
    cut: bool = False
    """Always False, since images are scaled instead of truncated."""


class ImageReader(FileReader):
    """Reads the images of a folder, or the image files named in a column of a table."""

    max_length = chunk = 1
    columns = IMAGE_COLUMNS
    kind = "images"
    found_in = staticmethod(image_names)

    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[Pixels]:
        """Returns the pixels of image files; paths may be relative to the table."""
        return [Pixels(self.pixels(self.file(name))) for (name,) in rows]

    def pixels(self, file: Path) -> np.ndarray:
        """Returns an image as the model reads it, float32 [height, width, channels]."""
        raise NotImplementedError


class RunImageReader(ImageReader):
    """Reads images as in the training data of a run."""

    def __init__(self, data: Images, head: str | None):
        self._data, self.head = data, head
        self._mean, self._std = (np.array(x, np.float32) for x in (data.mean, data.std))

    def pixels(self, file):
        data = self._data
        pixels = scaled_pixels(file, data.image_size, data.channels, data.scaling)
        return (pixels - self._mean) / self._std

    def arrays(self, rows, length):
        return {"images": np.stack([row.ids for row in rows])}

    def states(self, model, arrays):
        hidden = model.outputs(arrays).hidden
        return hidden, jnp.ones(hidden.shape[:2], bool)


class HFImageReader(ImageReader):
    """Reads images according to a checkpoint's preprocessor_config.json."""

    def __init__(self, pretrained: Pretrained):
        """Reads the settings; raises DataError if they are missing."""
        self._checkpoint = pretrained.checkpoint
        config = pretrained.config
        self._config = config.parts.get("encoder", config.parts.get("image", config))
        if pretrained.folder is None:
            raise DataError(f"the model has no folder, and so no {PREPROCESSOR}")
        self._settings = ImageSettings.of_folder(pretrained.folder)
        self._any_grid = self._config.position.any_grid
        if self._any_grid and self._settings.max_patches is not None:
            patch, wanted = self._settings.values["patch_size"], self._config.patch_size
            if (patch, patch) != wanted:
                raise DataError(
                    f"{self._settings.path}: patch_size = {patch}: must be {wanted[0]}, that of "
                    "the model"
                )

    def pixels(self, file):
        config, channels = self._config, self._config.channels
        pixels = self._settings.pixels(open_image(file, channels), channels)
        fixed = not (self._any_grid or config.interpolate_positions)
        if fixed and pixels.shape[:2] != tuple(config.image_size):
            raise DataError(
                f"{file}: {PREPROCESSOR} makes {pixels.shape[:2]} pixels of it, but the model "
                f"reads {tuple(config.image_size)}: correct that file, or let tables of positions "
                "be resized with --interpolate-positions"
            )
        return pixels

    def arrays(self, rows: Sequence[Pixels], length: int) -> Arrays:
        """Returns "pixel_values" and other inputs; see `image_inputs`."""
        sizes = sorted({row.ids.shape[:2] for row in rows})
        if len(sizes) > 1 and not self._any_grid:
            raise DataError(
                f"images of {sizes[0]} and {sizes[-1]} pixels are in one batch: use --batch-size "
                f"1, or scale or cut all to one size in {PREPROCESSOR}"
            )
        images = [row.ids for row in rows]
        return image_inputs(images, self._config, self._settings.max_patches)

    def scores(self, model, arrays):
        return scores_in(forward(model, self._checkpoint, arrays))

    def states(self, model, arrays) -> tuple[jax.Array, jax.Array]:
        hidden = forward(model, self._checkpoint, arrays)["last_hidden_state"]
        mask = arrays.get("pixel_attention_mask")
        return hidden, jnp.ones(hidden.shape[:2], bool) if mask is None else mask > 0
