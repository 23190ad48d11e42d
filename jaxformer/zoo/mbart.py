"""mBART: BART with norms before the sublayers, for many languages."""

from dataclasses import replace

from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import LastToFront
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PreNorm
from jaxformer.zoo.bart import bart_format, classes, read_bart


def read_mbart(hf_config: HFConfig) -> EncoderDecoderConfig:
    """The architecture that a config.json describes."""
    return replace(read_bart(hf_config), residual=PreNorm())


FORMATS = (
    bart_format(
        "mbart",
        classes("MBart"),
        {"pad_token_id": 1, "eos_token_id": 2},
        read=read_mbart,
        shift=LastToFront(),
        repeats_inputs=True,
    ),
)
