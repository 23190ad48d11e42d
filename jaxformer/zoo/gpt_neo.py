"""GPT-Neo: GPT-2 with windows in every other layer, and attention without scaling."""

from functools import partial
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    LearnedPositions,
    NormEps,
    Number,
    shortest_pattern,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention
from jaxformer.zoo.common.basics import projections
from jaxformer.zoo.common.decoders import classes, decoder_names
from jaxformer.zoo.common.gpt_like import BLOCK, HARMLESS, TIED, gpt, inner_width


def _read_windows(hf_config: HFConfig) -> dict[str, Any]:
    """Returns the windows of successive layers.

    "attention_types" is [[kinds, how often they repeat], ...].
    """
    types = hf_config.take("attention_types")
    windows = {"global": None, "local": hf_config.number("window_size")}
    layers = hf_config.number("num_layers")
    try:
        # At most one more than there are layers, because a file may state billions.
        kinds = [k for pattern, times in types for k in list(pattern) * min(times, layers + 1)]
        found = [windows[kind] for kind in kinds]
    except (KeyError, TypeError, ValueError):
        found = kinds = []
    if len(found) != layers or not found:
        raise ConfigError(
            f'{hf_config.path}: attention_types = {types!r}: must be [[["global", "local"], '
            f"repeats], ...] for {layers} layers in all"
        )
    hf_config.expect("attention_layers", kinds)
    return {"windows": shortest_pattern(found)}


def _write_windows(config: DecoderConfig) -> dict[str, Any]:
    kinds = ["global" if window is None else "local" for window in config.windows]
    repeats = config.num_layers // len(kinds)
    values = {"attention_types": [[kinds, repeats]], "attention_layers": kinds * repeats}
    windows = [window for window in config.windows if window is not None]
    return values | ({"window_size": windows[0]} if windows else {})


_FIELDS = (
    Number("num_layers", "num_layers"),
    Number("model_dim", "hidden_size"),
    Number("num_heads", "num_heads"),
    Number("vocab_size", "vocab_size"),
    Number("dropout", "resid_dropout"),
    Number("embeddings.dropout", "embed_dropout", None),
    Number("self_attention.dropout", "attention_dropout"),
    TIED,
    inner_width("intermediate_size"),
    LearnedPositions(),
    Computed(_read_windows, _write_windows),
    Activation(theirs="activation_function", default="gelu_new"),
    NormEps(theirs="layer_norm_epsilon"),
)
_BLOCK = BLOCK | projections("attn.attention")
_NAMES = {
    **decoder_names("transformer.wte", "transformer.h.{}", _BLOCK, "transformer.ln_f"),
    "transformer.inputs.position_table": "transformer.wpe.weight",
}

FORMATS = (
    ModelFormat(
        model_type="gpt_neo",
        config_map=ConfigMap(
            partial(gpt, self_attention=DotProductAttention(output_bias=True, scale=1.0)), _FIELDS
        ),
        weight_map=lambda _: WeightMap(_NAMES),
        architectures=classes("GPTNeo"),
        prefix="transformer.",
        buffers=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
        copies={"lm_head.weight": "transformer.wte.weight"},
        harmless=HARMLESS,
        defaults={
            "vocab_size": 50257,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "max_position_embeddings": 2048,
            "attention_types": [[["global", "local"], 12]],
            "window_size": 256,
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
        synonyms={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    ),
)
