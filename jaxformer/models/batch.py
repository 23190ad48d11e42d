"""The arrays of a training batch, from the model's configuration alone."""

from collections.abc import Mapping

import jax.numpy as jnp

from jaxformer.models.build import ModelConfig
from jaxformer.models.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, VisionConfig
from jaxformer.models.heads.base import Shapes, array

_Lengths = Mapping[str, int]


def batch_shapes(config: ModelConfig, rows: int, lengths: _Lengths) -> Shapes:
    """What a model reads of a training batch, its own arrays and those of its heads.

    Segments are among them for encoders and encoder-decoders, whose rows may end in padding.

    Args:
        config: The model.
        rows: Rows of the batch.
        lengths: Tokens of "inputs", and of "decoder_inputs" for an encoder-decoder.

    Returns:
        The shape and dtype of each array, by its name.
    """
    inputs = _INPUTS[type(config)](config, rows, lengths)
    predicted = lengths.get("decoder_inputs", lengths["inputs"])
    heads = [head.reads(rows, predicted) for head in config.heads]
    return inputs | {name: shape for reads in heads for name, shape in reads.items()}


def _decoder(config: DecoderConfig, rows: int, lengths: _Lengths) -> Shapes:
    del config
    return {"inputs": array(rows, lengths["inputs"])}


def _encoder(config: EncoderConfig, rows: int, lengths: _Lengths) -> Shapes:
    names = ("inputs", "segments", *config.type_sizes)
    return {name: array(rows, lengths["inputs"]) for name in names}


def _encoder_decoder(config: EncoderDecoderConfig, rows: int, lengths: _Lengths) -> Shapes:
    del config
    source = {name: array(rows, lengths["inputs"]) for name in ("inputs", "segments")}
    names = ("decoder_inputs", "decoder_segments")
    return source | {name: array(rows, lengths["decoder_inputs"]) for name in names}


def _vision(config: VisionConfig, rows: int, lengths: _Lengths) -> Shapes:
    del lengths
    return {"images": array(rows, *config.image_size, config.channels, dtype=jnp.float32)}


_INPUTS = {
    DecoderConfig: _decoder,
    EncoderConfig: _encoder,
    EncoderDecoderConfig: _encoder_decoder,
    VisionConfig: _vision,
}
