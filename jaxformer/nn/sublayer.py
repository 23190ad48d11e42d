"""The interface of a block's sublayers, and the context that they read."""

import abc
import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.masks import KeyPadding, Mask, Segments, real_tokens, terms_of
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.bias import Bias
from jaxformer.functional.positions.distances import DistanceEmbedding
from jaxformer.io.serialization import summary
from jaxformer.nn.cache import CacheShape, Chunk
from jaxformer.nn.config import TransformerConfig

SublayerCache = Any
"""Each sublayer defines its own cache type: a `KeyValueCache`, another tree of arrays `[B, ...]`,
or None if it needs no cache."""


@dataclass(frozen=True)
class Context:
    """The inputs that all layers of one call share, except the residual stream."""

    positions: jax.Array
    """int `[B or 1, T]`: the position of each token."""
    mask: Mask = Mask()
    """The self-attention mask."""
    bias: Bias | None = None
    """The positional scheme's attention bias."""
    encoder_outputs: jax.Array | None = None
    """`[B, S, D]`, for cross-attention."""
    encoder_mask: Mask = Mask()
    """The cross-attention mask."""
    layer: jax.Array | int = 0
    """The index of the layer; the stack sets it."""
    chunk: Chunk | None = None
    """The tokens that are read, in a pass with a cache."""
    lengths: jax.Array | None = None
    """int `[B]`: the length of each row, for positional schemes that depend on it, in a pass with
    a cache."""
    vectors: jax.Array | None = None
    """`[R, D]`: the vectors for distances, if the positional scheme has them."""

    def documents(self, x: jax.Array, setting: str) -> jax.Array:
        """The document of each token of `x` `[B, T, D]`, int `[B, T]`, 0 for padding.

        Args:
            x: The tokens.
            setting: The setting that needs the documents, for messages: "block = ...".

        Returns:
            The documents, by a mask of padding and of at most one set of documents.

        Raises:
            ConfigError: The mask has other terms, or two sets of documents.
        """
        terms = terms_of(self.mask)
        sets = [term for term in terms if isinstance(term, Segments)]
        known = all(isinstance(term, KeyPadding | Segments) for term in terms)
        if not known or len(sets) > 1:
            raise ConfigError(
                f"model.{setting}: must be another with masks other than those of padding and of "
                "one set of documents; use the default"
            )
        documents = sets[0].key if sets else jnp.ones(x.shape[:2], jnp.int32)
        real = real_tokens(self.mask)
        return documents if real is None else jnp.where(real, documents, 0)


jax.tree_util.register_dataclass(Context, [field.name for field in fields(Context)], [])


class Sublayer(nnx.Module):
    """A map of the residual stream, over whole rows or a few tokens at a time with a cache.

    Repeated calls of `step` from `init_cache` give the result of `__call__` for all tokens at once.
    The two methods of this base class suit a sublayer that treats each token separately.
    """

    name: ClassVar[str] = "sublayer"
    """The name in those of its activations: "attn" in "attn.hook_z" and "hook_attn_out"."""
    joins: ClassVar[tuple[str, ...]] = ()
    """The paths of linear maps of one x, whose kernels generation joins for a single product."""

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """Maps the residual stream.

        Args:
            x: `[B, T, D]`.
            context: The inputs that all layers share.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]`.
        """
        raise NotImplementedError

    def init_cache(self, shape: CacheShape, encoder_outputs: jax.Array | None) -> SublayerCache:
        """The cache before the first token; `encoder_outputs` is `[B, S, D]` or None."""
        del shape, encoder_outputs

    def step(
        self, x: jax.Array, context: Context, cache: SublayerCache
    ) -> tuple[jax.Array, SublayerCache]:
        """Maps the tokens of `context.chunk`, which may depend on earlier ones through the cache.

        Only the first `context.chunk.count` tokens of a row are real, possibly none; the others
        must not change the cache. A row that starts at 0 ignores the contents of its cache.

        Args:
            x: `[B, T, D]`.
            context: The inputs that all layers share.
            cache: The cache of the earlier tokens.

        Returns:
            `[B, T, D]`, and the cache with these tokens.
        """
        return self(x, context, None), cache


@dataclass(frozen=True)
class SublayerConfig(abc.ABC):
    """Describes a sublayer of a model's blocks; `build` makes the module that computes it.

    A subclass is a frozen dataclass. Its fields are its settings; the sizes are those of the model.
    """

    def __post_init__(self):
        check_types(self)

    @abc.abstractmethod
    def build(
        self, key: jax.Array, config: TransformerConfig, position: Position, window: int | None
    ) -> Sublayer:
        """Declares the sublayer's parameters.

        Args:
            key: A PRNG key for the initial values.
            config: The model's sizes and settings.
            position: The positional scheme of the layer.
            window: The sliding window of the layer; None if it has none.

        Returns:
            The sublayer.
        """

    def products(self, config: TransformerConfig) -> int:
        """Multiply-adds per token with the parameters: by default the size of all kernels."""
        key = jax.random.key(0)
        built = jax.eval_shape(lambda key: self.build(key, config, config.position, None), key)
        params = (node for _, node in nnx.iter_graph(built) if isinstance(node, nnx.Param))
        return sum(math.prod(p.shape) for p in params if p.get_metadata()["contract"])

    def products_per_pair(self, config: TransformerConfig) -> int:
        """Multiply-adds for each pair of a token and one that it attends to; 0 without pairs."""
        del config
        return 0


def settings_of(config: TransformerConfig, field: str, kind: type) -> Any:
    """The sublayer in a field if it is of a class, or the default of the model's family."""
    own = getattr(config, field, None)
    known = type(config).__dataclass_fields__
    if isinstance(own, kind):
        return own
    return known[field].default if field in known else kind()


@dataclass(frozen=True)
class SelfAttentionConfig(SublayerConfig, abc.ABC):
    """Describes self-attention, or another sublayer that moves information between tokens."""

    def check(self, config: TransformerConfig) -> None:
        """Checks the settings of a model that has this sublayer.

        Args:
            config: The settings.

        Raises:
            ConfigError: The two do not fit together: by default, a positional scheme has vectors
                for distances, which would have no effect.
        """
        for name in ("position", "relative_position"):
            scheme = getattr(config, name)
            if isinstance(scheme, DistanceEmbedding):
                raise ConfigError(
                    f"model.{name} = {scheme}: must be another scheme with self_attention = "
                    f"{summary(self)}; use relative_position and DisentangledAttention()"
                )

    def for_decoder(self) -> "SelfAttentionConfig":
        """The self-attention of an encoder-decoder's decoder: by default the same."""
        return self


@dataclass(frozen=True)
class CrossAttentionConfig(SublayerConfig, abc.ABC):
    """Describes a decoder's sublayer that reads the encoder outputs."""

    def encoder_products(self, config: TransformerConfig) -> int:
        """Multiply-adds per token of the encoder outputs, which cross-attention projects."""
        del config
        return 0


@dataclass(frozen=True)
class FeedForwardConfig(SublayerConfig, abc.ABC):
    """Describes the sublayer that treats each token separately."""

    @property
    def first_layers(self) -> tuple["FeedForwardConfig", ...]:
        """The feed-forward layers of the first blocks, one for each; by default none.

        `windows` must then have an entry for every layer.
        """
        return ()
