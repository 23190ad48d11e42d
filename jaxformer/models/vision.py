"""Transformers over the patches of images (ViT)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.checks import RATE, check_argument, check_field, check_fields, optional
from jaxformer.functional.arrays import assert_axes, assert_bool, assert_floating, place, spec_of
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
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    FeedForwardConfig,
    Linear,
    SelfAttentionConfig,
    Transformer,
)
from jaxformer.nn.config import SIZE
from jaxformer.nn.layers import normal, parameter

POSITION_TABLE = "transformer.inputs.position_table"


@dataclass(frozen=True)
class VisionConfig(TransformerModelConfig):
    """An encoder over the patches of an image (ViT)."""

    required: ClassVar[tuple[str, ...]] = ("images",)
    input_fields: ClassVar[tuple[str, ...]] = ("image_size", "channels")
    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images in pixels."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch; they divide those of the image."""
    channels: int = 3
    """Colours of a pixel."""
    crop: bool = False
    """Pixels beyond the last whole patch are left out (SigLIP cuts 384 into 27 x 14); False: there
    must be none."""
    patch_bias: bool = True
    """Bias of the linear map of the patches."""
    class_token: bool = True
    """A learned token before the patches, whose state stands for the image."""
    distillation_token: bool = False
    """Another one after it, whose state is asked for what a teacher says (DeiT)."""
    register_tokens: int = 0
    """Other learned tokens after them, which no head reads (DINOv3)."""
    mask_token: bool = False
    """A learned token that takes the place of hidden patches (BEiT, DINOv2)."""
    mask_ratio: float | None = None
    """Share of the patches that are not read: the first of those that are hidden (MAE). None: all
    patches are read, and hidden ones are replaced by the mask token."""
    interpolate_positions: bool = False
    """Images of any size are read: tables of positions are resized to their grid of patches
    whenever the model runs, and pixels beyond the last whole patch are left out. False: images have
    `image_size`."""
    pooler: Literal["tanh", "relu", "gelu"] | Pooler | None = None
    """Activation of a dense layer on the first token's state; or NormPooler (CLIP, BEiT),
    AttentionPooler (SigLIP). None: classifiers read that state itself."""
    position: Position = Learned(max_length=197)
    """Learned, with a row for the class token and every patch; Learned2D, for images that may each
    have a grid of their own; Sinusoidal2D or RoPE2D; Sinusoidal or another scheme of one axis, in
    which the patches follow one another row by row."""
    norm: Norm = LayerNorm(eps=1e-6)
    """LayerNorm or RMSNorm."""
    self_attention: SelfAttentionConfig = DotProductAttention(bias=True, output_bias=True)
    """DotProductAttention, or another sublayer that moves information between tokens."""
    feed_forward: FeedForwardConfig = MLP(activation="gelu", gated=False, bias=True)
    """The sublayer that treats each token by itself: MLP, or your own."""
    heads: tuple[Head, ...] = (Classification(num_labels=1000),)
    """What is predicted from the hidden states."""

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
        check_field(self, "relative_position", one, f"None: beside {self.position} there is none")

    @property
    def num_prefix(self) -> int:
        """How many tokens come before the patches."""
        return int(self.class_token) + int(self.distillation_token) + self.register_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (rows, columns) = self.image_size, self.patch_size
        return height // rows, width // columns

    @property
    def num_tokens(self) -> int:
        """T: the patches, and what comes before them."""
        return self.num_patches + self.num_prefix

    @property
    def num_patches(self) -> int:
        """The patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_read(self) -> int:
        """The patches of an image that are read."""
        return int(self.num_patches * (1 - (self.mask_ratio or 0.0)))

    def for_grid(self, grid: tuple[int, int]) -> "VisionConfig":
        """The same model for images of another size, whose parameters `adapted` makes.

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
        """Resizes tables of positions from another model with another grid of patches.

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
        """The scheme whose table a parameter is."""
        scheme = self.relative_position or self.position
        if name == POSITION_TABLE:
            return self.position
        return scheme if name.endswith((".relative_table", ".position_table")) else None

    def build(self, key):
        return Vision(key, self)

    def batch_spec(self, rows, lengths):
        spec = self.input_spec(rows, lengths)
        for head in self.heads:
            spec |= head.reads(rows, self.num_patches if head.unit == "patch" else self.num_tokens)
        return spec

    def input_spec(self, rows, lengths):
        del lengths
        return {"images": array(rows, *self.image_size, self.channels, dtype=jnp.float32)}

    def row_lengths(self, lengths):
        """The patches and the tokens before them."""
        del lengths
        return {"inputs": self.num_tokens}

    def flops(self, lengths):
        del lengths
        rows, columns = self.patch_size
        products = rows * columns * self.channels * self.model_dim
        blocks = self, self.sublayers, self.num_layers
        read = self.num_prefix + self.num_read
        share = read / self.num_tokens
        products += share * block_products(*blocks) + sum(x.products(self) for x in self.heads)
        attention = attention_flops(*blocks, read, causal=False)
        return TokenFlops(2 * products, *(share * each for each in attention))


class Vision(Model):
    """A linear map of every patch, a class token, and an encoder's blocks.

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
        self.transformer = Transformer(
            keys[2],
            config,
            position=config.position,
            make_block=partial(config.block.build, sublayers=config.sublayers),
            num_layers=config.num_layers,
            width=dim,
        )
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
        """The hidden states of the class, distillation and patch tokens.

        Images of several shapes are given as patches, see `functional.patches`, with their grids;
        the position is then one such as Learned2D.

        Args:
            images: Pixels `[B, height, width, C]`; with `grids` patches `[B, T, rows * columns *
                C]`, those of each image row by row, then padding.
            key: The dropout key; None in evaluation.
            masked: bool `[B, patches]`: the patches that the mask token replaces; None: none.
            places: int `[B, K]`: the patches that are read; None: all.
            grids: int `[B, 2]`: rows and columns of the patches of each image.
            real: bool `[B, T]`: the patches that are attended to; None: all.

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
        grid = tuple(
            n // size for n, size in zip(images.shape[1:3], config.patch_size, strict=True)
        )
        if grid != config.grid:
            # The parameters stay those of the file: only this pass has tables of another size.
            return self._for_grid(grid)._hidden(images, key, masked, places, sizes["B"])
        return self._hidden(images, key, masked, places, sizes["B"])

    def _packed(self, images, grids, real, key):
        """The states of images that are cut into patches, each on a grid of its own."""
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
        """This model for images with another grid of patches."""
        config = self.config.for_grid(grid)
        parameters = {
            ".".join(map(str, path)): variable.get_value()
            for path, variable in nnx.to_flat_state(nnx.state(self))
        }
        return AbstractModel(config.build).module(
            {name: config.adapted(name, value, self.config) for name, value in parameters.items()}
        )

    def _hidden(self, images, key, masked, places, rows):
        """The states for images whose patches are those of the configuration."""
        height, width = (
            n * size for n, size in zip(self.config.grid, self.config.patch_size, strict=True)
        )
        images = images[:, :height, :width].astype(self.config.dtype)
        x = self.patch_projection(patches(images, self.config.patch_size))
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
        """The model's outputs for hidden states `[B, T, D]`.

        Args:
            hidden: The states.
            places: int `[B, K]`: the patches that were read; None: all.
            real: bool `[B, T]`: the tokens that are no padding; None: all.

        Returns:
            The outputs.
        """
        # Means over an image are over its patches.
        patch = jnp.arange(hidden.shape[1])[None, :] >= self.config.num_prefix
        pooled = hidden[:, 0] if self.pooler is None else self.pooler(hidden, real)
        valid = jnp.broadcast_to(patch, hidden.shape[:2]) if real is None else patch & real
        return ModelOutput(hidden, pooled, valid=valid, places=places)

    def outputs(self, batch, key=None):
        masked, places = batch.get("masked"), None
        if self.config.mask_ratio is not None and masked is not None:
            # Visible patches first, in their order.
            places = jnp.argsort(masked, axis=1, stable=True)[:, : self.config.num_read]
            masked = None
        return self.outputs_from(self.hidden(batch["images"], key, masked, places), places)

    @staticmethod
    def _tokens(tokens: nnx.Param, x: jax.Array) -> jax.Array:
        """Learned tokens `[D]` or `[R, D]` for each row of `x` `[B, T, D]`, as `[B, R, D]`."""
        table = jnp.atleast_2d(tokens[...]).astype(x.dtype)
        rows = jnp.broadcast_to(table, (x.shape[0], *table.shape))
        return place(rows, spec_of(x))
