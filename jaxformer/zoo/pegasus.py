"""Pegasus: the Transformer with norms before the sublayers, trained to write missing sentences."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.format import Architecture
from jaxformer.hub.settings import Settings
from jaxformer.hub.tasks import Seq2SeqLM, Task
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PreNorm
from jaxformer.zoo.bart import bart_format, read_bart


def read_pegasus(settings: Settings) -> EncoderDecoderConfig:
    """The architecture that a config.json describes."""
    # The sinusoids are in the file.
    position = Learned(settings.number("max_position_embeddings", 1024), learns=False)
    return replace(
        read_bart(settings),
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
            Architecture("PegasusForConditionalGeneration", Seq2SeqLM()),
            Architecture("PegasusModel", Task()),
        ),
        _DEFAULTS,
        read=read_pegasus,
    ),
)
