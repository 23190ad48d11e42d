"""M2M-100: mBART with sinusoids for positions, and no norm after the embedding."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.positions.schemes import Sinusoidal
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, CountedByIds
from jaxformer.hub.tasks import Seq2SeqLMTask, Task
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PreNorm
from jaxformer.zoo.bart import bart_format, read_bart, write_bart


def read_m2m_100(hf_config: HFConfig) -> EncoderDecoderConfig:
    """The architecture that a config.json describes."""
    config = read_bart(hf_config)
    # The sinusoids are computed: they have no end.
    position = Sinusoidal(layout="half", endpoint=True, offset=config.padding_id + 1)
    return replace(
        config,
        position=position,
        decoder_position=position,
        embedding_norm=None,
        residual=PreNorm(),
        head_bias=False,
        head_bias_learns=True,
    )


def write_m2m_100(config: EncoderDecoderConfig) -> dict[str, Any]:
    """And back."""
    return write_bart(config) | {"pad_token_id": config.position.offset - 1}


FORMATS = (
    bart_format(
        "m2m_100",
        (
            Architecture("M2M100ForConditionalGeneration", Seq2SeqLMTask()),
            Architecture("M2M100Model", Task()),
        ),
        {
            "vocab_size": 128112,
            "activation_function": "relu",
            "attention_dropout": 0.1,
            "scale_embedding": True,
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
        },
        read=read_m2m_100,
        write=write_m2m_100,
        positions=CountedByIds(),
        buffers=("*.embed_positions.weight", "*.embed_positions.weights", "*coder.version"),
    ),
)
