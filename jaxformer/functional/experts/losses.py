"""Losses of a router, which keep its experts busy and its logits small."""

import abc
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import FINITE, check_fields, check_types
from jaxformer.functional.experts.load import Load, balance_loss, router_z_loss
from jaxformer.functional.losses.terms import add_loss, add_product_loss


@dataclass(frozen=True, kw_only=True)
class RouterLoss(abc.ABC):
    """Base class of losses of a router, which are added to the training loss."""

    weight: float
    """The multiplier of the loss; 0: it is only logged."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, weight=FINITE)

    @abc.abstractmethod
    def add(self, logits: jax.Array, load: Load, real: jax.Array | None) -> None:
        """Adds the loss of one layer.

        Args:
            logits: float32 `[B, T, E]`: the router's logits.
            load: The load, by the router's probabilities.
            real: bool `[B or 1, T]`: False for padding; None: all are real.
        """


@dataclass(frozen=True, kw_only=True)
class BalanceLoss(RouterLoss):
    r"""The load balancing loss: :math:`E \sum_e f_e P_e`, see `functional.balance_loss`.

    It is logged as "balance_loss".

    References:
        Fedus et al., Switch Transformers (https://arxiv.org/abs/2101.03961), equations 4 to 6.
    """

    over: Literal["layer", "all_layers"] = "layer"
    """The tokens over which f and P are means: those of each layer, whose losses are added up
    (Switch Transformers), or those of all layers, as in transformers. The latter can be minimal
    although each layer prefers a few experts, if the layers prefer different ones."""
    softmax_twice: bool = False
    """P is the mean of the softmax of the router's probabilities instead of the mean of the
    probabilities. Some releases of transformers 5 computed it so; its gradient is about E times
    smaller."""

    def add(self, logits, load, real):
        if self.softmax_twice:
            again = jax.nn.softmax(jax.nn.softmax(logits, axis=-1), axis=-1)
            counted = jnp.ones(logits.shape[:-1]) if real is None else real
            load = load._replace(probabilities=jnp.sum(again * counted[..., None], axis=(0, 1)))
        if self.over == "layer":
            add_loss("balance_loss", balance_loss(load), weight=self.weight)
            return
        routed = jax.lax.stop_gradient(load.routed) * load.routed.shape[0]
        add_product_loss(
            "balance_loss", routed, load.probabilities, load.tokens, weight=self.weight
        )


@dataclass(frozen=True, kw_only=True)
class ZLoss(RouterLoss):
    """The mean square of the log-partition of the logits, see `functional.router_z_loss`.

    The losses of the layers are added up. It is logged as "router_z_loss".

    References:
        Zoph et al., ST-MoE (https://arxiv.org/abs/2202.08906), equation 5.
    """

    def add(self, logits, load, real):
        add_loss("router_z_loss", router_z_loss(logits, real), weight=self.weight)
