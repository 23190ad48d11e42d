"""UMT5: mT5 with biases of the distance in every layer."""

from dataclasses import replace

from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import EncoderConfig, EncoderDecoderConfig
from jaxformer.zoo.t5 import NEWER, read_t5, t5_format


def read_umt5(hf_config: HFConfig) -> EncoderDecoderConfig | EncoderConfig:
    """The architecture that a config.json describes.

    States are always scaled, which is what transformers does since version 5 even where the tables
    are not tied.
    """
    config = read_t5(hf_config)
    changes = {"logit_scale": config.model_dim**-0.5}
    changes["position"] = replace(config.position, shared=False)
    if isinstance(config, EncoderDecoderConfig):
        changes["decoder_position"] = replace(config.decoder_position, shared=False)
    return replace(config, **changes)


FORMATS = (
    t5_format("umt5", "UMT5", {"feed_forward_proj": "gated-gelu"}, read=read_umt5, defaults=NEWER),
)
