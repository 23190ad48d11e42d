"""Images with masked patches."""

from dataclasses import dataclass

import numpy as np

from jaxformer.checks import check_field
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.tasks.images.labelled import Images


@dataclass(frozen=True)
class MaskedImages(Images):
    """Images with randomly masked patches, which are predicted from the others (SimMIM).

    A row has "images", see `Images`, and "masked", bool [patches]: which are hidden, row by row. A
    row that only fills up a batch has none. The labels of the images are not learned.

    References:
        Xie et al., SimMIM, 2022, https://arxiv.org/abs/2111.09886
    """

    patch_size: tuple[int, int] = (2, 2)
    """Height and width of a patch, those of the model."""

    mask_ratio: float = 0.6
    """The share of the patches that are masked."""

    head = "masked_pixels"

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "mask_ratio", 0 < self.mask_ratio <= 1, "above 0 and at most 1")
        sizes = zip(self.image_size or self.patch_size, self.patch_size, strict=True)
        fits = all(0 < patch <= pixels for pixels, patch in sizes)
        check_field(self, "patch_size", fits, f"within image_size = {self.image_size}")

    @property
    def num_patches(self) -> int:
        """The number of patches of an image."""
        (height, width), (rows, columns) = self.image_size, self.patch_size
        return (height // rows) * (width // columns)

    def _examples(self, images, chosen, labels, augmentation=()) -> "MaskedExamples":
        examples = super()._examples(images, chosen, labels, augmentation)
        return MaskedExamples(examples, self.num_patches, self.mask_ratio)


class MaskedExamples(ExampleSource):
    """Examples with an image, and a random choice of its patches."""

    def __init__(self, examples: ExampleSource, num_patches: int, mask_ratio: float):
        self._examples = examples
        self._num_patches = num_patches
        self._count = max(1, round(mask_ratio * num_patches))

    def __len__(self) -> int:
        return len(self._examples)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        row = self._examples.read(index, rng)
        hidden = rng.permutation(self._num_patches) < self._count
        return row | {"masked": hidden}

    def blank(self) -> Batch:
        return self._examples.blank() | {"masked": np.zeros(self._num_patches, bool)}
