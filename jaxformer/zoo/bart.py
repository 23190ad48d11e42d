"""BART: the 2017 Transformer with learned positions, GELU and a norm after the embedding."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import (
    EndTokenClassificationTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    Task,
)
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.system import System


def bart(num_layers: int, model_dim: int, num_heads: int, **changes) -> EncoderDecoderConfig:
    """The architecture in any size."""
    fields = {
        "vocab_size": 50265,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "position": Learned(max_length=1024, offset=2),
        "decoder_position": Learned(max_length=1024, offset=2),
        "norm": LayerNorm(eps=1e-5),
        "embedding_norm": LayerNorm(eps=1e-5),
        "residual": PostNorm(),
        "activation": "gelu",
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "head_bias": True,
        "head_bias_learns": False,
        "depth_scaled_init": False,
        "dropout": 0.1,
    }
    return EncoderDecoderConfig(**(fields | changes))


_SOURCE = "Lewis et al., 2019, https://arxiv.org/abs/1910.13461; the released models"

SYSTEMS = (
    System("bart-base", "bart.py:base", bart(6, 768, 12), "140M", _SOURCE),
    System("bart-large", "bart.py:large", bart(12, 1024, 16), "400M", _SOURCE),
)


def read_bart(hf_config: HFConfig) -> EncoderDecoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("is_decoder", False)
    heads = hf_config.number("encoder_attention_heads", 16)
    hf_config.expect("decoder_attention_heads", heads)
    mlp_dim = hf_config.number("encoder_ffn_dim", 4096)
    hf_config.expect("decoder_ffn_dim", mlp_dim)
    model_dim = hf_config.number("d_model", 1024)
    position = Learned(hf_config.number("max_position_embeddings", 1024), offset=2)
    return bart(
        hf_config.number("encoder_layers", 12),
        model_dim,
        heads,
        num_decoder_layers=hf_config.number("decoder_layers", 12),
        mlp_dim=mlp_dim,
        vocab_size=hf_config.number("vocab_size", 50265),
        position=position,
        decoder_position=position,
        padding_id=hf_config.number("pad_token_id"),
        activation=read_activation(hf_config, "activation_function", "gelu"),
        embedding_scale=model_dim**0.5 if hf_config.take("scale_embedding", False) else 1.0,
        tie_embeddings=hf_config.take("tie_word_embeddings", True),
        dropout=hf_config.number("dropout", 0.1),
        attention_dropout=hf_config.number("attention_dropout", 0.0),
    )


def write_bart(config: EncoderDecoderConfig) -> dict[str, Any]:
    """And back."""
    sizes = {"attention_heads": config.num_heads, "ffn_dim": config.mlp_dim}
    both = {f"{side}_{name}": size for name, size in sizes.items() for side in _SIDES}
    if isinstance(config.position, Learned):
        both["max_position_embeddings"] = config.position.max_length
    return both | {
        "encoder_layers": config.num_layers,
        "decoder_layers": config.decoder_layers,
        "d_model": config.model_dim,
        "vocab_size": config.vocab_size,
        "activation_function": write_activation(config.activation),
        "scale_embedding": config.embedding_scale != 1.0,
        "tie_word_embeddings": config.tie_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


_SIDES = ("encoder", "decoder")


def fitted(config: EncoderDecoderConfig, files: TensorFiles) -> EncoderDecoderConfig:
    """Without a bias of the logits where the file has none: transformers takes zeros for it."""
    return replace(config, head_bias="final_logits_bias" in files.tensors)


def _block(own: str) -> dict[str, str]:
    """Names of a block: (self-attention, feed-forward), or with cross-attention in between."""
    kinds = ("self_attn", "encoder_attn") if own == "decoder" else ("self_attn",)
    last = len(kinds)
    names = {
        f"sublayers.{last}.up": "fc1",
        f"sublayers.{last}.down": "fc2",
        f"norms.{last}": "final_layer_norm",
    }
    for number, kind in enumerate(kinds):
        parts = [f"{kind}.{part}_proj" for part in ("q", "k", "v", "out")]
        names |= attention(number, *parts) | {f"norms.{number}": f"{kind}_layer_norm"}
    return block(own, f"model.{own}.layers.{{}}", names)


NAMES = {
    "embedding.table": "model.shared.weight",
    **_block("encoder"),
    **_block("decoder"),
    **{f"{own}.inputs.position_table": f"model.{own}.embed_positions.weight" for own in _SIDES},
    **{f"{own}.inputs.embedding_norm": f"model.{own}.layernorm_embedding" for own in _SIDES},
    **{f"{own}.final_norm": f"model.{own}.layer_norm" for own in _SIDES},
    "heads.language_model.kernel": "lm_head.weight",
    "heads.language_model.bias": "final_logits_bias",
    "heads.label.dense.linear": "classification_head.dense",
    "heads.label.output": "classification_head.out_proj",
    "heads.span.output": "qa_outputs",
}
WEIGHT_MAP = WeightMap(NAMES, layouts={"heads.language_model.bias": Same(leading=1)})


def classes(name: str) -> tuple[Architecture, ...]:
    """The classes of BART and mBART, whose names begin with `name`: "Bart"."""
    return (
        Architecture(f"{name}ForConditionalGeneration", Seq2SeqLMTask()),
        Architecture(f"{name}ForSequenceClassification", EndTokenClassificationTask()),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(repeats_inputs=True)),
        Architecture(f"{name}Model", Task()),
    )


def bart_format(
    model_type: str, architectures: tuple[Architecture, ...], defaults: dict[str, Any], **parts: Any
) -> ModelFormat:
    """The files of BART or a relative.

    Args:
        model_type: As config.json has it.
        architectures: Its classes.
        defaults: Of fields that a config.json leaves out.
        **parts: Of the Format, that are not BART's.
    """
    fields = {
        "model_type": model_type,
        "read": read_bart,
        "write": write_bart,
        "weight_map": lambda config: WEIGHT_MAP,
        "architectures": architectures,
        "tiny": {
            "vocab_size": 131,
            "d_model": 48,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 56,
            "decoder_ffn_dim": 56,
            "max_position_embeddings": 20,
            "scale_embedding": True,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 5,
        },
        "prefix": "model.",
        "buffers": ("*coder.version",),
        "copies": {
            "lm_head.weight": "model.shared.weight",
            "model.encoder.embed_tokens.weight": "model.shared.weight",
            "model.decoder.embed_tokens.weight": "model.shared.weight",
        },
        # Besides what is for training, these are fields that transformers itself has given up.
        "harmless": (
            "*_layerdrop", "activation_dropout", "add_bias_logits", "add_final_layer_norm",
            "classif_dropout", "extra_pos_embeddings", "force_bos_token_to_be_generated",
            "normalize_before", "normalize_embedding", "save_step", "static_position_embeddings",
        ),
        "fitted": fitted,
        "synonyms": {
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        "defaults": defaults,
    }  # fmt: skip
    return ModelFormat(**(fields | parts))


FORMATS = (
    bart_format(
        "bart",
        classes("Bart"),
        {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "num_labels": 3},
        repeats_inputs=True,
    ),
)
