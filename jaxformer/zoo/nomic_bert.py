"""Nomic BERT: BERT with RoPE, SwiGLU, and no biases in its blocks."""

from dataclasses import replace
from functools import partial

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import (
    Activation,
    ConfigMap,
    Expect,
    NormEps,
    Number,
    PaddingId,
    Value,
    numbers,
)
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import EncoderConfig
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.zoo.common.basics import BASE_SIZES, NUMBERS, fused_attention
from jaxformer.zoo.common.bert_like import (
    BIAS,
    LABELS,
    TOKEN_TYPES,
    head_copies,
    named,
    over_vocabulary,
)
from jaxformer.zoo.system import System

_nomic_bert = partial(
    EncoderConfig,
    self_attention=DotProductAttention(),
    feed_forward=MLP(),
)

SYSTEMS = (
    System(
        "nomic-embed-text-v1.5",
        _nomic_bert(
            vocab_size=30528,
            num_layers=12,
            model_dim=768,
            num_heads=12,
            mlp_dim=3072,
            position=RoPE(theta=1000.0),
            embeddings=replace(EncoderConfig.embeddings, token_types=2),
            dropout=0.0,
            heads=(),
        ),
        "137M",
        "Nussbaum et al., 2024, table 1, https://arxiv.org/abs/2402.01613",
    ),
)

_FIELDS = (
    *numbers(NUMBERS),
    Number("head_dim", "head_dim", None),
    TOKEN_TYPES,
    PaddingId(),
    Activation(),
    NormEps(default=1e-12, also=("embeddings.norm",)),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "hidden_dropout_prob", 0.0),
    Number("self_attention.dropout", "attention_probs_dropout_prob", 0.0),
    Rope(theta=1000.0),
    # Options of the first published code that transformers lacks.
    Expect("activation_function", "swiglu"),
    Expect("rotary_emb_fraction", 1.0),
    *(Expect(name, None) for name in ("rotary_emb_scale_base", "rotary_scaling_factor")),
    *(
        Expect(name, False)
        for name in (
            "causal",
            "mlp_fc1_bias",
            "mlp_fc2_bias",
            "parallel_block",
            "prenorm",
            "qkv_proj_bias",
            "rotary_emb_interleaved",
            "scale_attn_by_inverse_layer_idx",
            "use_rms_norm",
        )
    ),
    Expect("scale_attn_weights", True),
)
_SYNONYMS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "attn_pdrop": "attention_probs_dropout_prob",
    "resid_pdrop": "hidden_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
"""The names in the first files -> the names in transformers."""
_LAYER = "nomic_bert.encoder.layers.{}"
_NAMES = {
    "embedding.table": "nomic_bert.embeddings.word_embeddings.weight",
    "transformer.inputs.kinds.token_types": "nomic_bert.embeddings.token_type_embeddings.weight",
    "transformer.inputs.embedding_norm": "nomic_bert.emb_ln",
    **block(
        "transformer",
        _LAYER,
        {
            "sublayers.0.attention.output": "attn.out_proj",
            "norms.0": "norm1",
            "sublayers.1.up": "mlp.fc11",
            "sublayers.1.gate": "mlp.fc12",
            "sublayers.1.down": "mlp.fc2",
            "norms.1": "norm2",
        },
    ),
    "pooler": "nomic_bert.pooler.dense",
    **LABELS,
    **over_vocabulary(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.layer_norm",
        kernel="cls.predictions.decoder.weight",
        bias=BIAS,
    ),
}


def _weight_map(config: EncoderConfig) -> WeightMap:
    fused = fused_attention(f"{_LAYER}.attn.Wqkv", Concatenated())
    return replace(named(_NAMES, BIAS, config), fused=(fused,))


FORMATS = (
    ModelFormat(
        model_type="nomic_bert",
        config_map=ConfigMap(_nomic_bert, _FIELDS),
        weight_map=_weight_map,
        architectures=(
            Architecture("NomicBertForMaskedLM", MaskedLMTask()),
            Architecture(
                "NomicBertForSequenceClassification",
                SequenceClassificationTask(),
                {"pooler": "tanh"},
            ),
            Architecture("NomicBertForTokenClassification", TokenClassificationTask()),
            Architecture("NomicBertModel", Task()),
        ),
        prefix="nomic_bert.",
        buffers=("*.inv_freq", "*.position_ids"),
        copies=head_copies("nomic_bert"),
        harmless=(
            "dense_seq_output",
            "embd_pdrop",
            "fused_*",
            "max_position_embeddings",
            "max_trained_positions",
            "n_positions",
            "pad_vocab_size_multiple",
            "reorder_and_upcast_attn",
            "summary_*",
            "use_flash_attn",
            "use_xentropy",
        ),
        synonyms=_SYNONYMS,
        defaults={
            **BASE_SIZES,
            "vocab_size": 30528,
            "max_position_embeddings": 2048,
            "hidden_act": "silu",
            "pad_token_id": 0,
        },
    ),
)
