"""Transformers over the patches of images (ViT)."""

import chex
import jax
import jax.numpy as jnp

from jaxformer.functional.masks import Mask
from jaxformer.functional.patches import patches
from jaxformer.functional.placement import place, spec_of
from jaxformer.models.config import VisionConfig
from jaxformer.models.family import Family
from jaxformer.models.heads import States, build_heads
from jaxformer.nn import Linear, Transformer, self_block
from jaxformer.nn.parameter import normal, parameter, value_of


class Vision(Family):
    """A linear map of every patch, a class token, and an encoder's blocks.

    Reference:
      Dosovitskiy et al., An Image is Worth 16x16 Words (https://arxiv.org/abs/2010.11929).
    """

    def __init__(self, key: jax.Array, config: VisionConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 4)
        (rows, columns), std = config.patch_size, normal(config.init_std)
        dim = config.model_dim
        patch = {"patch_rows": rows, "patch_columns": columns, "channels": config.channels}
        self.patch_projection = Linear(keys[0], patch, {"embed": dim}, std, bias=True)
        token = parameter(keys[1], (dim,), ("embed",), std)
        self.class_token = token if config.class_token else None
        self.transformer = Transformer(
            keys[2],
            config,
            position=config.position,
            make_block=self_block,
            num_layers=config.num_layers,
            width=dim,
        )
        self.heads = build_heads(keys[3], config, config.heads)
        self.image_shape = (*config.image_size, config.channels)
        self.patch_size, self.dtype = config.patch_size, config.dtype

    def hidden(
        self,
        images: jax.Array,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """`[B, height, width, C] -> [B, T, D]`: the class token's state first, if there is one.

        `key` is the dropout key; `capture` is that of `Transformer`.
        """
        chex.assert_shape(images, (None, *self.image_shape))
        x = self.patch_projection(patches(images.astype(self.dtype), self.patch_size))
        if (token := value_of(self.class_token)) is not None:
            token = jnp.broadcast_to(token.astype(x.dtype), (x.shape[0], 1, x.shape[2]))
            x = jnp.concatenate([place(token, spec_of(x)), x], axis=1)
        return self.transformer(x, mask=Mask(), key=key, capture=capture)

    def states(self, batch, key=None):
        hidden = self.hidden(batch["images"], key)
        # What is averaged over an image are its patches.
        patch = jnp.arange(hidden.shape[1])[None, :] >= (self.class_token is not None)
        return States(hidden, hidden[:, 0], valid=jnp.broadcast_to(patch, hidden.shape[:2]))
