"""Granite 3: Llama whose embeddings, sublayers, scores and logits have factors (muP)."""

from typing import Any

from jaxformer.hub.fields import Computed, Number, Value
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention, PreNorm, TokenEmbeddings, VocabularyLogits
from jaxformer.zoo.common.decoders import CLASSIFIERS
from jaxformer.zoo.common.llama_like import BIASES, USUAL_FIELDS, llama, llama_format
from jaxformer.zoo.system import System


def _granite(*sizes: int, logit_scale: float) -> DecoderConfig:
    """Granite 3.0 in any size, with the factors of a head of 64 or 128."""
    head_dim = sizes[1] // sizes[2]
    return llama(
        *sizes,
        vocab_size=49155,
        num_kv_heads=8,
        self_attention=DotProductAttention(scale=1 / head_dim),
        embeddings=TokenEmbeddings(scale=12.0),
        residual=PreNorm(output_scale=0.22),
        tie_embeddings=True,
        logits=VocabularyLogits(scale=logit_scale),
    )


_SOURCE = "Granite Team, IBM, 2024, Granite 3.0 Language Models, table 1"

SYSTEMS = (
    System("granite-3.0-2b", _granite(40, 2048, 32, 8192, logit_scale=1 / 8), "2.5B", _SOURCE),
    System("granite-3.0-8b", _granite(40, 4096, 32, 12800, logit_scale=1 / 16), "8.1B", _SOURCE),
)


def _read_logit_scale(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the factor by which the logits are divided."""
    return {"logits.scale": 1 / hf_config.number("logits_scaling", 1.0)}


def _write_logit_scale(config: DecoderConfig) -> dict[str, Any]:
    # Rounded, because 1 / (1 / 49) is not 49.
    return {"logits_scaling": float(f"{1 / config.logits.scale:.15g}")}


_FIELDS = (
    *USUAL_FIELDS,
    BIASES,
    Value("feed_forward.bias", "mlp_bias", False),
    Number("embeddings.scale", "embedding_multiplier", 1.0),
    Number("residual.output_scale", "residual_multiplier", 1.0),
    Number("self_attention.scale", "attention_multiplier", 1.0),
    Computed(_read_logit_scale, _write_logit_scale),
)

FORMATS = (llama_format("granite", "Granite", _FIELDS, without=CLASSIFIERS),)
