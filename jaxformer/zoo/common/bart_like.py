"""Shared parts of BART and its relatives."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    Field,
    LearnedPositions,
    Number,
    PaddingId,
)
from jaxformer.hub.flax_format import FlaxFormat, sinusoids
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    EndTokenClassificationTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    Task,
    UnshiftedCausalLMTask,
)
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig, EncoderDecoderConfig
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    PostNorm,
    TokenEmbeddings,
    UnusedCrossAttention,
    VocabularyLogits,
)
from jaxformer.zoo.common.basics import embedding_scale, projections, sized
from jaxformer.zoo.common.cross_attention import keeps_cross_attention
from jaxformer.zoo.common.encoders import of_family


def bart(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> EncoderDecoderConfig:
    """Returns BART's architecture in any size; `changes` are other fields."""
    fields = {
        "vocab_size": 50265,
        "position": Learned(max_length=1024, offset=2),
        "decoder_position": Learned(max_length=1024, offset=2),
        "norm": LayerNorm(eps=1e-5),
        "embeddings": TokenEmbeddings(norm=LayerNorm(eps=1e-5)),
        "residual": PostNorm(),
        "self_attention": DotProductAttention(bias=True, output_bias=True),
        "feed_forward": MLP(activation="gelu", gated=False, bias=True),
        "logits": VocabularyLogits(bias=True, bias_learns=False),
        "depth_scaled_init": False,
        "dropout": 0.1,
    }
    return sized(EncoderDecoderConfig, num_layers, model_dim, num_heads, **(fields | changes))


# Configuration ----------------------------------------------------------------------------------

_SIDES = ("encoder", "decoder")
_CAUSAL = "ForCausalLM"


def _read_sizes(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the sizes of both sides, and whether there is only the decoder."""
    named = hf_config.take("architectures", None) or [""]
    sizes = {"num_layers": hf_config.number("encoder_layers", 12)}
    sizes["num_decoder_layers"] = hf_config.number("decoder_layers", 12)
    for ours, encoders, theirs, default in (
        ("num_heads", "encoder_heads", "attention_heads", 16),
        ("mlp_dim", "encoder_mlp_dim", "ffn_dim", 4096),
    ):
        encoder, own = (hf_config.number(f"{side}_{theirs}", default) for side in _SIDES)
        sizes |= {ours: own, encoders: None if encoder == own else encoder}
    # Transformers sets this in the configuration of a decoder, but never reads it.
    hf_config.take("is_decoder", False)
    return sizes | {"decoder_only": str(named[0]).endswith(_CAUSAL)}


def _write_sizes(config: EncoderDecoderConfig | DecoderConfig) -> dict[str, Any]:
    alone = isinstance(config, DecoderConfig)
    own = {"layers": config.num_layers if alone else config.decoder_layers}
    own |= {"attention_heads": config.num_heads, "ffn_dim": config.mlp_dim}
    values = {f"decoder_{name}": size for name, size in own.items()}
    if alone:
        return values | {"is_decoder": True, "is_encoder_decoder": False}
    encoder = config.encoder
    return values | {
        "encoder_layers": config.num_layers,
        "encoder_attention_heads": encoder.num_heads,
        "encoder_ffn_dim": encoder.mlp_dim,
    }


_FIELDS = (
    Computed(_read_sizes, _write_sizes),
    Number("model_dim", "d_model", 1024),
    Number("vocab_size", "vocab_size", 50265),
    PaddingId(),
    Activation(theirs="activation_function", default="gelu"),
    embedding_scale("scale_embedding", False, "d_model", 1024, ours="embedding_scale"),
    # Without it transformers would not tie the tables of the two sides either; an untied head is in
    # the file.
    Computed(
        lambda hf_config: {"tie_embeddings": hf_config.take("tie_word_embeddings", True)},
        lambda config: {"tie_word_embeddings": True},
    ),
    Number("dropout", "dropout", 0.1),
    Number("self_attention.dropout", "attention_dropout", 0.0),
)
POSITIONS = LearnedPositions(default=1024, offset=2, also=("decoder_position",))
"""BART's positions, with two rows before position 0."""


def _build(
    make: Callable[..., EncoderDecoderConfig],
    decoder_only: bool,
    embedding_scale: float,
    **values: Any,
) -> EncoderDecoderConfig | DecoderConfig:
    """Builds the model, or only its decoder, which keeps its cross-attention."""
    config = make(**values).with_fields(**{"embeddings.scale": embedding_scale})
    if not decoder_only:
        return config
    return of_family(
        DecoderConfig,
        config,
        num_layers=config.decoder_layers,
        position=config.decoder_position,
        embeddings=config.decoder.embeddings,
        block=UnusedCrossAttention(),
        cross_attention=None,
        logits=replace(config.logits, bias=False),
    )


def config_map(make: Callable[..., EncoderDecoderConfig], *own: Field) -> ConfigMap:
    """Returns the fields of config.json."""
    return ConfigMap(partial(_build, make), (*_FIELDS, *own))


def without_head_bias(
    config: EncoderDecoderConfig | DecoderConfig, files: Tensors
) -> EncoderDecoderConfig | DecoderConfig:
    """Returns a model without a bias of the logits if the file has none, as in transformers."""
    bias = config.logits.bias and "final_logits_bias" in files.tensors
    return config.with_fields(**{"logits.bias": bias})


def sinusoidal_tables(hf_config: HFConfig) -> dict[str, np.ndarray]:
    """Returns the tables of Pegasus and Marian, which Flax's classes compute."""
    rows = hf_config.number("max_position_embeddings", 1024)
    table = sinusoids(rows, hf_config.number("d_model", 1024), "half")
    return {f"model.{side}.embed_positions.weight": table for side in _SIDES}


def no_head_bias(hf_config: HFConfig, name: str) -> dict[str, tuple[int, int]]:
    """Returns the bias of the logits, which Flax's class has even if the model has none."""
    with_head = name.endswith(("ForConditionalGeneration", "MTModel"))
    return {"final_logits_bias": (1, hf_config.number("vocab_size"))} if with_head else {}


# Weights ----------------------------------------------------------------------------------------


def block_names(kinds: Sequence[str]) -> dict[str, str]:
    """Returns the names in a block with attention of these kinds and a feed-forward layer."""
    last = len(kinds)
    names = {
        f"sublayers.{last}.up": "fc1",
        f"sublayers.{last}.down": "fc2",
        f"norms.{last}": "final_layer_norm",
    }
    for number, kind in enumerate(kinds):
        names |= projections(kind, number=number) | {f"norms.{number}": f"{kind}_layer_norm"}
    return names


NAMES = {
    "embedding.table": "model.shared.weight",
    **block("encoder", "model.encoder.layers.{}", block_names(("self_attn",))),
    **block("decoder", "model.decoder.layers.{}", block_names(("self_attn", "encoder_attn"))),
    **{f"{own}.inputs.position_table": f"model.{own}.embed_positions.weight" for own in _SIDES},
    **{f"{own}.inputs.embedding_norm": f"model.{own}.layernorm_embedding" for own in _SIDES},
    **{f"{own}.final_norm": f"model.{own}.layer_norm" for own in _SIDES},
    "heads.language_model.kernel": "lm_head.weight",
    "heads.language_model.bias": "final_logits_bias",
    "heads.label.dense.linear": "classification_head.dense",
    "heads.label.output": "classification_head.out_proj",
    "heads.span.output": "qa_outputs",
}
UNUSED = {
    "unused.0.attention.query": "encoder_attn.q_proj",
    "unused.0.attention.key": "encoder_attn.k_proj",
    "unused.0.attention.value": "encoder_attn.v_proj",
    "unused.0.attention.output": "encoder_attn.out_proj",
    "unused.1": "encoder_attn_layer_norm",
}
"""The names of the cross-attention that a single decoder keeps but does not run."""


def _decoder_names(config: DecoderConfig) -> dict[str, str]:
    """The names of the tensors of only the decoder, whose cross-attention may be unused."""
    kinds = ("self_attn",) if config.cross_attention is None else ("self_attn", "encoder_attn")
    names = block_names(kinds) | (UNUSED if keeps_cross_attention(config) else {})
    return {
        "embedding.table": "model.decoder.embed_tokens.weight",
        **block("transformer", "model.decoder.layers.{}", names),
        "transformer.inputs.position_table": "model.decoder.embed_positions.weight",
        "transformer.inputs.embedding_norm": "model.decoder.layernorm_embedding",
        "transformer.final_norm": "model.decoder.layer_norm",
        "heads.language_model.kernel": "lm_head.weight",
    }


def weight_map(config: EncoderDecoderConfig | DecoderConfig) -> WeightMap:
    """Returns the names of the tensors of a model, or of only its decoder."""
    if isinstance(config, DecoderConfig):
        return WeightMap(_decoder_names(config))
    names = dict(NAMES)
    if not config.share_embeddings:
        names["embedding.table"] = "model.encoder.embed_tokens.weight"
        names["decoder_embedding.table"] = "model.decoder.embed_tokens.weight"
    return WeightMap(names, layouts={"heads.language_model.bias": Same(leading=1)})


def classes(name: str, *kinds: str) -> tuple[Architecture, ...]:
    """Returns the classes of a system, the default first: `classes("Bart", "Model")`."""
    return tuple(Architecture(f"{name}{kind}", _TASKS[kind]) for kind in kinds)


_TASKS = {
    "ForConditionalGeneration": Seq2SeqLMTask(),
    "MTModel": Seq2SeqLMTask(),
    "ForSequenceClassification": EndTokenClassificationTask(),
    "ForQuestionAnswering": QuestionAnsweringTask(repeats_inputs=True),
    _CAUSAL: UnshiftedCausalLMTask(),
    "Model": Task(),
}


def bart_format(
    model_type: str,
    architectures: Iterable[Architecture],
    config_map: ConfigMap,
    defaults: Mapping[str, Any],
    **parts: Any,
) -> ModelFormat:
    """Returns the format of BART or a relative."""
    architectures = tuple(architectures)
    fields = {
        "model_type": model_type,
        "config_map": config_map,
        "weight_map": weight_map,
        "architectures": architectures,
        "reads_encoder": any(each.name.endswith(_CAUSAL) for each in architectures),
        "prefix": "model.",
        "buffers": ("*coder.version",),
        "copies": {
            "model.encoder.embed_tokens.weight": "model.shared.weight",
            "model.decoder.embed_tokens.weight": "model.shared.weight",
            "lm_head.weight": "model.decoder.embed_tokens.weight",
        },
        # In addition to those for training, these are fields that transformers no longer uses.
        "harmless": (
            "*_layerdrop", "activation_dropout", "add_bias_logits", "add_final_layer_norm",
            "classif_dropout", "do_blenderbot_90_layernorm", "extra_layer_norm",
            "extra_pos_embeddings", "force_bos_token_to_be_generated", "layernorm_variant",
            "normalize_before", "normalize_embedding", "save_step", "static_position_embeddings",
        ),
        "fitted": without_head_bias,
        "fitted_fields": ("logits.bias", "tie_embeddings"),
        "flax": FlaxFormat(unused=no_head_bias),
        "synonyms": {
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        "defaults": defaults,
    }  # fmt: skip
    return ModelFormat(**(fields | parts))
