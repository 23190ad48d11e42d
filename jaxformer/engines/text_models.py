"""Requirements of formats that support any text model, or a Whisper."""

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.hub.families import family_of
from jaxformer.models.model import ModelConfig
from jaxformer.pretrained.model import Pretrained

OUTPUTS = ("logits", "last_hidden_state")
"""The compared outputs: the first one that exists."""


def check_text_model(pretrained: Pretrained, option: str) -> None:
    """Raises ConfigError, naming an option, unless a model computes logits or states of texts."""
    inputs = family_of(pretrained.config).inputs
    name = pretrained.checkpoint.architecture.name
    if "input_ids" not in inputs or "pixel_values" in inputs:
        raise ConfigError(f"{option}: must be a model of texts; this is a {name}")
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    arrays = dict.fromkeys(text_inputs(pretrained.config), ids)
    outputs = jax.eval_shape(pretrained._outputs, pretrained.parameters, arrays)
    heads = [each for each in outputs if each.endswith("logits")]
    if heads != ["logits"] and (heads or "last_hidden_state" not in outputs):
        raise ConfigError(
            f"{option}: must be a model with logits, or without a head; {name} has "
            f"{', '.join(heads)}"
        )


def source_inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the names of the inputs in transformers, except for those of a decoder.

    They are tokens and their mask, or a spectrogram.
    """
    source = family_of(config).source
    return (source, "attention_mask") if source == "input_ids" else (source,)


def text_inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the names of all inputs in transformers."""
    answers = ("decoder_input_ids",) if config.is_encoder_decoder else ()
    return (*source_inputs(config), *answers)


def keeps_cache(config: ModelConfig) -> bool:
    """Returns whether a model generates tokens, with a cache."""
    return config.predicts_next_token and (config.causal or config.is_encoder_decoder)
