"""The feed-forward layer as a mixture of experts: each token is routed to a few of them."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, check_field, check_fields, check_types
from jaxformer.functional.activations import tap
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.experts.grouped import expert_feed_forward
from jaxformer.functional.experts.load import expert_load, within_capacity
from jaxformer.functional.experts.losses import BalanceLoss, RouterLoss
from jaxformer.functional.experts.routing import ClampedSwiGLU, Router, Routes, SoftmaxTopK
from jaxformer.functional.feedforward import ActivationName, activation
from jaxformer.functional.linear import as_array, linear
from jaxformer.functional.losses.terms import add_metric
from jaxformer.functional.masks import real_tokens
from jaxformer.nn.config import SIZE, SIZE_OR_NONE, TransformerConfig
from jaxformer.nn.feedforward import MLP, FeedForward
from jaxformer.nn.layers import ExpertLinear, Linear, declare, normal, value_of, values_of
from jaxformer.nn.sublayer import Context, FeedForwardConfig, Sublayer

_TAKES = ("logits", "count")


@dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """A feed-forward layer of every token, in addition to those it is routed to."""

    dim: int
    """Its hidden width."""
    gated: bool = False
    """Whether a sigmoid of a linear map of the token multiplies its result (Qwen2-MoE)."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, dim=SIZE)


class MixtureOfExperts(Sublayer):
    """The weighted sum of the feed-forward layers that a token is routed to."""

    name = "mlp"

    def __init__(self, key: jax.Array, config: TransformerConfig, settings: "Experts"):
        """Declares the router and the experts."""
        keys = jax.random.split(key, 6)
        self.settings = settings
        num, bias, std = settings.num, settings.bias, normal(config.init_std)
        model, hidden = {"embed": config.model_dim}, {"mlp": settings.width(config)}
        router = settings.router
        self.router = Linear(keys[0], model, {"experts": num}, std, bias=router.bias)
        self.names = declare(self, keys[0], router, router.parameters(num), takes=_TAKES)
        for name in self.names:
            getattr(self, name).set_metadata(learns=False)
        self.up = ExpertLinear(keys[1], num, model, hidden, std, bias=bias)
        self.gate = ExpertLinear(keys[2], num, model, hidden, std, bias=bias)
        down = normal(config.output_std)
        self.down = ExpertLinear(keys[3], num, hidden, model, down, bias=bias)
        shared, sized = settings.shared, settings.shared_settings
        self.shared = (
            None
            if shared is None
            else FeedForward(keys[4], replace(config, mlp_dim=shared.dim), sized)
        )
        gated = shared is not None and shared.gated
        self.shared_gate = Linear(keys[5], model, {"experts": 1}, std) if gated else None

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is unused."""
        assert_axes(x=(x, f"B T {as_array(self.up.kernel.get_value()).shape[1]}"))
        settings, chunk = self.settings, context.chunk
        real = real_tokens(context.mask) if chunk is None else chunk.is_real(x.shape[1])
        wide = jnp.promote_types(x.dtype, jnp.float32)
        kernel, bias = self.router.kernel.get_value(), value_of(self.router.bias)
        logits = tap("hook_router_logits", linear(x, kernel, bias, dtype=wide))
        routes = settings.router(logits, settings.per_token, **values_of(self, self.names))
        routes = routes._replace(experts=tap("hook_expert_indices", routes.experts))
        capacity = settings.capacity if chunk is None else None
        kept = None if real is None else jnp.broadcast_to(real, x.shape[:2])
        if capacity is not None:
            kept = within_capacity(routes.experts, settings.num, capacity, real)
        self._log(logits, routes, real, kept)
        kind = settings.activation
        y = expert_feed_forward(
            x,
            routes.experts,
            routes.weights,
            self.up.kernel.get_value(),
            self.down.kernel.get_value(),
            activation=kind if isinstance(kind, ClampedSwiGLU) else activation(kind),
            gate=self.gate.kernel.get_value(),
            up_bias=value_of(self.up.bias),
            gate_bias=value_of(self.gate.bias),
            down_bias=value_of(self.down.bias),
            real=kept,
        )
        if self.shared is None:
            return y
        everyone = self.shared(x, context, key)
        if self.shared_gate is not None:
            share = jax.nn.sigmoid(self.shared_gate(x).astype(wide))
            everyone = (share * everyone.astype(wide)).astype(x.dtype)
        return y + everyone

    def _log(
        self, logits: jax.Array, routes: Routes, real: jax.Array | None, kept: jax.Array | None
    ) -> None:
        """Adds the losses and metrics of the layer; `kept` marks the tokens that are computed."""
        probabilities = self.settings.router.probabilities(logits)
        load = expert_load(probabilities, routes.experts, real)
        for loss in self.settings.losses:
            loss.add(logits, load, real)
        routed = jnp.maximum(jnp.sum(load.routed), 1.0)
        add_metric("expert_load", self.settings.num * jnp.max(load.routed) / routed)
        entropies = -jnp.sum(jax.scipy.special.xlogy(probabilities, probabilities), axis=-1)
        counted = jnp.ones_like(entropies) if real is None else real
        total = jnp.sum(entropies * counted)
        if kept is not None and kept.ndim == 3:
            add_metric("dropped_tokens", 1.0 - jnp.sum(kept) / routed)
        add_metric("router_entropy", total / jnp.maximum(load.tokens, 1.0))


@dataclass(frozen=True, kw_only=True)
class Experts(FeedForwardConfig):
    """A mixture of gated feed-forward layers, of which each token uses a few.

    Padding is not routed: it has no part in the load and the losses. The log has "expert_load", the
    tokens of the busiest expert in multiples of a uniform load, and "router_entropy", the mean
    entropy of the router's probabilities in nats, both averaged over the layers. No token is
    dropped, unless `capacity` is set: then the log has "dropped_tokens", the share of the pairs of
    a token and its expert that were dropped.

    References:
        Shazeer et al., Outrageously Large Neural Networks (https://arxiv.org/abs/1701.06538);
        Jiang et al., Mixtral of Experts (https://arxiv.org/abs/2401.04088).
    """

    num: int = 8
    """Experts (E)."""
    per_token: int = 2
    """Experts that a token is routed to."""
    dim: int | None = None
    """Hidden width of an expert. None: model.mlp_dim."""
    router: Router = SoftmaxTopK()
    """Chooses the experts: SoftmaxTopK (Mixtral, Qwen, OLMoE, DeepSeek-V2), TopKSoftmax (gpt-oss),
    SigmoidTopK (DeepSeek-V3) or a user-defined one."""
    activation: ActivationName | ClampedSwiGLU = "silu"
    """The activation of the gate, or ClampedSwiGLU, that of gpt-oss."""
    bias: bool = False
    """Biases of the experts' linear maps."""
    shared: SharedExpert | None = None
    """A feed-forward layer of all tokens (Qwen2-MoE, DeepSeek); None if there is none."""
    dense_layers: int = 0
    """The first layers of each stack that have a gated MLP of width model.mlp_dim instead
    (DeepSeek)."""
    capacity: float | None = None
    """The places of an expert for tokens of a row, in multiples of a uniform load; tokens with no
    place only have the residual stream. A pass with a cache, as in generation, drops nothing.
    None: nothing is dropped."""
    losses: tuple[RouterLoss, ...] = (BalanceLoss(weight=0.01),)
    """Losses of the router: BalanceLoss, ZLoss or user-defined ones."""

    def __post_init__(self):
        super().__post_init__()
        where = "model.feed_forward"
        check_fields(self, where, num=SIZE, dim=SIZE_OR_NONE, dense_layers=NOT_NEGATIVE)
        if self.capacity is not None:
            check_fields(self, where, capacity=POSITIVE)
        fits = 1 <= self.per_token <= self.num
        check_field(self, "per_token", fits, f"from 1 to num = {self.num}", where)
        kinds = [type(loss) for loss in self.losses]
        rule = "a tuple with at most one loss of each class"
        check_field(self, "losses", len(set(kinds)) == len(kinds), rule, where)
        self.router.check(self.num, self.per_token)

    def build(self, key, config, position, window):
        del position, window
        return MixtureOfExperts(key, config, self)

    def width(self, config: TransformerConfig) -> int:
        """The hidden width of an expert."""
        return config.mlp_dim if self.dim is None else self.dim

    def used_width(self, config: TransformerConfig) -> int:
        """The hidden units of all feed-forward layers that a token passes through."""
        shared = 0 if self.shared is None else self.shared.dim
        return self.per_token * self.width(config) + shared

    @property
    def first_layers(self):
        return (self.shared_settings,) * self.dense_layers

    @property
    def shared_settings(self) -> MLP:
        """The settings of the shared expert and of the first layers."""
        named = isinstance(self.activation, str)
        return MLP(activation=self.activation if named else "silu", bias=self.bias)

    def products(self, config):
        """Multiply-adds per token with the router and the experts that the token uses."""
        return super().products(config) - self.unused(config)

    def check_rows(self, name: str, length: int) -> None:
        """Raises ConfigError if rows of this length have less than one token for each expert."""
        if self.capacity is None:
            return
        least = self.num / (self.per_token * length)
        wanted = (
            f"at least {least:.4g}, one token for each of {self.num} experts in the rows of "
            f"{name}, which have {length} tokens"
        )
        check_field(self, "capacity", self.capacity >= least, wanted, "model.feed_forward")

    def unused(self, config: TransformerConfig) -> int:
        """The parameters of a layer's kernels that a token does not use."""
        return 3 * (self.num - self.per_token) * config.model_dim * self.width(config)
