"""BART, and its relatives mBART, Pegasus and M2M-100.

BART is the 2017 Transformer with learned positions, GELU and a norm after the embedding. mBART,
Pegasus (trained to write missing sentences) and M2M-100 (with sinusoidal positions) have their
norms before the sublayers.
"""

from functools import partial
from typing import Any

from jaxformer.functional.positions.schemes import Sinusoidal
from jaxformer.hub.fields import Computed, LearnedPositions
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByIds, last_to_front
from jaxformer.nn import PreNorm, TokenEmbeddings, VocabularyLogits
from jaxformer.zoo.common.bart_like import (
    POSITIONS,
    bart,
    bart_format,
    classes,
    config_map,
    no_head_bias,
    sinusoidal_tables,
)
from jaxformer.zoo.system import System

_SOURCE = "Lewis et al., 2019, https://arxiv.org/abs/1910.13461; the released models"

SYSTEMS = (
    System("bart-base", bart(6, 768, 12), "140M", _SOURCE, "bart.py:base"),
    System("bart-large", bart(12, 1024, 16), "400M", _SOURCE, "bart.py:large"),
)


_CLASSES = (
    "ForConditionalGeneration",
    "ForSequenceClassification",
    "ForQuestionAnswering",
    "ForCausalLM",
    "Model",
)


def _read_sinusoids(hf_config: HFConfig) -> dict[str, Any]:
    """Computed sinusoids, without a maximum position."""
    offset = hf_config.number("pad_token_id") + 1
    position = Sinusoidal(layout="half", endpoint=True, offset=offset)
    return POSITIONS.read(hf_config) | {"position": position, "decoder_position": position}


_mbart = partial(bart, residual=PreNorm())
_pegasus = partial(_mbart, embeddings=TokenEmbeddings())
# Its sinusoids are in the file.
_PEGASUS_POSITIONS = LearnedPositions(default=1024, learns=False, also=("decoder_position",))
_M2M_POSITIONS = Computed(
    _read_sinusoids, lambda config: {"pad_token_id": config.position.offset - 1}
)

FORMATS = (
    bart_format(
        "bart",
        classes("Bart", *_CLASSES),
        config_map(bart, POSITIONS),
        {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "num_labels": 3},
        repeats_inputs=True,
    ),
    bart_format(
        "mbart",
        classes("MBart", *_CLASSES),
        config_map(_mbart, POSITIONS),
        {"pad_token_id": 1, "eos_token_id": 2},
        shift=last_to_front,
        repeats_inputs=True,
    ),
    bart_format(
        "pegasus",
        classes("Pegasus", "ForConditionalGeneration", "ForCausalLM", "Model"),
        config_map(_pegasus, _PEGASUS_POSITIONS),
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        flax=FlaxFormat(fixed=sinusoidal_tables, unused=no_head_bias),
    ),
    bart_format(
        "m2m_100",
        classes("M2M100", "ForConditionalGeneration", "Model"),
        config_map(partial(_pegasus, logits=VocabularyLogits()), _M2M_POSITIONS),
        {
            "vocab_size": 128112,
            "activation_function": "relu",
            "attention_dropout": 0.1,
            "scale_embedding": True,
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
        },
        positions=CountedByIds(),
        fitted_fields=("tie_embeddings",),
        buffers=("*.embed_positions.weight", "*.embed_positions.weights", "*coder.version"),
    ),
)
