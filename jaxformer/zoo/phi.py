"""Phi-1.5 and Phi-2: GPT-J's arrangement with 32 channels of each head rotated."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.gpt import HEADS, gpt
from jaxformer.zoo.llama import classes
from jaxformer.zoo.pythia import TINY
from jaxformer.zoo.system import System


def phi(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """The architecture in any size."""
    return gpt(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=51200,
        position=RoPE(theta=10_000.0, fraction=32 * num_heads / model_dim),
        residual=Parallel(shared_norm=True),
        tie_embeddings=False,
        head_bias=True,
    )


SYSTEMS = (
    System(
        "phi-1.5",
        "phi.py:1.5",
        phi(24, 2048, 32),
        "1.3B",
        "Li et al., 2023, https://arxiv.org/abs/2309.05463",
        "one of the two tables over the vocabulary",
    ),
    System(
        "phi-2",
        "phi.py:2",
        phi(32, 2560, 32),
        "2.7B",
        "Javaheripi and Bubeck, 2023, Phi-2: The surprising power of small language models",
    ),
)


def read_phi(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    norm = LayerNorm(eps=hf_config.number("layer_norm_eps"))
    return gpt(
        **read_numbers(hf_config, _NUMBERS),
        **read_flags(hf_config, _FLAGS),
        position=read_rope(hf_config, fraction=0.5),
        residual=Parallel(shared_norm=True),
        query_key_norm=norm if hf_config.take("qk_layernorm", False) else None,
        activation=read_activation(hf_config, "hidden_act", "gelu_new"),
        norm=norm,
        head_bias=True,
        padding_id=hf_config.number("pad_token_id", None),
    )


def write_phi(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        **write_rope(config.position, fraction_field="partial_rotary_factor"),
        "qk_layernorm": config.query_key_norm is not None,
        "hidden_act": write_activation(config.activation),
        "layer_norm_eps": config.norm.eps,
    }


_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "mlp_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attention_dropout",
}
_FLAGS = {"tie_embeddings": "tie_word_embeddings"}
_BLOCK = {
    "norms.0": "input_layernorm",
    **attention(
        0,
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.dense",
    ),
    "sublayers.0.attention.query_norm": "self_attn.q_layernorm",
    "sublayers.0.attention.key_norm": "self_attn.k_layernorm",
    "sublayers.1.up": "mlp.fc1",
    "sublayers.1.down": "mlp.fc2",
}
NAMES = {
    "embedding": "model.embed_tokens",
    **block("transformer", "model.layers.{}", _BLOCK),
    "transformer.final_norm": "model.final_layernorm",
    **HEADS,
    "heads.tags.output": "score",
}

FORMATS = (
    ModelFormat(
        model_type="phi",
        read=read_phi,
        write=write_phi,
        weight_map=lambda _: WeightMap(NAMES),
        architectures=classes("Phi", without=("ForQuestionAnswering",)),
        tiny={
            **TINY,
            "num_key_value_heads": 2,
            "qk_layernorm": True,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
                "factor": 4.0,
            },
        },
        prefix="model.",
        buffers=("*.rotary_emb.inv_freq",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        defaults={
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attention_dropout": 0.0,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
)
