"""XGLM: GPT-3 with sinusoidal positions and scaled embeddings, for thirty languages."""

from functools import partial
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.schemes import Sinusoidal
from jaxformer.hub.fields import Activation, Computed, ConfigMap, Expect, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import CausalLMTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import MLP, DotProductAttention, TokenEmbeddings
from jaxformer.zoo.common.bart_like import block_names
from jaxformer.zoo.common.basics import embedding_scale
from jaxformer.zoo.common.decoders import decoder_names
from jaxformer.zoo.common.gpt_like import TIED, gpt
from jaxformer.zoo.system import System

_xglm = partial(
    gpt,
    vocab_size=256008,
    position=Sinusoidal(layout="half", endpoint=True, offset=2),
    self_attention=DotProductAttention(bias=True, output_bias=True, dropout=0.1),
    feed_forward=MLP(activation="gelu", gated=False, bias=True),
    dropout=0.1,
)


def xglm(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> DecoderConfig:
    """Returns XGLM in any size; `changes` are other fields."""
    fields = {"embeddings": TokenEmbeddings(scale=model_dim**0.5, padding_id=1)}
    return _xglm(num_layers, model_dim, num_heads, **(fields | changes))


_SOURCE = "Lin et al., 2021, table 2, https://arxiv.org/abs/2112.10668"

SYSTEMS = (
    System("xglm-564m", xglm(24, 1024, 16), "564M", _SOURCE),
    System("xglm-1.7b", xglm(24, 2048, 16), "1.7B", _SOURCE),
    System("xglm-2.9b", xglm(48, 2048, 16), "2.9B", _SOURCE),
    System("xglm-4.5b", xglm(48, 2048, 16, mlp_dim=16384), "4.5B", _SOURCE),
    System("xglm-7.5b", xglm(32, 4096, 32), "7.5B", _SOURCE),
)


def _read_padding(hf_config: HFConfig) -> dict[str, Any]:
    """Checks that padding has one of the two codes before that of position 0."""
    padding = hf_config.number("pad_token_id", None)
    if padding is not None and padding >= 2:
        raise ConfigError(
            f"{hf_config.path}: pad_token_id = {padding}: must be 0, 1 or null: for another id, "
            f"transformers uses the code of position {padding - 2}"
        )
    return {"embeddings.padding_id": padding}


_FIELDS = (
    Expect("add_cross_attention", False),
    Computed(_read_padding),
    Number("num_layers", "num_layers"),
    Number("model_dim", "d_model"),
    Number("num_heads", "attention_heads"),
    Number("mlp_dim", "ffn_dim"),
    Number("vocab_size", "vocab_size"),
    Number("dropout", "dropout"),
    Number("self_attention.dropout", "attention_dropout"),
    TIED,
    Activation(theirs="activation_function", default="gelu"),
    embedding_scale("scale_embedding", True, "d_model", 1024),
)
_BLOCK = block_names(("self_attn",))
_NAMES = decoder_names("model.embed_tokens", "model.layers.{}", _BLOCK, "model.layer_norm")

FORMATS = (
    ModelFormat(
        model_type="xglm",
        config_map=ConfigMap(_xglm, _FIELDS),
        weight_map=lambda _: WeightMap(_NAMES),
        architectures=(
            Architecture("XGLMForCausalLM", CausalLMTask()),
            Architecture("XGLMModel", Task()),
        ),
        prefix="model.",
        buffers=("*.embed_positions.weights",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        harmless=("activation_dropout", "layerdrop", "max_position_embeddings"),
        defaults={
            "vocab_size": 256008,
            "d_model": 1024,
            "ffn_dim": 4096,
            "num_layers": 24,
            "attention_heads": 16,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "tie_word_embeddings": True,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        synonyms={
            "hidden_size": "d_model",
            "num_attention_heads": "attention_heads",
            "num_hidden_layers": "num_layers",
        },
    ),
)
