"""Phi-1.5 and Phi-2: parallel layers as in GPT-J, and RoPE on 32 channels of each head."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Computed, NormEps, Number, PaddingId, numbers
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel, VocabularyLogits
from jaxformer.zoo.common.basics import NUMBERS, projections, their_sizes
from jaxformer.zoo.common.decoders import DecoderMap, classes, decoder_names
from jaxformer.zoo.common.gpt_like import TIED, gpt
from jaxformer.zoo.system import System

# How every model of this kind differs from GPT-2.
_KIND = {"residual": Parallel(shared_norm=True), "logits": VocabularyLogits(bias=True)}


def phi(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """Returns the architecture in any size."""
    return gpt(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=51200,
        position=RoPE(theta=10_000.0, fraction=32 * num_heads / model_dim),
        tie_embeddings=False,
        **_KIND,
    )


SYSTEMS = (
    System(
        "phi-1.5",
        phi(24, 2048, 32),
        "1.3B",
        "Li et al., 2023, https://arxiv.org/abs/2309.05463",
        "phi.py:1.5",
        note="one of the two tables over the vocabulary",
    ),
    System(
        "phi-2",
        phi(32, 2560, 32),
        "2.7B",
        "Javaheripi and Bubeck, 2023, Phi-2: The surprising power of small language models",
        "phi.py:2",
    ),
)


def _read_query_key_norm(hf_config: HFConfig) -> dict[str, Any]:
    norm = LayerNorm(eps=hf_config.number("layer_norm_eps"))
    return {
        "self_attention.query_key_norm": norm if hf_config.take("qk_layernorm", False) else None
    }


_FIELDS = (
    *numbers(NUMBERS),
    Number("num_kv_heads", "num_key_value_heads", None),
    Number("dropout", "resid_pdrop"),
    Number("embeddings.dropout", "embd_pdrop", None),
    Number("self_attention.dropout", "attention_dropout"),
    TIED,
    NormEps(),
    Rope(fraction=0.5),
    Computed(
        _read_query_key_norm,
        lambda config: {"qk_layernorm": config.self_attention.query_key_norm is not None},
    ),
    Activation(default="gelu_new"),
    PaddingId(default=None),
)
_BLOCK = {
    "norms.0": "input_layernorm",
    **projections("self_attn", "dense"),
    "sublayers.0.attention.query_norm": "self_attn.q_layernorm",
    "sublayers.0.attention.key_norm": "self_attn.k_layernorm",
    "sublayers.1.up": "mlp.fc1",
    "sublayers.1.down": "mlp.fc2",
}
_NAMES = {
    **decoder_names("model.embed_tokens", "model.layers.{}", _BLOCK, "model.final_layernorm"),
    "heads.tags.output": "score",
}

FORMATS = (
    ModelFormat(
        model_type="phi",
        config_map=DecoderMap(partial(gpt, **_KIND), _FIELDS),
        weight_map=lambda _: WeightMap(_NAMES),
        architectures=classes("Phi", without=("ForQuestionAnswering",)),
        prefix="model.",
        buffers=("*.rotary_emb.inv_freq",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        defaults={
            "vocab_size": 51200,
            **their_sizes(24, 2048, 32, 8192),
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
