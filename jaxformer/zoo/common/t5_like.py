"""Shared parts of T5 and its relatives."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import T5Bias
from jaxformer.hub.fields import (
    Computed,
    ConfigMap,
    Expect,
    Field,
    NormEps,
    Number,
    read_activation,
    write_activation,
)
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    EndTokenClassificationTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import EncoderConfig, EncoderDecoderConfig
from jaxformer.models.model import TransformerModelConfig
from jaxformer.nn import MLP, DotProductAttention, VocabularyLogits
from jaxformer.zoo.common.basics import projections, sized
from jaxformer.zoo.common.encoders import of_family


def t5(
    num_layers: int, model_dim: int, num_heads: int, head_dim: int, mlp_dim: int, **changes
) -> EncoderDecoderConfig:
    """Returns the first T5 in any size: ReLU, and one table for inputs and outputs."""
    fields = {
        "vocab_size": 32128,
        "head_dim": head_dim,
        "position": T5Bias(num_buckets=32, max_distance=128, bidirectional=True),
        "decoder_position": T5Bias(num_buckets=32, max_distance=128, bidirectional=False),
        "norm": RMSNorm(eps=1e-6),
        "self_attention": DotProductAttention(scale=1.0),
        "feed_forward": MLP(activation="relu", gated=False),
        "logits": VocabularyLogits(scale=model_dim**-0.5),
    }
    fields |= changes
    return sized(EncoderDecoderConfig, num_layers, model_dim, num_heads, mlp_dim, **fields)


def t5_v1_1(
    num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes
) -> EncoderDecoderConfig:
    """Returns T5 v1.1 in any size: GeGLU, a separate output table, heads of width 64."""
    own = {
        "feed_forward": MLP(activation="gelu_tanh"),
        "tie_embeddings": False,
        "logits": VocabularyLogits(),
    }
    return t5(num_layers, model_dim, num_heads, 64, mlp_dim, **(own | changes))


_ENCODERS = ("EncoderModel", "ForTokenClassification")


def _read_encoder_only(hf_config: HFConfig) -> dict[str, Any]:
    """Reads whether there is only the encoder, as in some classes."""
    named = hf_config.take("architectures", None) or [""]
    return {"encoder_only": named[0].endswith(_ENCODERS)}


def _build(encoder_only: bool, **values: Any) -> EncoderDecoderConfig | EncoderConfig:
    config = t5(**values)
    return of_family(EncoderConfig, config) if encoder_only else config


def _read_decoder_layers(hf_config: HFConfig) -> dict[str, Any]:
    layers = hf_config.number("num_decoder_layers", None)
    return {"num_decoder_layers": layers or hf_config.number("num_layers", 6)}


def _write_decoder_layers(config: EncoderDecoderConfig | EncoderConfig) -> dict[str, Any]:
    return {"num_decoder_layers": getattr(config, "decoder_layers", config.num_layers)}


def _read_positions(hf_config: HFConfig, shared: bool) -> dict[str, Any]:
    """T5 shares its relative position biases among the layers of a stack; UMT5 does not."""
    bias = T5Bias(
        hf_config.number("relative_attention_num_buckets", 32),
        hf_config.number("relative_attention_max_distance", 128),
        bidirectional=True,
        shared=shared,
    )
    return {"position": bias, "decoder_position": replace(bias, bidirectional=False)}


def _write_positions(config: EncoderDecoderConfig | EncoderConfig) -> dict[str, Any]:
    return {
        "relative_attention_num_buckets": config.position.num_buckets,
        "relative_attention_max_distance": config.position.max_distance,
    }


def _read_feed_forward(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the activation, and whether there is a gate."""
    kind = hf_config.take("feed_forward_proj", "relu")
    *before, name = kind.split("-")
    name = "gelu_new" if kind == "gated-gelu" else name
    return {
        "feed_forward.gated": hf_config.take("is_gated_act", before == ["gated"]),
        "feed_forward.activation": read_activation(hf_config, "dense_act_fn", name),
    }


def _write_feed_forward(config: EncoderDecoderConfig | EncoderConfig) -> dict[str, Any]:
    own = config.feed_forward
    name = write_activation(own.activation)
    if own.gated:
        # "gated-gelu" means the tanh approximation.
        special = {"gelu_tanh": "gelu", "gelu": "gelu_python"}
        name = f"gated-{special.get(own.activation, name)}"
    act = {"gated-gelu": "gelu_new"}.get(name, name.removeprefix("gated-"))
    return {"feed_forward_proj": name, "dense_act_fn": act, "is_gated_act": own.gated}


def _is_tied(hf_config: HFConfig) -> bool:
    return hf_config.take("tie_word_embeddings", True) is not False


def read_scale(hf_config: HFConfig) -> dict[str, Any]:
    """Reads whether the decoder's states are scaled before the logits."""
    # In old files, tied tables imply scaled states.
    scaled = hf_config.take("scale_decoder_outputs", _is_tied(hf_config))
    return {"logits.scale": hf_config.number("d_model", 512) ** -0.5 if scaled else 1.0}


T5_SCALE = Computed(
    read_scale, lambda config: {"scale_decoder_outputs": config.logits.scale != 1.0}
)


def config_map(scale: Field, shared: bool = True, own: tuple[Field, ...] = ()) -> ConfigMap:
    """Returns the fields of config.json."""
    return ConfigMap(
        _build,
        (
            Computed(_read_encoder_only),
            Expect("is_decoder", False),
            Number("dropout", "dropout_rate", 0.1, also=("self_attention.dropout",)),
            Number("model_dim", "d_model", 512),
            Number("num_layers", "num_layers", 6),
            Number("num_heads", "num_heads", 8),
            Number("head_dim", "d_kv", 64),
            Number("mlp_dim", "d_ff", 2048),
            Number("vocab_size", "vocab_size", 32128),
            Computed(_read_decoder_layers, _write_decoder_layers),
            Computed(partial(_read_positions, shared=shared), _write_positions),
            NormEps(theirs="layer_norm_epsilon", make=RMSNorm, default=1e-6),
            Computed(_read_feed_forward, _write_feed_forward),
            Computed(
                lambda hf_config: {"tie_embeddings": _is_tied(hf_config)},
                lambda config: {"tie_word_embeddings": config.tie_embeddings},
            ),
            scale,
            *own,
        ),
    )


def _fitted(config: EncoderDecoderConfig, files: Tensors) -> EncoderDecoderConfig:
    """Ties the tables if and only if the tensors are tied, as transformers does."""
    own, shared = "lm_head.weight", "shared.weight"
    both = own in files.tensors and shared in files.tensors
    same = not both or np.array_equal(files.read(own), files.read(shared))
    return replace(config, tie_embeddings=same)


def _side(ours: str, theirs: str, own_attention: str, gated: bool) -> dict[str, str]:
    """The names of one stack, "encoder" or "decoder", whose self-attention has this name."""
    kinds = (own_attention, "EncDecAttention")[: 2 if theirs == "decoder" else 1]
    last = len(kinds)
    dense = f"layer.{last}.DenseReluDense"
    feed = f"sublayers.{last}"
    names = {f"norms.{number}": f"layer.{number}.layer_norm" for number in range(last + 1)}
    for number, kind in enumerate(kinds):
        names |= projections(f"layer.{number}.{kind}", "o", number, "qkv")
    names |= {f"{feed}.up": f"{dense}.wi", f"{feed}.down": f"{dense}.wo"}
    if gated:
        names |= {f"{feed}.gate": f"{dense}.wi_0", f"{feed}.up": f"{dense}.wi_1"}
    bias = f"layer.0.{own_attention}.relative_attention_bias.weight"
    stack = f"transformer.{theirs}"
    return {
        f"{ours}.inputs.position_table": f"{stack}.block.0.{bias}",
        f"{ours}.final_norm": f"{stack}.final_layer_norm",
        # UMT5 has a table in each layer.
        **block(ours, f"{stack}.block.{{}}", names | {"sublayers.0.position_table": bias}),
    }


def encoder_path(config: EncoderDecoderConfig | EncoderConfig) -> str:
    """The path of the encoder's stack."""
    return "transformer" if isinstance(config, EncoderConfig) else "encoder"


def weight_names(
    config: EncoderDecoderConfig | EncoderConfig, encoder_attention: str = "SelfAttention"
) -> WeightMap:
    """The names of the tensors; some classes have no "transformer." before them."""
    return WeightMap(
        {
            "embedding.table": "transformer.shared.weight",
            **_side(encoder_path(config), "encoder", encoder_attention, config.feed_forward.gated),
            **_side("decoder", "decoder", "SelfAttention", config.feed_forward.gated),
            "heads.language_model.kernel": "lm_head.weight",
            "heads.label.dense.linear": "classification_head.dense",
            "heads.label.output": "classification_head.out_proj",
            "heads.span.output": "qa_outputs",
            "heads.tags.output": "classifier",
        }
    )


def architectures(name: str) -> tuple[Architecture, ...]:
    """Returns the classes of T5 and most relatives, whose names begin with `name`: "T5"."""
    answering = QuestionAnsweringTask(repeats_inputs=True)
    return (
        Architecture(
            f"{name}ForConditionalGeneration",
            Seq2SeqLMTask(),
            prefix="",
            aliases=(f"{name}WithLMHeadModel",),
        ),
        Architecture(f"{name}ForSequenceClassification", EndTokenClassificationTask()),
        Architecture(f"{name}ForQuestionAnswering", answering, prefix=""),
        Architecture(f"{name}Model", Task()),
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask()),
        Architecture(f"{name}EncoderModel", Task()),
    )


def t5_format(
    model_type: str,
    config_map: ConfigMap,
    architectures: tuple[Architecture, ...],
    weight_map: Callable[[TransformerModelConfig], WeightMap] = weight_names,
    **parts: Any,
) -> ModelFormat:
    """Returns the format of T5 or a relative."""
    return ModelFormat(
        model_type=model_type,
        config_map=config_map,
        weight_map=weight_map,
        architectures=architectures,
        prefix="transformer.",
        buffers=("*decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        copies={
            "lm_head.weight": "transformer.shared.weight",
            "transformer.encoder.embed_tokens.weight": "transformer.shared.weight",
            "transformer.decoder.embed_tokens.weight": "transformer.shared.weight",
        },
        harmless=("n_positions",),
        flax=FlaxFormat(norm="weight"),
        synonyms={
            "head_dim": "d_kv",
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
        },
        fitted=_fitted,
        **parts,
    )
