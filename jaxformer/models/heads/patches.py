"""Heads over masked patches of an image: pixels or visual tokens."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import check_argument, check_field
from jaxformer.functional.arrays import assert_axes, assert_bool
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.patches import patches
from jaxformer.models.heads.base import Batch, Head, HeadModule, Unit, array, class_loss
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, NormLayer, normal


@dataclass(frozen=True)
class MaskedPixels(Head):
    r"""Predicts the pixels of masked patches by a linear map of their states (SimMIM).

    .. math:: \ell = \frac{1}{|M|} \sum_{i \in M} \frac{1}{n} \lVert x_i - (h_i W + b) \rVert_1

    over the masked patches M, each with n values. Reads "masked", bool `[B, patches]`, and the
    images themselves.

    References:
        Xie et al., SimMIM, 2022 (https://arxiv.org/abs/2111.09886).
    """

    name: ClassVar[str] = "masked_pixels"
    unit: ClassVar[Unit] = "patch"
    stride: int = 16
    """Height and width of the prediction per patch, which must be the patch size for a loss."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "stride", self.stride >= 1, "at least 1")

    def build(self, key, config):
        return MaskedPixelsHead(key, config, self)

    def reads(self, rows, length):
        return {"masked": array(rows, length, dtype=jnp.bool_)}


@dataclass(frozen=True)
class VisualTokens(Head):
    """Predicts the image tokenizer's token of each masked patch with a norm and a linear map.

    Reads "masked", bool `[B, patches]`, and "visual_tokens", int `[B, patches]`: arbitrary for
    visible patches.

    References:
        Bao et al., BEiT, 2022 (https://arxiv.org/abs/2106.08254).
    """

    name: ClassVar[str] = "visual_tokens"
    unit: ClassVar[Unit] = "patch"
    num_tokens: int = 8192
    """Vocabulary size of the image tokenizer."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_tokens", self.num_tokens >= 1, "at least 1")

    def build(self, key, config):
        return VisualTokensHead(key, config, self)

    def reads(self, rows, length):
        masked = array(rows, length, dtype=jnp.bool_)
        return {"masked": masked, "visual_tokens": array(rows, length)}

    def choices(self, config):
        return self.num_tokens


def target_pixels(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
    """Returns the pixels of the whole patches of images, float32 `[B, patches, P, Q, C]`."""
    height, width = (
        n // size * size for n, size in zip(images.shape[1:3], patch_size, strict=True)
    )
    return patches(images[:, :height, :width].astype(jnp.float32), patch_size)


def masked_loss(head: HeadModule, errors: jax.Array, batch: Batch) -> LossSums:
    """Returns the sum of the errors, float32 `[B, patches]`, of masked patches."""
    masked = batch["masked"]
    assert_bool(masked=masked)
    assert_axes(masked=(masked, " ".join(map(str, errors.shape))))
    zero = jnp.zeros((), jnp.float32)
    total = jnp.sum(jnp.where(masked, errors, 0.0))
    return LossSums(total, head.loss_weight(batch), zero, zero)


class MaskedPixelsHead(HeadModule):
    """A linear map from the state of each patch to its pixels."""

    weights = "masked"

    def __init__(self, key: jax.Array, config: TransformerConfig, head: MaskedPixels):
        """Declares the layer."""
        stride = head.stride
        pixels = {"patch_rows": stride, "patch_columns": stride, "channels": config.channels}
        inputs = {"embed": config.output_width}
        std = normal(config.init_std)
        self.output = Linear(key, inputs, pixels, std, bias=True)
        self.prefix = config.num_prefix
        self.patch_size = config.patch_size
        self.stride = stride

    def scores(self, outputs, key=None):
        """Returns the pixels of each patch, `[B, patches, stride, stride, C]`, float32."""
        return self.output(outputs.hidden[:, self.prefix :]).astype(jnp.float32)

    def loss(self, outputs, batch, options, key):
        fits = self.patch_size == (self.stride, self.stride)
        check_argument("stride", self.stride, fits, f"{self.patch_size}, the size of a patch")
        pixels = target_pixels(batch["images"], self.patch_size)
        errors = jnp.mean(jnp.abs(pixels - self.scores(outputs, key)), axis=(2, 3, 4))
        return masked_loss(self, errors, batch)


class VisualTokensHead(HeadModule):
    """A norm and a linear map from the state of each patch to scores of the visual tokens."""

    weights = "masked"

    def __init__(self, key: jax.Array, config: TransformerConfig, head: VisualTokens):
        """Declares the layers."""
        keys = jax.random.split(key)
        self.norm = NormLayer(keys[0], config.norm, config.output_width)
        inputs = {"embed": config.output_width}
        outputs = {"labels": head.num_tokens}
        self.output = Linear(keys[1], inputs, outputs, normal(config.init_std), bias=True)
        self.prefix = config.num_prefix

    def scores(self, outputs, key=None):
        """`[B, patches, num_tokens]`, float32."""
        return self.output(self.norm(outputs.hidden[:, self.prefix :])).astype(jnp.float32)

    def loss(self, outputs, batch, options, key):
        masked = batch["masked"]
        assert_bool(masked=masked)
        scores = self.scores(outputs, key)
        weights = masked.astype(jnp.float32)
        return class_loss(scores, batch["visual_tokens"], weights, options._replace(z_loss=0.0))
