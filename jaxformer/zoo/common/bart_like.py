"""What BART and its relatives share."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    Expect,
    LearnedPositions,
    Number,
    PaddingId,
    Value,
    numbers,
)
from jaxformer.hub.flax_format import FlaxFormat, sinusoids
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm


def bart(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> EncoderDecoderConfig:
    """Returns BART's architecture in any size; `changes` are other fields."""
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


_SIDES = ("encoder", "decoder")


class _BothSides(Number):
    """A number that the encoder and the decoder must have in common."""

    def _decode(self, hf_config):
        value = hf_config.number(f"encoder_{self.theirs}", self.default)
        hf_config.expect(f"decoder_{self.theirs}", value)
        return value

    def write(self, config):
        return {f"{side}_{self.theirs}": getattr(config, self.ours) for side in _SIDES}


def _read_embedding_scale(hf_config: HFConfig) -> dict[str, Any]:
    scaled = hf_config.take("scale_embedding", False)
    return {"embedding_scale": hf_config.number("d_model", 1024) ** 0.5 if scaled else 1.0}


FIELDS = (
    Expect("is_decoder", False),
    _BothSides("num_heads", "attention_heads", 16),
    _BothSides("mlp_dim", "ffn_dim", 4096),
    *numbers(
        {
            "num_layers": "encoder_layers",
            "num_decoder_layers": "decoder_layers",
            "model_dim": "d_model",
            "vocab_size": "vocab_size",
        },
        {"encoder_layers": 12, "decoder_layers": 12, "d_model": 1024, "vocab_size": 50265},
    ),
    PaddingId(),
    Activation(theirs="activation_function", default="gelu"),
    Computed(
        _read_embedding_scale, lambda config: {"scale_embedding": config.embedding_scale != 1.0}
    ),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "dropout", 0.1),
    Number("attention_dropout", "attention_dropout", 0.0),
)
"""The fields of config.json that all relatives have; they differ in their positions."""
POSITIONS = LearnedPositions(default=1024, offset=2, also=("decoder_position",))


def without_head_bias(config: EncoderDecoderConfig, files: Tensors) -> EncoderDecoderConfig:
    """Returns a model without a bias of the logits where the file has none, as transformers does.

    Args:
        config: The model.
        files: Its tensors.
    """
    return replace(config, head_bias="final_logits_bias" in files.tensors)


def sinusoidal_tables(hf_config: HFConfig) -> dict[str, np.ndarray]:
    """Returns the tables of Pegasus and Marian, which Flax's classes compute.

    Args:
        hf_config: The values of config.json.
    """
    rows = hf_config.number("max_position_embeddings", 1024)
    table = sinusoids(rows, hf_config.number("d_model", 1024), "half")
    return {f"model.{side}.embed_positions.weight": table for side in _SIDES}


def no_head_bias(hf_config: HFConfig, name: str) -> dict[str, tuple[int, int]]:
    """Returns the bias of the logits, which Flax's class has though the model has none.

    Args:
        hf_config: The values of config.json.
        name: The class.
    """
    with_head = name.endswith(("ForConditionalGeneration", "MTModel"))
    return {"final_logits_bias": (1, hf_config.number("vocab_size"))} if with_head else {}


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


def bart_format(
    model_type: str,
    architectures: Iterable[Architecture],
    config_map: ConfigMap,
    defaults: Mapping[str, Any],
    **parts: Any,
) -> ModelFormat:
    """Returns the format of BART or a relative.

    Args:
        model_type: The system's name in config.json.
        architectures: Its classes.
        config_map: Its fields of config.json.
        defaults: The values of fields that a config.json leaves out.
        **parts: Fields of `ModelFormat` that differ from BART's.
    """
    fields = {
        "model_type": model_type,
        "config_map": config_map,
        "weight_map": lambda config: WEIGHT_MAP,
        "architectures": tuple(architectures),
        "prefix": "model.",
        "buffers": ("*coder.version",),
        "copies": {
            "lm_head.weight": "model.shared.weight",
            "model.encoder.embed_tokens.weight": "model.shared.weight",
            "model.decoder.embed_tokens.weight": "model.shared.weight",
        },
        # Besides those for training, these are fields that transformers has given up.
        "harmless": (
            "*_layerdrop", "activation_dropout", "add_bias_logits", "add_final_layer_norm",
            "classif_dropout", "extra_pos_embeddings", "force_bos_token_to_be_generated",
            "normalize_before", "normalize_embedding", "save_step", "static_position_embeddings",
        ),
        "fitted": without_head_bias,
        "flax": FlaxFormat(unused=no_head_bias),
        "synonyms": {
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
        },
        "defaults": defaults,
    }  # fmt: skip
    return ModelFormat(**(fields | parts))
