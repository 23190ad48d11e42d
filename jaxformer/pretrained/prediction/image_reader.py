"""Images as a model reads them: scaled, cut and normalised."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.files.record import table_row
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks.image_sources import fitted_pixels, image_names, open_image
from jaxformer.data.tasks.images import Images
from jaxformer.errors import DataError
from jaxformer.hub.families import forward
from jaxformer.io.model_files import read_object
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.reader import Arrays, Reader

PREPROCESSOR = "preprocessor_config.json"
FILE = "file"
"""The column with the path of an image."""
_SCORES = ("logits", "image_embeds", "pooler_output")


class Pixels(NamedTuple):
    """An image as a model reads it."""

    ids: np.ndarray
    """float32 [height, width, channels]; what stands for the tokens of a text."""
    cut: bool = False
    """False: an image is scaled, whatever its size."""


class ImageReader(Reader):
    """Reads the images of a folder, or those that a column of a table names."""

    max_length = chunk = 1

    def records(self, path, header):
        """Yields a row with the file of each image in a folder, or the rows of a table."""
        if not path.is_dir():
            return read_records(path, header)
        names = image_names(path)
        if not names:
            raise DataError(f"{path} holds no images")
        rows = ({FILE: str(path / name)} for name in names)
        return (table_row(path, number, row) for number, row in enumerate(rows, start=1))

    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[Pixels]:
        """Returns the pixels of the images in files."""
        return [Pixels(self.pixels(Path(file))) for (file,) in rows]

    def pixels(self, file: Path) -> np.ndarray:
        """Returns an image as the model reads it, float32 [height, width, channels]."""
        raise NotImplementedError


class RunImageReader(ImageReader):
    """Reads images as the run's data did."""

    def __init__(self, data: Images, head: str | None):
        self._data, self._head = data, head
        self._mean, self._std = (np.array(x, np.float32) for x in (data.mean, data.std))

    def pixels(self, file):
        pixels = fitted_pixels(file, self._data.image_size, self._data.channels)
        return (pixels - self._mean) / self._std

    def arrays(self, rows, length):
        del length
        return {"images": np.stack([row.ids for row in rows])}

    def scores(self, model, arrays):
        return model.scores(arrays)[self._head]

    def states(self, model, arrays):
        hidden = model.outputs(arrays).hidden
        return hidden, jnp.ones(hidden.shape[:2], bool)


class HFImageReader(ImageReader):
    """Reads images as the checkpoint's preprocessor_config.json says."""

    def __init__(self, pretrained: Pretrained):
        """Reads the settings.

        Args:
            pretrained: The model.

        Raises:
            DataError: There are none.
        """
        self._checkpoint, self._config = pretrained.checkpoint, pretrained.config
        settings = read_object(pretrained.folder, PREPROCESSOR)
        if settings is None:
            raise DataError(
                f"{pretrained.folder / PREPROCESSOR} does not exist: it says how images are scaled "
                "and normalised; put the checkpoint's own there"
            )
        self._settings: dict[str, Any] = settings

    def pixels(self, file):
        settings, channels = self._settings, self._config.channels
        image = open_image(file, channels)
        if settings.get("do_resize", True) and settings.get("size"):
            size = _scaled(settings["size"], image.size)
            image = image.resize(size, settings.get("resample", 2))
        if settings.get("do_center_crop", False):
            image = image.crop(_centre(settings.get("crop_size", settings.get("size")), image.size))
        pixels = np.asarray(image, np.float32).reshape(image.size[1], image.size[0], channels)
        if settings.get("do_rescale", True):
            pixels = pixels * np.float32(settings.get("rescale_factor", 1 / 255))
        if settings.get("do_normalize", True):
            mean, std = (settings.get(f"image_{name}", 0.5) for name in ("mean", "std"))
            pixels = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
        if pixels.shape[:2] != tuple(self._config.image_size):
            raise DataError(
                f"{file}: {PREPROCESSOR} makes {pixels.shape[:2]} pixels of it, but the model "
                f"reads {tuple(self._config.image_size)}"
            )
        return pixels

    def arrays(self, rows: Sequence[Pixels], length: int) -> Arrays:
        """Returns "pixel_values" [rows, channels, height, width]."""
        del length
        return {"pixel_values": np.stack([row.ids.transpose(2, 0, 1) for row in rows])}

    def scores(self, model, arrays):
        outputs = forward(model, self._checkpoint, arrays)
        return next(outputs[name] for name in _SCORES if name in outputs)

    def states(self, model, arrays) -> tuple[jax.Array, jax.Array]:
        hidden = forward(model, self._checkpoint, arrays)["last_hidden_state"]
        return hidden, jnp.ones(hidden.shape[:2], bool)


def _scaled(size: dict[str, int] | int, given: tuple[int, int]) -> tuple[int, int]:
    """The width and height to scale an image to."""
    if isinstance(size, int):
        size = {"height": size, "width": size}
    if "shortest_edge" not in size:
        return size["width"], size["height"]
    factor = size["shortest_edge"] / min(given)
    return tuple(
        size["shortest_edge"] if side == min(given) else int(factor * side) for side in given
    )


def _centre(size: dict[str, int] | int, given: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the middle of an image."""
    size = {"height": size, "width": size} if isinstance(size, int) else size
    left, top = (given[0] - size["width"]) // 2, (given[1] - size["height"]) // 2
    return left, top, left + size["width"], top + size["height"]
