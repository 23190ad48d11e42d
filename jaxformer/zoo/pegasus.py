"""Pegasus: the Transformer with norms before the sublayers, trained to write missing sentences."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks import Seq2SeqLMTask, Task
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PreNorm
from jaxformer.zoo.bart import bart_format, read_bart


def read_pegasus(hf_config: HFConfig) -> EncoderDecoderConfig:
    """The architecture that a config.json describes."""
    # The sinusoids are in the file.
    position = Learned(hf_config.number("max_position_embeddings", 1024), learns=False)
    return replace(
        read_bart(hf_config),
        position=position,
        decoder_position=position,
        embedding_norm=None,
        residual=PreNorm(),
    )


_DEFAULTS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}

FORMATS = (
    bart_format(
        "pegasus",
        (
            Architecture("PegasusForConditionalGeneration", Seq2SeqLMTask()),
            Architecture("PegasusModel", Task()),
        ),
        _DEFAULTS,
        read=read_pegasus,
    ),
)
