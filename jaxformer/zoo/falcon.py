"""Falcon in three arrangements.

Multi-query attention parallel to the feed-forward layer (7B); parallel grouped attention, with a
norm for each of the two (40B, 180B); ALiBi and sequential sublayers (RW).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxformer.functional.positions.schemes import ALiBi
from jaxformer.hub.fields import Activation, Computed, ConfigMap, Expect, Flag, NormEps, numbers
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByMask, ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.models.model import ModelConfig
from jaxformer.nn import Parallel, PreNorm, Residual, TokenEmbeddings
from jaxformer.zoo.bloom import BLOCK, QUERY_KEY_VALUE, names
from jaxformer.zoo.common.decoders import classes
from jaxformer.zoo.common.gpt_like import NEOX_NUMBERS, TIED, gpt, inner_width


def _read_position(hf_config: HFConfig) -> dict[str, Any]:
    rope = read_rope(hf_config)
    # ALiBi's penalties are scaled with the scores, and head_dim is always this quotient.
    head_dim = hf_config.number("hidden_size") // hf_config.number("num_attention_heads")
    alibi = ALiBi(factor=head_dim**-0.5, rounded=True)
    return {"position": alibi if hf_config.take("alibi", False) else rope}


def _has_alibi(config: ModelConfig) -> bool:
    return isinstance(config.position, ALiBi)


def _write_position(config: DecoderConfig) -> dict[str, Any]:
    alibi = _has_alibi(config)
    return {"alibi": alibi, **({} if alibi else write_rope(config.position))}


def _read_arrangement(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the number of key heads, and where the norms are."""
    parallel = hf_config.take("parallel_attn", True)
    multi_query = hf_config.take("multi_query", True)
    if hf_config.take("new_decoder_architecture", False):
        hf_config.expect("parallel_attn", True)
        norms = {None: False, 1: True, 2: False}
        shared = hf_config.choose("num_ln_in_parallel_attn", norms, None)
        return {
            "num_kv_heads": hf_config.number("num_kv_heads", None),
            "residual": Parallel(shared_norm=shared),
        }
    hf_config.take("num_kv_heads", None)  # Used only by the new architecture.
    hf_config.expect("num_ln_in_parallel_attn", None, 1)
    return {
        "num_kv_heads": 1 if multi_query else None,
        "residual": Parallel(shared_norm=True) if parallel else PreNorm(),
    }


def _write_arrangement(config: DecoderConfig) -> dict[str, Any]:
    parallel = isinstance(config.residual, Parallel)
    return {
        # The new architecture expresses the older ones too, except for the sequential one.
        "new_decoder_architecture": parallel,
        "parallel_attn": parallel,
        "num_ln_in_parallel_attn": (1 if config.residual.shared_norm else 2) if parallel else None,
        "multi_query": config.kv_heads == 1,
        "num_kv_heads": config.kv_heads,
    }


_FIELDS = (
    Expect("apply_residual_connection_post_layernorm", False),
    *numbers(NEOX_NUMBERS),
    TIED,
    Flag("self_attention.bias", "bias", also=("self_attention.output_bias", "feed_forward.bias")),
    Computed(_read_arrangement, _write_arrangement),
    inner_width("ffn_hidden_size"),
    Computed(_read_position, _write_position),
    Activation(theirs="activation", default="gelu"),
    NormEps(theirs="layer_norm_epsilon"),
)


def _norms(residual: Residual) -> dict[str, str]:
    """Returns the names of a block's norms."""
    if residual == Parallel(shared_norm=False):
        return {"norms.0": "ln_attn", "norms.1": "ln_mlp"}
    return {"norms.0": "input_layernorm", "norms.1": "post_attention_layernorm"}


@dataclass(frozen=True)
class _CountedForALiBi(CountedByMask):
    """Only ALiBi depends on the mask; RoPE counts padding too."""

    def applies(self, config):
        return _has_alibi(config)


FORMATS = (
    ModelFormat(
        model_type="falcon",
        config_map=ConfigMap(partial(gpt, embeddings=TokenEmbeddings(dropout=0.0)), _FIELDS),
        weight_map=lambda config: WeightMap(
            names(BLOCK | _norms(config.residual)), fused=(QUERY_KEY_VALUE,)
        ),
        architectures=classes("Falcon"),
        prefix="transformer.",
        positions=_CountedForALiBi(padding=0),
        buffers=("*.rotary_emb.inv_freq", "*.self_attention.maybe_rotary.inv_freq"),
        copies={"lm_head.weight": "transformer.word_embeddings.weight"},
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "layer_norm_epsilon": 1e-5,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "bias": False,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        },
        synonyms={"n_embed": "hidden_size"},
    ),
)
