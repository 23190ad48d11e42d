"""GPT, GPT-2 and GPT-3: learned positions, layer norm, biases everywhere."""

from dataclasses import replace
from functools import partial

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Activation, ConfigMap, Flag, LearnedPositions, Switch
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.weights.layouts import Concatenated, InOut
from jaxformer.hub.weights.weight_map import Fused, WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.common.basics import fused_attention
from jaxformer.zoo.common.cross_attention import KEPT_CROSS_ATTENTION, keeps_cross_attention
from jaxformer.zoo.common.decoders import classes, decoder_names
from jaxformer.zoo.common.gpt_like import (
    BLOCK,
    DEFAULTS,
    FEED_FORWARD,
    FIELDS,
    FILES,
    HARMLESS,
    gpt,
)
from jaxformer.zoo.system import System

_GPT = "Radford et al., 2018, section 4.1 (117M in GPT-2's release notes)"
# The GPT-2 paper's own counts (117M, 345M, 762M, 1542M) were corrected with the release.
_GPT2 = "Radford et al., 2019, table 2, corrected in https://github.com/openai/gpt-2"
_GPT3 = "Brown et al., 2020, table 2.1, https://arxiv.org/abs/2005.14165"


def gpt3(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """GPT-3 with dense attention in every layer; the paper alternates it with a sparse pattern."""
    return gpt(num_layers, model_dim, num_heads, position=Learned(max_length=2048))


SYSTEMS = (
    System(
        "gpt",
        gpt(12, 768, 12, vocab_size=40478, position=Learned(max_length=512), residual=PostNorm()),
        "117M",
        _GPT,
        "gpt.py:117m",
    ),
    System("gpt2-small", gpt(12, 768, 12), "124M", _GPT2, "gpt2.py:small"),
    System("gpt2-medium", gpt(24, 1024, 16), "355M", _GPT2, "gpt2.py:medium"),
    System("gpt2-large", gpt(36, 1280, 20), "774M", _GPT2, "gpt2.py:large"),
    System("gpt2-xl", gpt(48, 1600, 25), "1558M", _GPT2, "gpt2.py:xl"),
    System("gpt3-small", gpt3(12, 768, 12), "125M", _GPT3, "gpt3.py:small"),
    System("gpt3-medium", gpt3(24, 1024, 16), "350M", _GPT3, "gpt3.py:medium"),
    System("gpt3-large", gpt3(24, 1536, 16), "760M", _GPT3, "gpt3.py:large"),
    # The table says 24 heads of width 128, which exceed 2048: 16 heads give the published count.
    System("gpt3-xl", gpt3(24, 2048, 16), "1.3B", _GPT3, "gpt3.py:xl"),
    System("gpt3-2.7b", gpt3(32, 2560, 32), "2.7B", _GPT3, "gpt3.py:2.7b"),
    System("gpt3-6.7b", gpt3(32, 4096, 32), "6.7B", _GPT3, "gpt3.py:6.7b"),
    # The table says 5140, but its 40 heads of width 128 give 5120.
    System("gpt3-13b", gpt3(40, 5120, 40), "13B", _GPT3, "gpt3.py:13b"),
    System("gpt3-175b", gpt3(96, 12288, 96), "175B", _GPT3, "gpt3.py:175b"),
)

# GPT's "gelu" is the tanh approximation, which transformers calls "gelu_new" elsewhere.
_GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_GPT_FIELDS = (
    *FIELDS,
    LearnedPositions(theirs="n_positions"),
    Activation(theirs="afn", default="gelu", names=_GPT_ACTIVATIONS),
)

_GPT2_FIELDS = (
    KEPT_CROSS_ATTENTION,
    *FIELDS,
    *FEED_FORWARD,
    Flag("self_attention.scale_by_depth", "scale_attn_by_inverse_layer_idx"),
    LearnedPositions(theirs="n_positions"),
    Switch("self_attention.scale", "scale_attn_weights", True, on=None, off=1.0),
)


def _weight_map(embedding: str, positions: str) -> WeightMap:
    """The names of the tensors; kernels in the blocks are stored as [inputs, outputs]."""
    output = {"sublayers.0.attention.output": "attn.c_proj"}
    return WeightMap(
        decoder_names(
            f"transformer.{embedding}", "transformer.h.{}", BLOCK | output, "transformer.ln_f"
        )
        | {"transformer.inputs.position_table": f"transformer.{positions}.weight"},
        fused=(fused_attention("transformer.h.{}.attn.c_attn", Concatenated(InOut())),),
        layouts={"transformer.stack.*.kernel": InOut()},
    )


def _gpt2_weight_map(config: DecoderConfig) -> WeightMap:
    """The names of the tensors; cross-attention may be between self-attention and feed-forward."""
    own = _weight_map("wte", "wpe")
    if config.cross_attention is not None:
        sublayer, norm = "sublayers.1", "norms.1"
        moved = {k.replace("s.1", "s.2"): path for k, path in BLOCK.items() if ".1" in k}
    elif keeps_cross_attention(config):
        sublayer, norm, moved = "unused.0", "unused.1", {}
    else:
        return own
    cross = {
        norm: "ln_cross_attn",
        f"{sublayer}.attention.query": "crossattention.q_attn",
        f"{sublayer}.attention.output": "crossattention.c_proj",
        **moved,
    }
    kinds = block("transformer", "transformer.h.{}", cross)
    attention = f"transformer.stack.group.*.{sublayer}.attention"
    modules = f"{attention}.key", f"{attention}.value"
    fused = Fused(modules, "transformer.h.{}.crossattention.c_attn", Concatenated(InOut()))
    return replace(own, names={**own.names, **kinds}, fused=(*own.fused, fused))


def _classes(name: str, without: tuple[str, ...] = ()) -> tuple[Architecture, ...]:
    """The classes of a system whose language model is called <name>LMHeadModel."""
    causal, *others = classes(name, without)
    return (replace(causal, name=f"{name}LMHeadModel"), *others)


FORMATS = (
    ModelFormat(
        model_type="gpt2",
        config_map=ConfigMap(gpt, _GPT2_FIELDS),
        weight_map=_gpt2_weight_map,
        architectures=_classes("GPT2"),
        flax=FlaxFormat(
            ignored={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
        ),
        copies={"lm_head.weight": "transformer.wte.weight"},
        # Attention logits are float32 here with and without the last.
        harmless=(*HARMLESS, "is_decoder", "reorder_and_upcast_attn"),
        reads_encoder=True,
        defaults=DEFAULTS | {"scale_attn_by_inverse_layer_idx": False},
        **FILES,
    ),
    ModelFormat(
        model_type="openai-gpt",
        config_map=ConfigMap(partial(gpt, residual=PostNorm()), _GPT_FIELDS),
        weight_map=lambda _: _weight_map("tokens_embed", "positions_embed"),
        architectures=_classes(
            "OpenAIGPT", without=("ForTokenClassification", "ForQuestionAnswering")
        ),
        copies={"lm_head.weight": "transformer.tokens_embed.weight"},
        harmless=(*HARMLESS, "n_special", "predict_special_tokens"),
        defaults=DEFAULTS | {"vocab_size": 40478, "n_positions": 512},
        **FILES,
    ),
)
