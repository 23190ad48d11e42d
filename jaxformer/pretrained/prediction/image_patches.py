"""Cuts images into patches, for models that read images of any shape (NaFlex)."""

import math
from collections.abc import Sequence

import numpy as np

from jaxformer.errors import DataError
from jaxformer.models import VisionConfig

_LEAST, _MOST, _EXACT = 1e-6, 100.0, 1e-5
"""The bounds of the search for the largest scale that fits, and its precision."""


def sides_for_patches(sides: tuple[int, int], patch: int, most: int) -> tuple[int, int]:
    """Returns the largest sides of a scaled image with at most `most` patches.

    Both are multiples of the patch size, with nearly the original aspect ratio. The scale is found
    by bisection with the same bounds as in transformers, which gives the same sides.
    """

    def scaled(scale: float) -> tuple[int, ...]:
        return tuple(max(patch, math.ceil(side * scale / patch) * patch) for side in sides)

    low, high = _LEAST, _MOST
    while high - low >= _EXACT:
        middle = (low + high) / 2
        if math.prod(side // patch for side in scaled(middle)) <= most:
            low = middle
        else:
            high = middle
    height, width = scaled(low)
    return height, width


def image_inputs(
    images: Sequence[np.ndarray], config: VisionConfig, length: int | None = None
) -> dict[str, np.ndarray]:
    """Returns images as arrays, by their names in transformers."""
    if not config.position.any_grid:
        return {"pixel_values": np.stack([image.transpose(2, 0, 1) for image in images])}
    rows, columns = config.patch_size
    cut, grids = [], []
    for image in images:
        height, width, channels = image.shape
        grid = height // rows, width // columns
        if (grid[0] * rows, grid[1] * columns) != (height, width):
            raise DataError(
                f"an image of {height} x {width} pixels is not a whole number of patches of {rows} "
                f"x {columns}: let the processor resize it (do_resize)"
            )
        pieces = image.reshape(grid[0], rows, grid[1], columns, channels).swapaxes(1, 2)
        cut.append(pieces.reshape(grid[0] * grid[1], -1))
        grids.append(grid)
    most = max(map(len, cut))
    if length is not None and most > length:
        raise DataError(
            f"an image has {most} patches, more than max_num_patches = {length}: let the processor "
            "resize it (do_resize)"
        )
    pixels = np.zeros((len(cut), length or most, cut[0].shape[1]), np.float32)
    mask = np.zeros(pixels.shape[:2], np.int32)
    for row, pieces in enumerate(cut):
        pixels[row, : len(pieces)], mask[row, : len(pieces)] = pieces, 1
    grids = np.array(grids, np.int32)
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": grids}
