"""Falcon in three arrangements.

Multi-query attention beside the feed-forward layer (7B); grouped attention, with a norm for each of
the two (40B, 180B); ALiBi, and the two one after the other (RW).
"""

from dataclasses import dataclass
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import ALiBi
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByMask, ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel, PreNorm, Residual
from jaxformer.zoo.bloom import BLOCK, QUERY_KEY_VALUE, names
from jaxformer.zoo.gpt import gpt
from jaxformer.zoo.llama import classes
from jaxformer.zoo.pythia import TINY


def read_falcon(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("apply_residual_connection_post_layernorm", False)
    fields = read_numbers(hf_config, _NUMBERS)
    rope = read_rope(hf_config)
    # There the penalties are scaled with the scores, and head_dim is always this quotient.
    alibi = ALiBi(factor=(fields["model_dim"] // fields["num_heads"]) ** -0.5, rounded=True)
    return gpt(
        **fields,
        **read_flags(hf_config, _FLAGS),
        **_read_arrangement(hf_config),
        mlp_dim=hf_config.number("ffn_hidden_size", None) or 4 * fields["model_dim"],
        position=alibi if hf_config.take("alibi", False) else rope,
        activation=read_activation(hf_config, "activation", "gelu"),
        norm=LayerNorm(eps=hf_config.number("layer_norm_epsilon")),
        attention_output_bias=hf_config.take("bias"),
        mlp_bias=hf_config.take("bias"),
        embedding_dropout=0.0,
    )


def _read_arrangement(hf_config: HFConfig) -> dict[str, Any]:
    """How many key heads there are, and where the norms sit."""
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
    hf_config.take("num_kv_heads", None)  # Without the new architecture nothing asks for it.
    hf_config.expect("num_ln_in_parallel_attn", None, 1)
    return {
        "num_kv_heads": 1 if multi_query else None,
        "residual": Parallel(shared_norm=True) if parallel else PreNorm(),
    }


def write_falcon(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    alibi = isinstance(config.position, ALiBi)
    parallel = isinstance(config.residual, Parallel)
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        "ffn_hidden_size": config.mlp_dim,
        "alibi": alibi,
        **({} if alibi else write_rope(config.position)),
        # The older arrangements say nothing that the new one cannot, but for the order.
        "new_decoder_architecture": parallel,
        "parallel_attn": parallel,
        "num_ln_in_parallel_attn": (1 if config.residual.shared_norm else 2) if parallel else None,
        "multi_query": config.kv_heads == 1,
        "num_kv_heads": config.kv_heads,
        "activation": write_activation(config.activation),
        "layer_norm_epsilon": config.norm.eps,
    }


_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
_FLAGS = {"attention_bias": "bias", "tie_embeddings": "tie_word_embeddings"}


def _norms(residual: Residual) -> dict[str, str]:
    """What a block's norms are called."""
    if residual == Parallel(shared_norm=False):
        return {"norms.0": "ln_attn", "norms.1": "ln_mlp"}
    return {"norms.0": "input_layernorm", "norms.1": "post_attention_layernorm"}


@dataclass(frozen=True)
class _CountedForALiBi(CountedByMask):
    """Only ALiBi looks at the mask; RoPE counts padding too."""

    def applies(self, config):
        return isinstance(config.position, ALiBi)


FORMATS = (
    ModelFormat(
        model_type="falcon",
        read=read_falcon,
        write=write_falcon,
        weight_map=lambda config: WeightMap(
            names(BLOCK | _norms(config.residual)), fused=(QUERY_KEY_VALUE,)
        ),
        architectures=classes("Falcon"),
        tiny={
            **{name: value for name, value in TINY.items() if name != "intermediate_size"},
            "ffn_hidden_size": 56,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "bias": True,
        },
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
