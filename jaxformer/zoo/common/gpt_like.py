"""Shared parts of GPT and its relatives."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Activation, Computed, Flag, NormEps, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import DecoderConfig
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.zoo.common.basics import sized


def gpt(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> DecoderConfig:
    """Returns the architecture of GPT-2 in any size; `changes` are other fields."""
    fields = {
        "vocab_size": 50257,
        "position": Learned(max_length=1024),
        "norm": LayerNorm(eps=1e-5),
        "self_attention": DotProductAttention(bias=True, output_bias=True),
        "feed_forward": MLP(activation="gelu_tanh", gated=False, bias=True),
    }
    return sized(DecoderConfig, num_layers, model_dim, num_heads, **(fields | changes))


TIED = Flag("tie_embeddings", "tie_word_embeddings")
FIELDS = (
    Number("num_layers", "n_layer"),
    Number("model_dim", "n_embd"),
    Number("num_heads", "n_head"),
    Number("vocab_size", "vocab_size"),
    Number("dropout", "resid_pdrop"),
    Number("embeddings.dropout", "embd_pdrop", None),
    Number("self_attention.dropout", "attn_pdrop"),
    TIED,
    NormEps(theirs="layer_norm_epsilon"),
)
"""The fields of config.json in GPT, GPT-2 and GPT-J."""


def inner_width(theirs: str, width: str = "hidden_size") -> Computed:
    """Returns the field of the feed-forward width, which is four times `width` by default."""

    def read(hf_config: HFConfig) -> dict[str, Any]:
        return {"mlp_dim": hf_config.number(theirs, None) or 4 * hf_config.number(width)}

    return Computed(read, lambda config: {theirs: config.mlp_dim})


FEED_FORWARD = (
    inner_width("n_inner", "n_embd"),
    Activation(theirs="activation_function", default="gelu_new"),
)
"""The fields of the feed-forward layers in GPT-2 and GPT-J."""
NEOX_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "dropout": "hidden_dropout",
    "self_attention.dropout": "attention_dropout",
}
"""Our fields -> those of GPT-NeoX and its relatives."""
BLOCK = {
    "norms.0": "ln_1",
    "norms.1": "ln_2",
    "sublayers.1.up": "mlp.c_fc",
    "sublayers.1.down": "mlp.c_proj",
}
DEFAULTS = {
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
FILES = {
    "prefix": "transformer.",
    "buffers": (
        "*.attn.bias",
        "*.attn.masked_bias",
        "*.crossattention.bias",
        "*.crossattention.masked_bias",
    ),
    "synonyms": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
"""Fields of the `ModelFormat` of GPT, GPT-2 and GPT-J."""
HARMLESS = ("n_ctx", "summary_*")
