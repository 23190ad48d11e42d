"""OPT: GPT-2 with ReLU; its 350M has post-norm and narrow embeddings."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    Expect,
    Flag,
    LearnedPositions,
    Number,
    PaddingId,
    Switch,
    numbers,
)
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByMask, ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.nn import PostNorm, PreNorm, TokenEmbeddings
from jaxformer.zoo.common.bart_like import block_names
from jaxformer.zoo.common.basics import NUMBERS
from jaxformer.zoo.common.decoders import classes, decoder_names
from jaxformer.zoo.common.gpt_like import TIED, gpt


def _read_embedding(hf_config: HFConfig) -> dict[str, Any]:
    """Embeddings narrower than the model are projected on both sides (OPT 350M)."""
    width = hf_config.number("word_embed_proj_dim", None)
    if width in (None, hf_config.number("hidden_size")):
        return {}
    return {"embeddings.projection": "both", "embeddings.dim": width}


def _read_norm(hf_config: HFConfig) -> dict[str, Any]:
    learned = hf_config.take("layer_norm_elementwise_affine", True)
    return {"norm": LayerNorm(bias=learned, scale=learned)}


_FIELDS = (
    Expect("_remove_final_layer_norm", False),
    Expect("layerdrop", 0.0),
    # Galactica's files have these, but they are never read.
    Expect("learned_embeddings", True),
    Expect("scale_embeddings", False),
    *numbers(NUMBERS | {"mlp_dim": "ffn_dim"}),
    Number("dropout", "dropout"),
    Number("self_attention.dropout", "attention_dropout"),
    Computed(_read_norm, lambda config: {"layer_norm_elementwise_affine": config.norm.scale}),
    Computed(_read_embedding, lambda config: {"word_embed_proj_dim": config.embedding_width}),
    Flag(
        "self_attention.bias",
        "enable_bias",
        also=("self_attention.output_bias", "feed_forward.bias"),
    ),
    TIED,
    # Row 1 is for padding, and row 0 is never read.
    LearnedPositions(offset=2),
    Switch("residual", "do_layer_norm_before", True, on=PreNorm(), off=PostNorm()),
    Activation(theirs="activation_function", default="relu"),
    PaddingId(default=None),
)
_NAMES = {
    **decoder_names(
        "model.decoder.embed_tokens",
        "model.decoder.layers.{}",
        block_names(("self_attn",)),
        "model.decoder.final_layer_norm",
    ),
    "transformer.inputs.position_table": "model.decoder.embed_positions.weight",
    "transformer.inputs.projection": "model.decoder.project_in",
    "transformer.projection": "model.decoder.project_out",
}

FORMATS = (
    ModelFormat(
        model_type="opt",
        config_map=ConfigMap(partial(gpt, embeddings=TokenEmbeddings(dropout=0.0)), _FIELDS),
        weight_map=lambda _: WeightMap(_NAMES),
        architectures=classes("OPT", without=("ForTokenClassification",)),
        prefix="model.",
        flax=FlaxFormat(ignored={"enable_bias": True}),
        positions=CountedByMask(padding=-1),
        copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
        harmless=("init_std",),
        defaults={
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": 1,
        },
    ),
)
