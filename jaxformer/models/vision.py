"""Transformers over the patches of images (ViT)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.errors import check_argument
from jaxformer.functional.assertions import assert_axes, assert_bool, assert_floating
from jaxformer.functional.masks import Mask
from jaxformer.functional.patches import patches
from jaxformer.functional.placement import place, spec_of
from jaxformer.models.config import VisionConfig
from jaxformer.models.heads.base import ModelOutput, build_heads
from jaxformer.models.heads.poolers import build_pooler
from jaxformer.models.model import Model
from jaxformer.nn import Linear, Transformer, self_block
from jaxformer.nn.layers import normal, parameter


class Vision(Model):
    """A linear map of every patch, a class token, and an encoder's blocks.

    Reference:
      Dosovitskiy et al., An Image is Worth 16x16 Words (https://arxiv.org/abs/2010.11929).
    """

    def __init__(self, key: jax.Array, config: VisionConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 4)
        extra = jax.random.split(jax.random.fold_in(key, 4), 3)
        (rows, columns), std = config.patch_size, normal(config.init_std)
        dim = config.model_dim
        patch = {"patch_rows": rows, "patch_columns": columns, "channels": config.channels}
        bias = config.patch_bias
        self.patch_projection = Linear(keys[0], patch, {"embed": dim}, std, bias=bias)
        token = partial(parameter, shape=(dim,), axes=("embed",), initializer=std)
        self.class_token = token(keys[1]) if config.class_token else None
        self.distillation_token = token(extra[0]) if config.distillation_token else None
        self.mask_token = token(extra[1]) if config.mask_token else None
        self.transformer = Transformer(
            keys[2],
            config,
            position=config.position,
            make_block=self_block,
            num_layers=config.num_layers,
            width=dim,
        )
        self.pooler = build_pooler(extra[2], config, config.pooler)
        self.heads = build_heads(keys[3], config, config.heads)
        self.num_prefix = config.num_prefix
        self.image_shape = (*config.image_size, config.channels)
        self.kept = tuple(n * size for n, size in zip(config.grid, config.patch_size, strict=True))
        self.patch_size, self.dtype = config.patch_size, config.dtype

    def hidden(
        self,
        images: jax.Array,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
        masked: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, height, width, C] -> [B, T, D]`: the states of class, distillation and patch tokens.

        Args:
            images: Pixels.
            key: The dropout key; None in evaluation.
            capture: That of `Transformer`.
            masked: bool `[B, patches]`: where the mask token replaces a patch; None: nowhere.
        """
        sizes = assert_axes(images=(images, " ".join(["B", *map(str, self.image_shape)])))
        assert_floating(images=images)
        height, width = self.kept
        images = images[:, :height, :width]
        x = self.patch_projection(patches(images.astype(self.dtype), self.patch_size))
        if masked is not None:
            wanted = "None: the model has no token for masked patches"
            check_argument("masked", masked, self.mask_token is not None, wanted)
            assert_axes({"B": sizes["B"], "patches": x.shape[1]}, masked=(masked, "B patches"))
            assert_bool(masked=masked)
            x = jnp.where(masked[..., None], self._tokens(self.mask_token, x), x)
        first = [self._tokens(token, x) for token in (self.class_token, self.distillation_token)]
        x = jnp.concatenate([*(token for token in first if token is not None), x], axis=1)
        return self.transformer(x, mask=Mask(), key=key, capture=capture)

    def outputs_from(self, hidden: jax.Array) -> ModelOutput:
        """What the heads read of hidden states `[B, T, D]`."""
        # What is averaged over an image are its patches.
        patch = jnp.arange(hidden.shape[1])[None, :] >= self.num_prefix
        pooled = hidden[:, 0] if self.pooler is None else self.pooler(hidden)
        return ModelOutput(hidden, pooled, valid=jnp.broadcast_to(patch, hidden.shape[:2]))

    def states(self, batch, key=None):
        return self.outputs_from(self.hidden(batch["images"], key))

    @staticmethod
    def _tokens(token: nnx.Param | None, x: jax.Array) -> jax.Array | None:
        """A learned token `[D]` for each row of `x` `[B, T, D]`, as `[B, 1, D]`."""
        if token is None:
            return None
        rows = jnp.broadcast_to(token[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        return place(rows, spec_of(x))
