"""Fields of config.json and names of tensors that most systems have."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxformer.hub.fields import Computed
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.layouts import Concatenated, Layout
from jaxformer.hub.weights.weight_map import Fused, attention
from jaxformer.models import Head
from jaxformer.models.model import ModelConfig

SIZES = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
}
"""Our sizes -> the fields of config.json."""
NUMBERS = SIZES | {"vocab_size": "vocab_size"}
"""The sizes of models of text."""


def their_sizes(num_layers: int, model_dim: int, num_heads: int, mlp_dim: int) -> dict[str, int]:
    """Returns these sizes as fields of config.json."""
    return dict(zip(SIZES.values(), (num_layers, model_dim, num_heads, mlp_dim), strict=True))


BASE_SIZES = their_sizes(12, 768, 12, 3072)
"""The sizes of BERT base, the defaults of many systems."""


def sized(
    make: Callable[..., Any],
    num_layers: int,
    model_dim: int,
    num_heads: int,
    mlp_dim: int | None = None,
    **fields: Any,
) -> Any:
    """Returns a model of these sizes; `mlp_dim` None: four times `model_dim`."""
    mlp_dim = 4 * model_dim if mlp_dim is None else mlp_dim
    sizes = {"num_layers": num_layers, "model_dim": model_dim, "num_heads": num_heads}
    return make(**sizes, mlp_dim=mlp_dim, **fields)


def of_head(kind: type[Head], fields: Mapping[str, str]) -> Computed:
    """Returns fields of config.json that a task reads, and that are written from its head.

    `fields` maps fields of the head to fields of config.json.
    """

    def write(config: ModelConfig) -> dict[str, Any]:
        heads = (head for head in config.heads if isinstance(head, kind))
        return {theirs: getattr(head, ours) for head in heads for ours, theirs in fields.items()}

    return Computed(lambda hf_config: {}, write)


def embedding_scale(
    theirs: str, default: bool, width: str, usual: int, ours: str = "embeddings.scale"
) -> Computed:
    """Returns the field for scaling embeddings by the root of `width` (by default `usual`)."""

    def read(hf_config: HFConfig) -> dict[str, Any]:
        scaled = hf_config.take(theirs, default)
        return {ours: hf_config.number(width, usual) ** 0.5 if scaled else 1.0}

    return Computed(read, lambda config: {theirs: config.embeddings.scale != 1.0})


def projections(
    module: str,
    output: str = "out_proj",
    number: int = 0,
    parts: Iterable[str] = ("q_proj", "k_proj", "v_proj"),
) -> dict[str, str]:
    """Returns the names of the projections of attention in a sublayer: `self_attn.q_proj`, ..."""
    return attention(number, *(f"{module}.{part}" for part in (*parts, output)))


def fused_attention(tensor: str, layout: Layout) -> Fused:
    """Returns the tensor that holds the query, key and value projections of self-attention."""
    own = "transformer.stack.group.*.sublayers.0.attention"
    return Fused(tuple(f"{own}.{name}" for name in ("query", "key", "value")), tensor, layout)


def fused_gate(tensor: str) -> Fused:
    """Returns the tensor that holds the gate of the feed-forward layer, then the gated values."""
    layer = "transformer.stack.group.*.sublayers.1"
    return Fused((f"{layer}.gate", f"{layer}.up"), tensor, Concatenated())
