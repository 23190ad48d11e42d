"""DeepSeek's latent attention: keys and values are projections of one narrow vector per token."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.checks import POSITIVE, RATE, check_field, check_fields, optional
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import tap
from jaxformer.functional.arrays import gathered, per_device
from jaxformer.functional.linear import dense, dot
from jaxformer.functional.norms import Norm, RMSNorm
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.io.serialization import summary
from jaxformer.nn.attention import Attention, DotProductAttention, SelfAttention
from jaxformer.nn.cache import KeyValueCache
from jaxformer.nn.config import SIZE, SIZE_OR_NONE, TransformerConfig
from jaxformer.nn.layers import Linear, NormLayer, normal
from jaxformer.nn.sublayer import SelfAttentionConfig


class LatentAttentionLayer(Attention):
    """Attention whose `key` projects to one rotated key `[B, S, 1, R]` that all heads share, and
    whose `value` projects to the latent `[B, S, 1, r]` that the rest of keys and values comes from.

    The cache contains only these two.
    """

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        settings: "LatentAttention",
    ):
        """Declares the projections and the norms of the latents; see `Attention`."""
        keys = jax.random.split(key, 8)
        rope, rank, query_rank = settings.rope_dim, settings.rank, settings.query_rank
        model, latent = {"embed": config.model_dim}, {"rank": rank}
        heads = {"heads": config.num_heads}
        queries = heads | {"head_dim": config.head_width}
        values = heads | {"head_dim": config.value_width}
        std, bias = normal(config.init_std), settings.bias
        narrow = query_rank is not None
        down = {"rank": query_rank} if narrow else queries
        self.query = Linear(keys[0], model, down, std, bias=bias and narrow)
        self.query_norm = NormLayer(keys[1], settings.norm, query_rank) if narrow else None
        self.query_up = Linear(keys[2], down, queries, std) if narrow else None
        self.key = Linear(keys[3], model, {"kv_heads": 1, "head_dim": rope}, std, bias=bias)
        self.value = Linear(keys[4], model, {"kv_heads": 1} | latent, std, bias=bias)
        self.value_norm = NormLayer(keys[5], settings.norm, rank)
        own = heads | {"head_dim": config.head_width - rope}
        self.key_up, self.value_up = (
            Linear(each, latent, outputs, std)
            for each, outputs in zip(jax.random.split(keys[6]), (own, values), strict=True)
        )
        output_std = normal(config.output_std)
        self.output = Linear(keys[7], values, model, output_std, bias=bias)
        self.position = position
        self.num_heads = self.kv_heads = config.num_heads
        self.head_dim, self.value_dim = config.head_width, config.value_width
        self.rope_dim, self.rank = rope, rank
        self.scale = settings.scale or settings.default_scale(config, position)
        self.scale_by_depth, self.softcap, self.clip, self.sinks = False, None, None, None
        self.dropout = settings.dropout
        self.implementation = config.attention

    def queries(self, x, factor=None):
        del factor
        query = self._projected(self.query, x)
        if self.query_up is not None:
            query = self.query_up(self.query_norm(query))
        return tap("hook_q", query)

    def keys_and_values(self, x):
        return self._projected(self.key, x), self.value_norm(self._projected(self.value, x))

    def rotated(self, query_BTNH, key_BSKH, positions, kv_positions, lengths=None):
        start = self.head_dim - self.rope_dim
        query_BTNR, key_BS1R = super().rotated(
            query_BTNH[..., start:], key_BSKH, positions, kv_positions, lengths
        )
        return jnp.concatenate([query_BTNH[..., :start], query_BTNR], axis=-1), key_BS1R

    def empty_cache(self, shape, slots):
        return KeyValueCache.empty(shape, slots, 1, self.rope_dim, self.rank)

    def attended(self, query_BTNH, key_BSKH, value_BSKH, **options):
        """`[B, T, N, H']`, from rotated queries, rotated keys `[B, S, 1, R]` and latents."""
        # For few queries, the projections are absorbed into the queries and the outputs. Otherwise
        # each head has separate keys and values.
        length, num_keys = query_BTNH.shape[1], key_BSKH.shape[1]
        widths = self.head_dim - self.rope_dim + self.value_dim
        wider = 2 * self.rank + self.rope_dim - self.head_dim - self.value_dim
        absorbs = length * (self.rank * widths + num_keys * wider) < num_keys * self.rank * widths
        attend = self._with_latents if absorbs else self._with_heads
        return attend(query_BTNH, key_BSKH, value_BSKH, **options)

    def _with_heads(self, query_BTNH, key_BS1R, latent_BS1r, **options):
        latent_BSr = latent_BS1r[:, :, 0]

        def with_shared(own_BSNH, key_BS1R):
            shape = (*own_BSNH.shape[:3], self.rope_dim)
            return jnp.concatenate([own_BSNH, jnp.broadcast_to(key_BS1R, shape)], axis=-1)

        key_BSNH = tap("hook_k", per_device(with_shared, self.key_up(latent_BSr), key_BS1R))
        value_BSNH = tap("hook_v", self.value_up(latent_BSr))
        return super().attended(query_BTNH, key_BSNH, value_BSNH, **options)

    def _with_latents(self, query_BTNH, key_BS1R, latent_BS1r, **options):
        start = self.head_dim - self.rope_dim
        key_rNH, value_rNH = (
            gathered(dense(layer.kernel.get_value(), (self.rank,)), query_BTNH, 2)
            for layer in (self.key_up, self.value_up)
        )
        query_BTNr = _by_head(query_BTNH[..., :start], key_rNH, 2)
        query = jnp.concatenate([query_BTNr, query_BTNH[..., start:]], axis=-1)
        key = jnp.concatenate([latent_BS1r, key_BS1R], axis=-1)
        return _by_head(super().attended(query, key, latent_BS1r, **options), value_rNH, 0)


def _by_head(x_BTNH: jax.Array, kernel: jax.Array, axis: int) -> jax.Array:
    """The product of each head with its own matrix, whose axis `axis` it contracts."""
    kernel = kernel.astype(x_BTNH.dtype)
    product_NBTH = dot(x_BTNH, kernel, (((3,), (axis,)), ((2,), (1,))), dtype=x_BTNH.dtype)
    return product_NBTH.transpose(1, 2, 0, 3)


@dataclass(frozen=True, kw_only=True)
class LatentAttention(SelfAttentionConfig):
    r"""Multi-head latent attention (MLA): the keys and values of all heads are low-rank.

    .. math:: c_s = \mathrm{norm}(W_c x_s), \quad
              k_{s n} = [K_n c_s,\; \mathrm{rope}(W_r x_s)], \quad v_{s n} = V_n c_s

    A cache holds c and the rotated key, r + R numbers per token, regardless of the number of heads.
    The first `head_dim` - R channels of a query and of a key have no positions. The scale is 1 /
    sqrt(head_dim), times the square of the temperature of YaRN's `mscale_all_dim`.

    References:
        DeepSeek-AI, DeepSeek-V2 (https://arxiv.org/abs/2405.04434), section 2.1.
    """

    rank: int = 512
    """Width of the latent c of keys and values (r, kv_lora_rank)."""
    query_rank: int | None = 1536
    """Width of the latent of queries (q_lora_rank). None: queries are projected directly."""
    rope_dim: int = 64
    """Channels of each head that rotate, the last ones (R)."""
    norm: Norm = RMSNorm(eps=1e-6)
    """The norm of both latents."""
    bias: bool = False
    """Biases of the projections to latents and to the rotated key, and of the output's."""
    scale: float | None = None
    """Multiplies the logits. None: see above."""
    dropout: float = 0.0
    """Dropout of the probabilities."""

    def __post_init__(self):
        super().__post_init__()
        sizes = {"rank": SIZE, "rope_dim": SIZE, "query_rank": SIZE_OR_NONE}
        check_fields(self, "self_attention", scale=optional(POSITIVE), dropout=RATE, **sizes)

    def check(self, config):
        super().check(config)
        rule = f"below model.head_dim = {config.head_width}"
        check_field(self, "rope_dim", self.rope_dim < config.head_width, rule, "self_attention")
        if config.kv_heads != config.num_heads:
            raise ConfigError(
                f"model.num_kv_heads = {config.num_kv_heads}: must be None with self_attention = "
                f"{summary(self)}, which has keys and values for each head"
            )
        for position in (config.position, config.window_position or config.position):
            position.validate_sizes(model_dim=config.model_dim, head_dim=self.rope_dim)
            if getattr(position, "values", False):
                raise ConfigError(
                    f"model.position = {position}: must have values=False with self_attention = "
                    f"{summary(self)}, whose values are projected from latents"
                )

    def default_scale(self, config: TransformerConfig, position: Position) -> float:
        """The multiplier of the logits, unless `scale` gives another."""
        factor = position.scaling.logit_factor if isinstance(position, RoPE) else 1.0
        return factor * config.head_width**-0.5

    def build(self, key, config, position, window):
        attention = partial(LatentAttentionLayer, settings=self)
        return SelfAttention(key, config, position, window, attention)

    products_per_pair = DotProductAttention.products_per_pair
