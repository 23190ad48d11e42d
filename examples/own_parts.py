"""Parts of your own: seven sublayers, a block and a loss, each a class of a few lines.

    python -m jaxformer train examples/own_parts.py:differential

trains a small decoder with one of them on the text of Python's standard library; the name after the
colon is one of PARTS. The run is resumed, evaluated and generated from like any other: its folder
keeps a copy of this file.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig
from jaxformer.functional import (
    RMSNorm,
    Sinusoidal,
    attention,
    per_device,
    token_log_probabilities,
)
from jaxformer.functional.activations import tap
from jaxformer.models import DecoderConfig, LossFunction
from jaxformer.nn import (
    Attention,
    DotProductAttention,
    FeedForward,
    FeedForwardConfig,
    Linear,
    NormLayer,
    SelfAttention,
    SelfAttentionConfig,
    Sublayer,
    TransformerBlock,
    normal,
    parameter,
)
from jaxformer.optim import AdamW, Cosine

# Attention with other scores: subclasses of `Attention` keep its projections and its cache --------


class DifferentialHeads(Attention):
    """Each head subtracts a second attention map from its first (Ye et al., 2024).

    https://arxiv.org/abs/2410.05258, with lambda_init = 0.8 in every layer.
    """

    def __init__(self, key, config, position, kv_dim=None):
        super().__init__(key, config, position, kv_dim)
        keys, half = jax.random.split(jax.random.fold_in(key, 1), 4), config.head_width // 2
        self.lambdas = nnx.List(
            [parameter(each, (half,), ("head_dim",), normal(0.1)) for each in keys]
        )
        self.norm = NormLayer(key, RMSNorm(eps=1e-5), config.value_width)
        # The cache has two keys for each key/value head, and the two halves of its value.
        self.kv_heads, self.head_dim = 2 * config.kv_heads, half
        self.value_dim = config.value_width // 2

    def queries(self, x, factor=None):
        return per_device(_halves, super().queries(x, factor))

    def keys_and_values(self, x):
        key, value = super().keys_and_values(x)
        return per_device(_halves, key), per_device(_halves, value)

    def attend(self, query_BTNH, key_BSKH, value_BSKH, *, mask, bias=None, key=None):
        value_BSKH = per_device(_wholes, value_BSKH)
        first, second = (
            attention(
                per_device(lambda x, i=i: x[:, :, i::2], query_BTNH),
                per_device(lambda x, i=i: x[:, :, i::2], key_BSKH),
                value_BSKH,
                mask=mask,
                bias=bias,
                dropout_rate=self.dropout,
                dropout_key=key,
                implementation=self.implementation,
            )
            for i in range(2)
        )
        q1, k1, q2, k2 = (each[...] for each in self.lambdas)
        factor = jnp.exp(jnp.sum(q1 * k1)) - jnp.exp(jnp.sum(q2 * k2)) + 0.8
        heads = tap("hook_z", self.norm(first - factor.astype(first.dtype) * second) * 0.2)
        return self.output(heads)


def _halves(x):
    """`[B, T, N, 2 H]` to `[B, T, 2 N, H]`."""
    return x.reshape(*x.shape[:2], -1, x.shape[3] // 2)


def _wholes(x):
    """`[B, T, 2 N, H]` to `[B, T, N, 2 H]`."""
    return x.reshape(*x.shape[:2], -1, 2 * x.shape[3])


class AdditiveHeads(Attention):
    """The score of a query and a key is `w . tanh(q + k)` (Bahdanau et al., 2014).

    https://arxiv.org/abs/1409.0473. It has as many key/value heads as heads.
    """

    def __init__(self, key, config, position, kv_dim=None):
        super().__init__(key, config, position, kv_dim)
        sizes, axes = (config.num_heads, config.head_width), ("heads", "head_dim")
        self.score_bias = parameter(jax.random.fold_in(key, 1), sizes, axes, normal(0.3))

    def attend(self, query_BTNH, key_BSKH, value_BSKH, *, mask, bias=None, key=None):
        hidden = jnp.tanh(query_BTNH[:, :, None] + key_BSKH[:, None])
        weights = self.score_bias[...].astype(hidden.dtype)
        logits = jnp.einsum("btsnh,nh->bnts", hidden, weights, preferred_element_type=jnp.float32)
        if bias is not None:
            logits += bias.values()
        allowed = mask.values(*logits.shape[2:])[:, None]
        logits = tap("hook_attn_scores", jnp.where(allowed, logits, -1e30))
        pattern = tap("hook_pattern", jax.nn.softmax(logits)).astype(value_BSKH.dtype)
        heads = jnp.einsum("bnts,bsnh->btnh", pattern, value_BSKH)
        return self.output(tap("hook_z", heads))


@dataclass(frozen=True)
class DifferentialAttention(DotProductAttention):
    """`SelfAttention` with `DifferentialHeads`, and the settings of `DotProductAttention`."""

    def build(self, key, config, position, window):
        return SelfAttention(key, config, position, window, DifferentialHeads)

    def products_per_pair(self, config):
        return config.num_heads * (config.head_width + 2 * config.value_width)


@dataclass(frozen=True)
class AdditiveAttention(DotProductAttention):
    """`SelfAttention` with `AdditiveHeads`, and the settings of `DotProductAttention`."""

    def build(self, key, config, position, window):
        return SelfAttention(key, config, position, window, AdditiveHeads)


# Other sublayers in attention's place, which define their own cache -------------------------------


@dataclass(frozen=True)
class LinearAttention(SelfAttentionConfig):
    """Attention whose softmax is a product of features, so that a state of one size suffices.

    Katharopoulos et al., 2020 (https://arxiv.org/abs/2006.16236). It has as many key/value heads as
    heads, and no rotation: choose positions that are added to the embeddings.
    """

    def build(self, key, config, position, window):
        return LinearSelfAttention(key, config, position)


class LinearSelfAttention(Sublayer):
    """`LinearAttention` with its parameters."""

    name = "attn"

    def __init__(self, key, config, position):
        self.heads = Attention(key, config, position)

    def __call__(self, x, context, key):
        query, keys, values = self._features(x)
        allowed = context.mask.values(x.shape[1], x.shape[1])[:, None]
        scores = jnp.einsum("btnh,bsnh->bnts", query, keys) * allowed
        return self._output(x, jnp.einsum("bnts,bsnv->btnv", scores, values))

    def init_cache(self, shape, encoder_outputs):
        heads = self.heads
        return shape.zeros(heads.num_heads, heads.head_dim, heads.value_dim + 1)

    def step(self, x, context, cache):
        query, keys, values = self._features(x)
        keys = jnp.where(context.chunk.is_real(x.shape[1])[:, :, None, None], keys, 0)
        state = context.chunk.carried(cache)
        scores = jnp.tril(jnp.einsum("btnh,bsnh->bnts", query, keys))
        sums = jnp.einsum("bnts,bsnv->btnv", scores, values)
        sums += jnp.einsum("btnh,bnhv->btnv", query, state)
        return self._output(x, sums), state + jnp.einsum("bsnh,bsnv->bnhv", keys, values)

    def _features(self, x):
        """Positive features of queries and keys, and the values with ones, which count them."""
        (keys, values), query = self.heads.keys_and_values(x), self.heads.queries(x)
        query, keys = (jax.nn.elu(each.astype(jnp.float32)) + 1 for each in (query, keys))
        ones = jnp.ones_like(values[..., :1])
        return query, keys, jnp.concatenate([values, ones], axis=-1).astype(jnp.float32)

    def _output(self, x, sums):
        heads = sums[..., :-1] / jnp.maximum(sums[..., -1:], 1e-6)
        return self.heads.output(tap("hook_z", heads.astype(x.dtype)))


@dataclass(frozen=True)
class GRU(SelfAttentionConfig):
    """A gated recurrent unit (Cho et al., 2014), with the formula of torch.nn.GRU.

    It reads a row from its first token to its last, regardless of the mask: train it on rows
    without packing.
    """

    def build(self, key, config, position, window):
        return GRULayer(key, config)


class GRULayer(Sublayer):
    """`GRU` with its parameters, and a projection of the states."""

    name = "gru"

    def __init__(self, key, config):
        keys, dim = jax.random.split(key, 3), config.model_dim
        std, gates = normal(dim**-0.5), {"mlp": 3 * dim}
        self.inputs = Linear(keys[0], {"embed": dim}, gates, std, bias=True)
        self.recurrent = Linear(keys[1], {"norm": dim}, gates, std, bias=True)
        self.output = Linear(keys[2], {"embed": dim}, {"norm": dim}, normal(config.output_std))

    def __call__(self, x, context, key):
        return self._read(x, jnp.ones(x.shape[:2], bool), jnp.zeros_like(x[:, 0]))[0]

    def init_cache(self, shape, encoder_outputs):
        return shape.zeros(self.recurrent.inputs[0])

    def step(self, x, context, cache):
        state, is_real = context.chunk.carried(cache), context.chunk.is_real(x.shape[1])
        y, state = self._read(x, is_real, state.astype(x.dtype))
        return y, state.astype(cache.dtype)

    def _read(self, x, is_real, state):
        """`[B, T, D]`, and the state after the last real token."""

        def read(state, token):
            of_inputs, is_real = token
            r_x, z_x, n_x = jnp.split(of_inputs, 3, axis=-1)
            r_h, z_h, n_h = jnp.split(self.recurrent(state), 3, axis=-1)
            reset, update = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
            new = (1 - update) * jnp.tanh(n_x + reset * n_h) + update * state
            state = jnp.where(is_real[:, None], new, state)
            return state, state

        columns = jnp.swapaxes(self.inputs(x), 0, 1), jnp.swapaxes(is_real, 0, 1)
        state, states = jax.lax.scan(read, state, columns)
        return self.output(jnp.swapaxes(states, 0, 1)), state


@dataclass(frozen=True)
class Convolution(SelfAttentionConfig):
    """A causal convolution over the last `width` tokens, regardless of the mask."""

    width: int = 4

    def build(self, key, config, position, window):
        return ConvolutionLayer(key, config, self.width)


class ConvolutionLayer(Sublayer):
    """`Convolution` with its parameters."""

    name = "conv"

    def __init__(self, key, config, width):
        dim = config.model_dim
        inputs, std = {"kinds": width, "embed": dim}, normal((width * dim) ** -0.5)
        self.kernel = Linear(key, inputs, {"norm": dim}, std)
        self.before = width - 1

    def __call__(self, x, context, key):
        return self._convolved(jnp.zeros_like(x[:, :1].repeat(self.before, 1)), x)[0]

    def init_cache(self, shape, encoder_outputs):
        return shape.zeros(self.before, self.kernel.inputs[1])

    def step(self, x, context, cache):
        before = context.chunk.carried(cache).astype(x.dtype)
        y, joined = self._convolved(before, x)
        last = context.chunk.count[:, None] + jnp.arange(self.before)[None, :]
        return y, jnp.take_along_axis(joined, last[..., None], axis=1).astype(cache.dtype)

    def _convolved(self, before, x):
        joined = jnp.concatenate([before, x], axis=1)
        shifts = [joined[:, i : i + x.shape[1]] for i in range(self.before + 1)]
        return self.kernel(jnp.stack(shifts, axis=2)), joined


# A feed-forward layer, a block, a loss ------------------------------------------------------------


@dataclass(frozen=True)
class SquaredGate(FeedForwardConfig):
    """A gated unit: `down(relu(gate(x))^2 * up(x))`."""

    def build(self, key, config, position, window):
        return SquaredGateLayer(key, config)


class SquaredGateLayer(FeedForward):
    """`SquaredGate` with its parameters."""

    def __call__(self, x, context, key):
        gate = tap("hook_pre", self.gate(x))
        return self.down(tap("hook_post", jnp.square(jax.nn.relu(gate)) * self.up(x)))


@dataclass(frozen=True)
class Macaron(TransformerBlock):
    """A feed-forward layer before attention as well (Lu et al., 2019).

    https://arxiv.org/abs/1906.02762, without the factors of one half.
    """

    def sublayers(self, given):
        return given[-1], *given


@dataclass(frozen=True)
class Mixture(LossFunction):
    r"""Cross-entropy, a focal and an unlikelihood term.

    .. math:: -\log p_y - f (1 - p_y)^\gamma \log p_y - u \sum_{c \in C} \log(1 - p_c)

    C are the earlier targets of the row except y, each as often as it occurs: tokens that the model
    should not repeat. Lin et al., 2017 (https://arxiv.org/abs/1708.02002); Welleck et al., 2019
    (https://arxiv.org/abs/1908.04319).
    """

    focal: float = 0.5
    gamma: float = 2.0
    unlikelihood: float = 0.1

    def __call__(self, logits, targets, weights):
        log_p = token_log_probabilities(logits, targets)
        focal = -((1 - jnp.exp(log_p)) ** self.gamma) * log_p
        earlier = jnp.arange(targets.shape[1])
        candidates = (earlier[:, None] > earlier[None, :])[None]
        candidates &= (targets[:, :, None] != targets[:, None]) & (weights > 0)[:, None]
        p = jnp.take_along_axis(jax.nn.softmax(logits), targets[:, None].repeat(len(earlier), 1), 2)
        repeats = -jnp.sum(jnp.where(candidates, jnp.log1p(-jnp.minimum(p, 0.999)), 0), axis=-1)
        return -log_p + self.focal * focal + self.unlikelihood * repeats


PARTS = {
    "differential": {"self_attention": DifferentialAttention()},
    "additive": {"self_attention": AdditiveAttention()},
    "linear": {"self_attention": LinearAttention()},
    "gru": {"self_attention": GRU()},
    "convolution": {"self_attention": Convolution()},
    "gated": {"feed_forward": SquaredGate()},
    "macaron": {"block": Macaron()},
    "mixture": {},
}


def get_config(part: str = "differential") -> Config:
    """A small decoder with one of PARTS."""
    return Config(
        model=DecoderConfig(
            vocab_size=264,
            num_layers=2,
            model_dim=48,
            num_heads=3,
            mlp_dim=96,
            position=Sinusoidal(theta=10_000.0),
            scan_layers=False,
            **PARTS[part],
        ),
        data=DataConfig(tokenizer=Bytes(), sequence_length=64, batch_size=16),
        optimizer=AdamW(schedule=Cosine(learning_rate=3e-3, warmup_steps=20)),
        train=TrainConfig(
            steps=200,
            eval_interval=100,
            checkpoint_interval=100,
            loss=Mixture() if part == "mixture" else None,
        ),
    )
