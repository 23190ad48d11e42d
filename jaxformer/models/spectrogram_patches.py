"""Vision transformers over spectrograms (AST)."""

from dataclasses import dataclass

from jaxformer.checks import check_field, check_types
from jaxformer.functional.patches import overlapping_patches
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import Learned
from jaxformer.models.heads.base import Head
from jaxformer.models.heads.labels import Classification
from jaxformer.models.heads.poolers import Pooler, PrefixPooler
from jaxformer.models.vision import VisionConfig


@dataclass(frozen=True)
class SpectrogramPatchesConfig(VisionConfig):
    """Configuration of an encoder over overlapping patches of a spectrogram (AST).

    A spectrogram is an image with one channel, whose rows are frequencies and whose columns are
    frames.
    """

    image_size: tuple[int, int] = (128, 1024)
    """Frequencies (mel bins) and frames."""
    channels: int = 1
    """Number of channels."""
    patch_stride: tuple[int, int] = (10, 10)
    """Frequencies and frames from one patch to the next."""
    crop: bool = True
    """Whether to drop frequencies and frames beyond the last whole patch."""
    distillation_token: bool = True
    """Whether a distillation token follows the class token."""
    pooler: Pooler | None = PrefixPooler()
    """PrefixPooler, or None for the class token's state."""
    position: Position = Learned(max_length=1214)
    """Learned, with a row for each token before the patches and for every patch."""
    heads: tuple[Head, ...] = (Classification(num_labels=527),)
    """The heads on the hidden states."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "patch_stride", min(self.patch_stride) >= 1, "positive numbers")
        super().__post_init__()
        fixed = not self.interpolate_positions
        check_field(self, "interpolate_positions", fixed, "False: patches overlap")

    def grid_of(self, size):
        """Returns the rows and columns of patches of spectrograms of this size."""
        sizes = zip(size, self.patch_size, self.patch_stride, strict=True)
        return tuple((length - patch) // stride + 1 for length, patch, stride in sizes)

    def cut(self, images):
        """Cuts spectrograms `[B, bins, frames, 1]` into patches."""
        return overlapping_patches(images, self.patch_size, self.patch_stride)
