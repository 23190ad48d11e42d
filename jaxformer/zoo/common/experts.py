"""Shared parts of decoders with experts: fields, names of tensors."""

from typing import Any

from jaxformer.functional.experts.losses import BalanceLoss
from jaxformer.hub.fields import Computed, Flag, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.weight_map import block
from jaxformer.models import DecoderConfig


def _read_loss(hf_config: HFConfig) -> dict[str, Any]:
    """The balancing loss of transformers, whose means are over the tokens of all layers.

    Classes of transformers add the loss if `output_router_logits` is true. Their generation fails
    then, so published files have false, and training scripts change it.
    """
    weight = float(hf_config.number("router_aux_loss_coef"))
    return {
        "feed_forward.losses": (BalanceLoss(weight=weight, over="all_layers"),) if weight else ()
    }


def _write_loss(config: DecoderConfig) -> dict[str, Any]:
    losses = getattr(config.feed_forward, "losses", ())
    weights = [loss.weight for loss in losses if isinstance(loss, BalanceLoss)]
    return {"router_aux_loss_coef": weights[0] if weights else 0.0}


LOSS = Computed(_read_loss, _write_loss)
"""The balancing loss."""
RENORMALIZE = Flag("feed_forward.router.renormalize", "norm_topk_prob")
"""Whether the weights of a token sum to 1."""
MLP = {part: f"{part}_proj" for part in ("gate", "up", "down")}
"""The names of the kernels of a feed-forward layer, in most systems."""


def expert_fields(num: str) -> tuple[Number | Computed, ...]:
    """Returns the fields of the experts; `num` is the name of their number."""
    per_token = Number("feed_forward.per_token", "num_experts_per_tok")
    return Number("feed_forward.num", num), per_token, LOSS


def expert_names(layer: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Returns the names of the router and the experts, whose layer is "mlp" or another name."""
    experts = {"gate": gate, "up": up, "down": down}
    own = {f"sublayers.1.{ours}": f"{layer}.experts.{{}}.{name}" for ours, name in experts.items()}
    return block("transformer", "model.layers.{}", {"sublayers.1.router": f"{layer}.gate", **own})


def dense_names(config: DecoderConfig, gate: str, up: str, down: str) -> dict[str, str]:
    """Returns the names of the kernels of the first layers, which have no experts."""
    kernels = {"gate": gate, "up": up, "down": down}
    return {
        f"transformer.stack.group.{layer}.sublayers.1.{ours}": f"model.layers.{layer}.mlp.{theirs}"
        for layer in range(config.feed_forward.dense_layers)
        for ours, theirs in kernels.items()
    }
