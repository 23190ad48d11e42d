"""Vision transformers over image patches (ViT)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.checks import RATE, check_argument, check_field, check_fields, optional
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    place,
    spec_of,
    whole_rows,
)
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.patches import patches
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import Learned
from jaxformer.models.flops import TokenFlops, attention_flops, block_products
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads
from jaxformer.models.heads.labels import Classification
from jaxformer.models.heads.poolers import Pooler, build_pooler
from jaxformer.models.model import Model, TransformerModelConfig, check_no_windows
from jaxformer.models.parameters import AbstractModel, stack_path
from jaxformer.nn import MLP, DotProductAttention, FeedForwardConfig, Linear, SelfAttentionConfig
from jaxformer.nn.config import SIZE
from jaxformer.nn.layers import normal, parameter

POSITION_TABLE = "transformer.inputs.position_table"


@dataclass(frozen=True)
class VisionConfig(TransformerModelConfig):
    """Configuration of an encoder over image patches (ViT)."""

    required: ClassVar[tuple[str, ...]] = ("images",)
    input_fields: ClassVar[tuple[str, ...]] = ("image_size", "channels")
    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images in pixels."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch, divisors of the image size."""
    channels: int = 3
    """Number of image channels."""
    crop: bool = False
    """Whether to drop pixels beyond the last whole patch (SigLIP splits 384 into 27 x 14);
    otherwise the patch size must divide the image size.
    """
    patch_bias: bool = True
    """Whether the patch projection has a bias."""
    class_token: bool = True
    """Whether a learned class token precedes the patches."""
    distillation_token: bool = False
    """Whether a distillation token follows the class token (DeiT)."""
    register_tokens: int = 0
    """Number of additional learned register tokens (DINOv3)."""
    mask_token: bool = False
    """Whether a learned token replaces masked patches (BEiT, DINOv2)."""
    mask_ratio: float | None = None
    """Fraction of patches to drop: the first ones of the masked patches (MAE). None keeps all
    patches and replaces masked ones with the mask token.
    """
    interpolate_positions: bool = False
    """Whether to support images of any size: tables of positions are resized to their grid of
    patches whenever the model runs, and pixels beyond the last whole patch are dropped.
    """
    pooler: Literal["tanh", "relu", "gelu"] | Pooler | None = None
    """Activation of a dense layer on the first token's state; or NormPooler (CLIP, BEiT),
    AttentionPooler (SigLIP). None uses that state directly.
    """
    position: Position = Learned(max_length=197)
    """Learned, with a row for the class token and every patch; Learned2D, for images with different
    grids; Sinusoidal2D or RoPE2D; Sinusoidal or another one-dimensional scheme, over the patches in
    row-major order.
    """
    norm: Norm = LayerNorm(eps=1e-6)
    """LayerNorm or RMSNorm."""
    self_attention: SelfAttentionConfig = DotProductAttention(bias=True, output_bias=True)
    """DotProductAttention or another token-mixing sublayer."""
    feed_forward: FeedForwardConfig = MLP(activation="gelu", gated=False, bias=True)
    """The position-wise sublayer: MLP or a user-defined one."""
    heads: tuple[Head, ...] = (Classification(num_labels=1000),)
    """The heads on the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_no_windows(self)
        check_fields(self, "model", channels=SIZE, mask_ratio=optional(RATE))
        for pixels, patch in zip(self.image_size, self.patch_size, strict=True):
            whole = self.crop or (patch > 0 and pixels % patch == 0)
            fits = 0 < patch <= pixels and whole
            check_field(self, "patch_size", fits, f"a divisor of image_size = {self.image_size}")
        after = self.class_token or not self.distillation_token
        check_field(self, "distillation_token", after, "False: there is no class token")
        check_field(self, "register_tokens", self.register_tokens >= 0, "0 or more")
        for scheme in filter(None, (self.position, self.relative_position)):
            scheme.validate_grid(self.grid, self.num_prefix)
        one = self.relative_position is None or not self.position.any_grid
        check_field(
            self, "relative_position", one, f"None, since {self.position} does not support it"
        )

    @property
    def num_prefix(self) -> int:
        """The number of tokens before the patches."""
        return int(self.class_token) + int(self.distillation_token) + self.register_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches."""
        return self.grid_of(self.image_size)

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of patches of images with this height and width."""
        (height, width), (rows, columns) = size, self.patch_size
        return height // rows, width // columns

    @property
    def num_tokens(self) -> int:
        """T, the number of patches and prefix tokens."""
        return self.num_patches + self.num_prefix

    @property
    def num_patches(self) -> int:
        """The number of patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_read(self) -> int:
        """The number of patches of an image that are not dropped."""
        return int(self.num_patches * (1 - (self.mask_ratio or 0.0)))

    def cut(self, images: jax.Array) -> jax.Array:
        """Cuts images `[B, height, width, C]` into patches `[B, T, rows, columns, C]`."""
        height, width = (n * size for n, size in zip(self.grid, self.patch_size, strict=True))
        return patches(images[:, :height, :width], self.patch_size)

    def for_grid(self, grid: tuple[int, int]) -> "VisionConfig":
        """Returns the model for images of another size, with parameters from `adapted`.

        Args:
            grid: Rows and columns of the patches of the images.

        Returns:
            The configuration.
        """
        size = tuple(count * pixels for count, pixels in zip(grid, self.patch_size, strict=True))
        schemes = {
            name: scheme.for_grid(grid, self.num_prefix)
            for name in ("position", "relative_position")
            if (scheme := getattr(self, name)) is not None
        }
        return replace(self, image_size=size, **schemes)

    def adapted(self, name, value, source):
        """Resizes tables of positions of a model with another grid of patches.

        References:
            Dosovitskiy et al., 2020 (https://arxiv.org/abs/2010.11929), section 3.2.

        Returns:
            The parameter of this model.
        """
        if not isinstance(source, VisionConfig) or source.num_prefix != self.num_prefix:
            return value
        ours, theirs = (config._scheme_of(name) for config in (self, source))
        if ours is None or type(ours) is not type(theirs) or source.grid == self.grid:
            return value
        resize = partial(
            ours.resized, old_grid=source.grid, new_grid=self.grid, prefix=self.num_prefix
        )
        by_layer = stack_path(name) is not None
        resized = (jax.vmap(resize) if by_layer else resize)(jnp.asarray(value))
        return np.asarray(resized) if isinstance(value, np.ndarray) else resized

    def _scheme_of(self, name: str) -> Position | None:
        """Returns the scheme whose table a parameter is."""
        scheme = self.relative_position or self.position
        if name == POSITION_TABLE:
            return self.position
        return scheme if name.endswith((".relative_table", ".position_table")) else None

    def build(self, key):
        return Vision(key, self)

    def head_length(self, head, lengths):
        return self.num_patches if head.unit == "patch" else self.num_tokens

    def input_spec(self, rows, lengths):
        return {"images": array(rows, *self.image_size, self.channels, dtype=jnp.float32)}

    def row_lengths(self, lengths):
        """Returns the number of patches and prefix tokens."""
        return {"inputs": self.num_tokens}

    def flops(self, lengths):
        rows, columns = self.patch_size
        products = rows * columns * self.channels * self.model_dim
        blocks = self, self.sublayers, self.num_layers
        read = self.num_prefix + self.num_read
        share = read / self.num_tokens
        products += share * block_products(*blocks) + sum(x.products(self) for x in self.heads)
        attention = attention_flops(*blocks, read, causal=False)
        return TokenFlops(2 * products, *(share * each for each in attention))


class Vision(Model):
    """A vision transformer: patch projection, class token and encoder blocks.

    References:
        Dosovitskiy et al., An Image is Worth 16x16 Words (https://arxiv.org/abs/2010.11929).
    """

    def __init__(self, key: jax.Array, config: VisionConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 7)
        (rows, columns), std = config.patch_size, normal(config.init_std)
        dim = config.model_dim
        patch = {"patch_rows": rows, "patch_columns": columns, "channels": config.channels}
        bias = config.patch_bias
        self.patch_projection = Linear(keys[0], patch, {"embed": dim}, std, bias=bias)
        token = partial(parameter, shape=(dim,), axes=("embed",), initializer=std)
        self.class_token = token(keys[1]) if config.class_token else None
        self.distillation_token = token(keys[4]) if config.distillation_token else None
        self.mask_token = token(keys[5]) if config.mask_token else None
        registers = config.register_tokens, dim
        fresh = jax.random.fold_in(keys[5], 1)
        self.register_table = (
            parameter(fresh, registers, ("kinds", "embed"), std) if registers[0] else None
        )
        self.transformer = config.build_transformer(keys[2], dim)
        self.pooler = build_pooler(keys[6], config, config.pooler)
        self.heads = build_heads(keys[3], config, config.heads)
        self.config = config

    def hidden(
        self,
        images: jax.Array,
        key: jax.Array | None = None,
        masked: jax.Array | None = None,
        places: jax.Array | None = None,
        grids: jax.Array | None = None,
        real: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states of the class, distillation and patch tokens.

        Images of several shapes are passed as patches, see `functional.patches`, with their grids;
        this requires a positional scheme such as Learned2D.

        Args:
            images: Pixels `[B, height, width, C]`; with `grids` patches `[B, T, rows * columns *
                C]`, in row-major order, then padding.
            key: The dropout key; None in evaluation.
            masked: bool `[B, patches]`: the patches to replace with the mask token, or None.
            places: int `[B, K]`: the patches to keep; None means all.
            grids: int `[B, 2]`: rows and columns of the patches of each image.
            real: bool `[B, T]`: the patches to attend to; None means all.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        config = self.config
        if grids is not None:
            return self._packed(images, grids, real, key)
        given = (
            "height width" if config.interpolate_positions else "{} {}".format(*config.image_size)
        )
        sizes = assert_axes(images=(images, f"B {given} {config.channels}"))
        assert_floating(images=images)
        grid = config.grid_of(images.shape[1:3])
        if grid != config.grid:
            # The stored parameters are unchanged: only this pass uses resized tables.
            return self._for_grid(grid)._hidden(images, key, masked, places, sizes["B"])
        return self._hidden(images, key, masked, places, sizes["B"])

    def _packed(self, images, grids, real, key):
        """Returns the states of images given as patches, each with a separate grid."""
        (rows, columns), channels = self.config.patch_size, self.config.channels
        sizes = assert_axes(images=(images, f"B T {rows * columns * channels}"))
        assert_floating(images=images)
        mask = Mask()
        if real is not None:
            assert_axes(sizes, real=(real, "B T"))
            assert_bool(real=real)
            mask = KeyPadding(real)
        cut = images.reshape(*images.shape[:2], rows, columns, channels)
        x = self.patch_projection(cut.astype(self.config.dtype))
        return self.transformer(x, mask=mask, key=key, grids=grids)

    def _for_grid(self, grid: tuple[int, int]) -> "Vision":
        """Returns this model for images with another grid of patches."""
        config = self.config.for_grid(grid)
        parameters = {
            ".".join(map(str, path)): variable.get_value()
            for path, variable in nnx.to_flat_state(nnx.state(self))
        }
        return AbstractModel(config.build).module(
            {name: config.adapted(name, value, self.config) for name, value in parameters.items()}
        )

    def _hidden(self, images, key, masked, places, rows):
        """Returns the states for images with the configured grid of patches."""
        x = self.patch_projection(self.config.cut(images.astype(self.config.dtype)))
        if masked is not None:
            wanted = "None: the model has no token for masked patches"
            check_argument("masked", masked, self.mask_token is not None, wanted)
            assert_axes({"B": rows, "patches": x.shape[1]}, masked=(masked, "B patches"))
            assert_bool(masked=masked)
            x = jnp.where(masked[..., None], self._tokens(self.mask_token, x), x)
        tokens = (self.class_token, self.distillation_token, self.register_table)
        first = [self._tokens(token, x) for token in tokens if token is not None]
        positions = None
        if places is not None:
            assert_axes({"B": rows}, places=(places, "B read"))
            x = jnp.take_along_axis(x, places[..., None], axis=1)
            count = self.config.num_prefix
            before = jnp.broadcast_to(jnp.arange(count)[None, :], (rows, count))
            before = place(before, spec_of(places))
            positions = jnp.concatenate([before, places + count], axis=1)
        x = jnp.concatenate([*first, x], axis=1)
        return self.transformer(x, mask=Mask(), positions=positions, key=key)

    def outputs_from(
        self,
        hidden: jax.Array,
        places: jax.Array | None = None,
        real: jax.Array | None = None,
    ) -> ModelOutput:
        """Returns the model's outputs for hidden states `[B, T, D]`.

        Args:
            hidden: The states.
            places: int `[B, K]`: the patches that were kept; None means all.
            real: bool `[B, T]`: the non-padding tokens; None means all.

        Returns:
            The outputs.
        """
        hidden = whole_rows(hidden)
        # Means over an image use only its patches.
        patch = jnp.arange(hidden.shape[1])[None, :] >= self.config.num_prefix
        pooled = hidden[:, 0] if self.pooler is None else self.pooler(hidden, real)
        valid = jnp.broadcast_to(patch, hidden.shape[:2]) if real is None else patch & real
        return ModelOutput(hidden, pooled, valid=valid, places=places)

    def outputs(self, batch, key=None):
        masked, places = batch.get("masked"), None
        if self.config.mask_ratio is not None and masked is not None:
            # Visible patches first, in order.
            places = jnp.argsort(masked, axis=1, stable=True)[:, : self.config.num_read]
            masked = None
        return self.outputs_from(self.hidden(batch["images"], key, masked, places), places)

    @staticmethod
    def _tokens(tokens: nnx.Param, x: jax.Array) -> jax.Array:
        """Broadcasts learned tokens `[D]` or `[R, D]` to `[B, R, D]` for the rows of `x`."""
        table = jnp.atleast_2d(tokens[...]).astype(x.dtype)
        rows = jnp.broadcast_to(table, (x.shape[0], *table.shape))
        return place(rows, spec_of(x))
