"""Counts a model's sizes, its parameters by part and its FLOPs."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from jaxformer.models.flops import TokenFlops
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, without_part_prefix
from jaxformer.nn.experts import Experts
from jaxformer.nn.feedforward import mlp_settings

PARTS = {
    "positions": r"(position|relative)_table$|^frame_positions\.",
    "W^Q": r"^(?!pooler).*attention\.query(_up)?\.",
    "W^K": r"^(?!pooler).*attention\.key(_up)?\.",
    "W^V": r"^(?!pooler).*attention\.value(_up)?\.",
    "W^O": r"^(?!pooler).*attention\.output\.",
    "router": r"\.router\.",
    "mlp": r"sublayers\.\d+\.(shared\.)?(up|gate|down)\.",
    "head": r"^(heads|pooler)\.",
    "norms": r"norm",
    "embedding": r"embedding\.table$|inputs\.(kinds|projection)\.|^patch_projection\.|"
    r"_token$|^register_table$|^(feature_encoder|projection|convolutions)\.|^mask_vector$",
}
"""Each part of a model, and the pattern of its parameters' paths; the first match counts."""
# Shazeer, 2020, https://arxiv.org/abs/2002.05202
_GATED = {"relu": "ReGLU", "gelu": "GeGLU", "gelu_tanh": "GeGLU", "silu": "SwiGLU"}
OTHER = "other"
"""The part of all other parameters, such as those of a user's own sublayer."""


class ModelDetails(NamedTuple):
    """The sizes of a model, as in the tables of papers."""

    num_layers: tuple[int, ...]
    """Blocks; if there are an encoder and a decoder, or several parts, the blocks of each."""
    model_dim: int
    """Width of the residual stream (D)."""
    num_heads: int
    """Query heads (N)."""
    num_kv_heads: int
    """Key/value heads (K)."""
    head_dim: int
    """Width of a head's queries and keys (H, d_k); the values' too, unless `value_dim` differs."""
    mlp_dim: int
    """Hidden width of the feed-forward layer (F)."""
    feed_forward: str
    """The feed-forward layer by the name of its paper, such as "SwiGLU"; else its activation."""
    theta: float | None
    """The base of RoPE's or sinusoidal frequencies; None for other positions."""
    vocab_size: int | None
    """Rows of the embedding table (V); None for images."""
    lengths: Mapping[str, int]
    """Tokens of a row, for which FLOPs are counted: "inputs", and "decoder_inputs"."""
    parameters: dict[str, int]
    """Parameters of each part that the model has: weights and biases, in the order of the model."""
    flops: TokenFlops
    """FLOPs per input token of a forward pass."""
    unused: int = 0
    """Parameters of the experts that a token does not use; 0 without experts."""
    parts: "tuple[ModelDetails, ...]" = ()
    """The details of its component models; the sizes of the whole are those of the first."""

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())

    @property
    def active_parameters(self) -> int:
        """The parameters that a token uses: all but those of other experts."""
        return self.num_parameters - self.unused

    @property
    def forward_flops(self) -> float:
        """FLOPs per input token of a forward pass over the keys that the mask allows."""
        return self.flops.products + self.flops.causal_attention


def model_details(config: ModelConfig, lengths: Mapping[str, int]) -> ModelDetails:
    """Counts the sizes, parameters and FLOPs of a model, without making its arrays.

        attention of a layer = D N d_k + D K d_k + D K d_v + N d_v D,  mlp = 2 D F or 3 D F

    The first counts W^Q, W^K, W^V and W^O, the second a layer without or with a gate. A matrix that
    is used twice, such as a tied embedding, is counted once, where it is looked up.

    Args:
        config: The model.
        lengths: Tokens of "inputs", and of "decoder_inputs" for an encoder-decoder; those of an
            image follow from its size.

    Returns:
        The sizes and counts.
    """
    lengths = config.row_lengths(lengths)
    if config.parts:
        parts = tuple(model_details(part, lengths) for part in config.parts.values())
        return parts[0]._replace(
            num_layers=tuple(count for part in parts for count in part.num_layers),
            lengths=lengths,
            parameters=parameters_by_part(config),
            flops=config.flops(lengths),
            unused=sum(part.unused for part in parts),
            parts=parts,
        )
    layers, mlp = [config.num_layers], mlp_settings(config)
    if config.is_encoder_decoder:
        layers.append(config.decoder_layers)
    experts = getattr(config, "feed_forward", None)
    experts = experts if isinstance(experts, Experts) else None
    kind = _GATED.get(mlp.activation, mlp.activation) if mlp.gated else mlp.activation
    return ModelDetails(
        tuple(layers),
        config.model_dim,
        config.num_heads,
        config.kv_heads,
        config.head_width,
        config.mlp_dim if experts is None else experts.width(config),
        kind if experts is None else f"{experts.per_token} of {experts.num} experts",
        getattr(config.position, "theta", None),
        getattr(config, "vocab_size", None),
        lengths,
        parameters_by_part(config),
        config.flops(lengths),
        unused=0
        if experts is None
        else (sum(layers) - experts.dense_layers) * experts.unused(config),
    )


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    """Returns how many parameters each part of a model has, without making its arrays."""
    counts = dict.fromkeys(("embedding", *PARTS, OTHER), 0)
    for name, shape in AbstractModel(config.build).shapes.items():
        first, _, rest = name.partition(".")
        counts[_part(rest if first in config.parts else name)] += shape.size
    return {part: count for part, count in counts.items() if count}


def _part(name: str) -> str:
    name = without_part_prefix(name)
    return next((part for part, path in PARTS.items() if re.search(path, name)), OTHER)
