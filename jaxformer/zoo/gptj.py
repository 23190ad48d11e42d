"""GPT-J: parallel attention and feed-forward layers, and partial interleaved RoPE."""

from functools import partial
from typing import Any

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Computed, Expect
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.nn import DotProductAttention, Parallel, VocabularyLogits
from jaxformer.zoo.common.basics import projections
from jaxformer.zoo.common.decoders import DecoderMap, classes, decoder_names
from jaxformer.zoo.common.gpt_like import DEFAULTS, FEED_FORWARD, FIELDS, FILES, HARMLESS, gpt
from jaxformer.zoo.system import System

# How every model of this kind differs from GPT-2.
_KIND = {
    "residual": Parallel(shared_norm=True),
    "self_attention": DotProductAttention(),
    "logits": VocabularyLogits(bias=True),
}
SYSTEMS = (
    System(
        "gpt-j-6b",
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
        "gptj.py:6b",
        note="norms and output biases in each of eight shards",
    ),
)


def _read_rope(hf_config: HFConfig) -> dict[str, Any]:
    """Reads RoPE on the first "rotary_dim" channels of each head."""
    head_dim = hf_config.number("n_embd") // hf_config.number("n_head")
    rotary_dim = hf_config.number("rotary_dim")
    # Adds half a channel, so that no channel is lost when the quotient is rounded.
    exact = int(head_dim * (rotary_dim / head_dim)) == rotary_dim
    fraction = (rotary_dim if exact else rotary_dim + 0.5) / head_dim
    return {"position": RoPE(theta=10_000.0, fraction=fraction, layout="interleaved")}


_FIELDS = (
    # Old files have these; transformers has never used other values.
    Expect("rotary", True),
    Expect("scale_attn_weights", True),
    *FIELDS,
    Computed(
        _read_rope, lambda config: {"rotary_dim": config.position.rotary_dim(config.head_width)}
    ),
    *FEED_FORWARD,
)
_BLOCK = {
    "norms.0": "ln_1",
    **projections("attn"),
    "sublayers.1.up": "mlp.fc_in",
    "sublayers.1.down": "mlp.fc_out",
}
_NAMES = decoder_names("transformer.wte", "transformer.h.{}", _BLOCK, "transformer.ln_f")

FORMATS = (
    ModelFormat(
        model_type="gptj",
        config_map=DecoderMap(partial(gpt, **_KIND), _FIELDS),
        weight_map=lambda _: WeightMap(_NAMES),
        architectures=classes("GPTJ", without=("ForTokenClassification",)),
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
