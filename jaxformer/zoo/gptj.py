"""GPT-J: attention and feed-forward side by side, interleaved partial rotation."""

from typing import Any

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.gpt import (
    DEFAULTS,
    FILES,
    HARMLESS,
    HEADS,
    TINY,
    gpt,
    read_gpt,
    read_inner,
    write_gpt,
    write_inner,
)
from jaxformer.zoo.llama import classes
from jaxformer.zoo.system import System

# How every model of this kind differs from GPT-2.
_KIND = {
    "residual": Parallel(shared_norm=True),
    "attention_bias": False,
    "attention_output_bias": False,
    "head_bias": True,
}
SYSTEMS = (
    System(
        "gpt-j-6b",
        "gptj.py:6b",
        gpt(
            28,
            4096,
            16,
            vocab_size=50400,
            position=RoPE(theta=10_000.0, fraction=0.25, layout="interleaved"),
            tie_embeddings=False,
            **_KIND,
        ),
        "6,053,381,344",
        "Wang and Komatsuzaki, 2021, https://github.com/kingoflolz/mesh-transformer-jax",
        "norms and output biases in each of eight shards",
    ),
)


def read_gptj(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    # Old files say these; no version of transformers ever computed anything else.
    hf_config.expect("rotary", True)
    hf_config.expect("scale_attn_weights", True)
    head_dim = hf_config.number("n_embd") // hf_config.number("n_head")
    rotary_dim = hf_config.number("rotary_dim")
    # Half a channel more, so that no rounding of the quotient costs a whole one.
    exact = int(head_dim * (rotary_dim / head_dim)) == rotary_dim
    fraction = (rotary_dim if exact else rotary_dim + 0.5) / head_dim
    position = RoPE(theta=10_000.0, fraction=fraction, layout="interleaved")
    return read_gpt(hf_config, position=position, **read_inner(hf_config), **_KIND)


def write_gptj(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_gpt(config),
        **write_inner(config),
        "rotary_dim": config.position.rotary_dim(config.head_width),
    }


_BLOCK = {
    "norms.0": "ln_1",
    **attention(
        0,
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
        output="attn.out_proj",
    ),
    "sublayers.1.up": "mlp.fc_in",
    "sublayers.1.down": "mlp.fc_out",
}
NAMES = {
    "embedding": "transformer.wte",
    **block("transformer", "transformer.h.{}", _BLOCK),
    "transformer.final_norm": "transformer.ln_f",
    **HEADS,
}

FORMATS = (
    ModelFormat(
        model_type="gptj",
        read=read_gptj,
        write=write_gptj,
        weight_map=lambda _: WeightMap(NAMES),
        architectures=classes("GPTJ", without=("ForTokenClassification",)),
        tiny=TINY | {"n_inner": 56, "rotary_dim": 6},
        copies={"lm_head.weight": "transformer.wte.weight"},
        harmless=(*HARMLESS, "n_positions"),
        defaults=DEFAULTS
        | {
            "vocab_size": 50400,
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "n_positions": 2048,
            "rotary_dim": 64,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "tie_word_embeddings": False,
        },
        **FILES,
    ),
)
