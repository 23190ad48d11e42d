"""Pythia: GPT-NeoX in eight sizes, with RoPE on a quarter of each head."""

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Flag, NormEps, Switch, numbers
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.layouts import PerKeyHead
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import MLP, Parallel, PreNorm
from jaxformer.zoo.bloom import BLOCK
from jaxformer.zoo.common.basics import fused_attention, their_sizes
from jaxformer.zoo.common.decoders import DecoderMap, classes, decoder_names
from jaxformer.zoo.common.gpt_like import NEOX_NUMBERS, TIED, gpt
from jaxformer.zoo.system import System

_SOURCE = "Biderman et al., 2023, https://arxiv.org/abs/2304.01373"


def pythia(
    num_layers: int, model_dim: int, num_heads: int, vocab_size: int = 50304
) -> DecoderConfig:
    """Returns the architecture in any size; the vocabulary is padded as for the training mesh."""
    return gpt(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=vocab_size,
        position=RoPE(theta=10_000.0, fraction=0.25),
        residual=Parallel(shared_norm=False),
        feed_forward=MLP(activation="gelu", gated=False, bias=True),
        tie_embeddings=False,
    )


SYSTEMS = (
    System("pythia-70m", pythia(6, 512, 8), "70,426,624", _SOURCE, "pythia.py:70m"),
    System("pythia-160m", pythia(12, 768, 12), "162,322,944", _SOURCE, "pythia.py:160m"),
    System("pythia-410m", pythia(24, 1024, 16), "405,334,016", _SOURCE, "pythia.py:410m"),
    System("pythia-1b", pythia(16, 2048, 8), "1,011,781,632", _SOURCE, "pythia.py:1b"),
    System("pythia-1.4b", pythia(24, 2048, 16), "1,414,647,808", _SOURCE, "pythia.py:1.4b"),
    System("pythia-2.8b", pythia(32, 2560, 32), "2,775,208,960", _SOURCE, "pythia.py:2.8b"),
    System("pythia-6.9b", pythia(32, 4096, 32, 50432), "6,857,302,016", _SOURCE, "pythia.py:6.9b"),
    System("pythia-12b", pythia(36, 5120, 40, 50688), "11,846,072,320", _SOURCE, "pythia.py:12b"),
)


class _NeoXRope(Rope):
    """RoPE in files that may have the base and the fraction under two names."""

    def read(self, hf_config):
        fields = super().read(hf_config)
        hf_config.expect("rope_theta", fields["position"].theta)
        hf_config.expect("partial_rotary_factor", fields["position"].fraction)
        return fields


_FIELDS = (
    _NeoXRope(fraction=0.25, theta_field="rotary_emb_base", fraction_field="rotary_pct"),
    *numbers(NEOX_NUMBERS | {"mlp_dim": "intermediate_size"}),
    Flag("self_attention.bias", "attention_bias", also=("self_attention.output_bias",)),
    TIED,
    Switch(
        "residual", "use_parallel_residual", True, on=Parallel(shared_norm=False), off=PreNorm()
    ),
    Activation(default="gelu"),
    NormEps(),
)
_BLOCK = BLOCK | {"sublayers.0.attention.output": "attention.dense"}
_WEIGHT_MAP = WeightMap(
    {
        **decoder_names(
            "gpt_neox.embed_in", "gpt_neox.layers.{}", _BLOCK, "gpt_neox.final_layer_norm"
        ),
        "heads.language_model": "embed_out",
    },
    fused=(fused_attention("gpt_neox.layers.{}.attention.query_key_value", PerKeyHead()),),
)

FORMATS = (
    ModelFormat(
        model_type="gpt_neox",
        config_map=DecoderMap(gpt, _FIELDS),
        weight_map=lambda _: _WEIGHT_MAP,
        architectures=classes("GPTNeoX"),
        prefix="gpt_neox.",
        buffers=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
        aliases={r"^lm_head\.": "embed_out."},
        copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
        harmless=("is_decoder",),
        defaults={
            "vocab_size": 50432,
            **their_sizes(44, 6144, 64, 24576),
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "attention_bias": True,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
)
