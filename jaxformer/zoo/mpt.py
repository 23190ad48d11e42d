"""MPT: ALiBi, and no biases."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import ALiBi
from jaxformer.hub.fields import Computed, ConfigMap, Expect, NormEps, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.zoo.common.basics import fused_attention
from jaxformer.zoo.common.decoders import classes, decoder_names
from jaxformer.zoo.common.gpt_like import TIED, gpt


def _read_attention(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the object "attn_config"."""
    own = hf_config.section(
        "attn_config",
        {
            "model_type": hf_config.values.get("model_type"),
            **(hf_config.take("attn_config", None) or {}),
        },
    )
    own.expect("alibi", True)
    own.expect("attn_type", "multihead_attention")
    for name in ("attn_uses_sequence_id", "prefix_lm", "qk_ln"):
        own.expect(name, False)
    fields = {
        "self_attention.dropout": own.number("attn_pdrop", 0),
        # In transformers, 0 means no bound.
        "self_attention.clip": own.number("clip_qkv", None) or None,
        "self_attention.scale": own.number("softmax_scale", None),
        # As in the code that these models were trained with; transformers always uses 8.
        "position": ALiBi(max_exponent=float(own.number("alibi_bias_max", 8))),
    }
    own.finish(("attn_impl",))
    return fields


def _write_attention(config: DecoderConfig) -> dict[str, Any]:
    values = {
        "attn_pdrop": config.self_attention.dropout,
        "clip_qkv": config.self_attention.clip,
        "softmax_scale": config.self_attention.scale,
    }
    if (longest := config.position.max_exponent) != 8:
        values["alibi_bias_max"] = int(longest) if longest.is_integer() else longest
    return {"attn_config": values}


# Feed-forward layers are always four times as wide as the model.
_FIELDS = (
    # Transformers ignores these; a model trained with other values would be wrong.
    Expect("expansion_ratio", 4),
    Expect("no_bias", True),
    Expect("embedding_fraction", 1.0),
    Expect("logit_scale", None),
    Expect("norm_type", "low_precision_layernorm", "layernorm"),
    Number("num_layers", "n_layers"),
    Number("model_dim", "d_model"),
    Number("num_heads", "n_heads"),
    Number("vocab_size", "vocab_size"),
    Number("dropout", "resid_pdrop"),
    Number("embeddings.dropout", "emb_pdrop", None),
    TIED,
    Computed(_read_attention, _write_attention),
    NormEps(theirs="layer_norm_epsilon", make=partial(LayerNorm, bias=False)),
)
_mpt = partial(
    gpt,
    self_attention=DotProductAttention(),
    feed_forward=MLP(activation="gelu", gated=False),
)
_BLOCK = {
    "norms.0": "norm_1",
    "sublayers.0.attention.output": "attn.out_proj",
    "norms.1": "norm_2",
    "sublayers.1.up": "ffn.up_proj",
    "sublayers.1.down": "ffn.down_proj",
}
_WEIGHT_MAP = WeightMap(
    decoder_names("transformer.wte", "transformer.blocks.{}", _BLOCK, "transformer.norm_f"),
    fused=(fused_attention("transformer.blocks.{}.attn.Wqkv", Concatenated()),),
)

FORMATS = (
    ModelFormat(
        model_type="mpt",
        config_map=ConfigMap(_mpt, _FIELDS),
        weight_map=lambda _: _WEIGHT_MAP,
        architectures=classes("Mpt"),
        prefix="transformer.",
        copies={"lm_head.weight": "transformer.wte.weight"},
        harmless=(
            "fc_type",
            "init_config",
            "init_device",
            "learned_pos_emb",
            "max_seq_len",
            "tokenizer_name",
            "verbose",
        ),
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "resid_pdrop": 0.0,
            "emb_pdrop": 0.0,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
        synonyms={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
)
