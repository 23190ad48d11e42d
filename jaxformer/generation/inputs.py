"""What a generation starts from: prompts, and the outputs of an encoder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import ConfigError, DataError, check_argument
from jaxformer.functional.activations import Hooks
from jaxformer.generation.checks import TOKEN
from jaxformer.generation.compiled import check_generates
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.prompts import Prompts, bucket, padded, real_tokens, rows_of, texts_of
from jaxformer.generation.recommended import recommendations
from jaxformer.hub.families import family_of
from jaxformer.hub.family import SEGMENTS
from jaxformer.hub.inputs import checked_inputs
from jaxformer.io.model_files import GENERATION
from jaxformer.pretrained.model import NO_HOOKS, Pretrained, check_pretrained

Arrays = Mapping[str, Any]
Files = str | Path | Sequence[str | Path]
"""The file of an image, or several."""
Inputs = Arrays | Files | Sequence[int] | Sequence[Sequence[int]] | np.ndarray
"""Arrays by the names that transformers gives them; or one prompt or several, as text or token
ids; or, for a model that reads images, the file of one or several."""

_MIN_ENCODER_LENGTH = 16
_OF_ENCODER = ("input_ids", "attention_mask", "pixel_values", *SEGMENTS)


class Prepared(NamedTuple):
    """What a generation starts from."""

    ids: np.ndarray
    """int `[B, T]`: the prompts, of an encoder-decoder those of the decoder."""
    prompts: Prompts
    """The same, each from the left of its row, with the tokens of the encoder."""
    encoder_outputs: EncoderOutputs
    """The encoder's output with its mask; empty for a decoder."""


def prepare_inputs(
    pretrained: Pretrained, inputs: Inputs, padding: int = 0, hooks: Hooks = NO_HOOKS
) -> Prepared:
    """Converts inputs to the decoder's prompts, and runs the encoder if there is one.

    Args:
        pretrained: The model.
        inputs: See `generate`.
        padding: The token with which to pad prompts that are not arrays.
        hooks: Those that the encoder runs with.

    Returns:
        The prompts, and the encoder's outputs.

    Raises:
        ArgumentError: `pretrained` is not a model, or the inputs are of an unknown type.
        ConfigError: The model does not predict the next token.
        DataError: An array is missing, or does not fit the model.
    """
    check_pretrained("pretrained", pretrained)
    check_generates(pretrained.config)
    config = pretrained.config
    arrays = checked_inputs(_arrays(pretrained, inputs, padding), config)
    source = family_of(config).source
    if source not in arrays:
        raise DataError(f"inputs: {source} is missing; there are {', '.join(arrays) or 'none'}")
    if "position_ids" in arrays:
        raise DataError("inputs: position_ids: must be left out; attention_mask decides them")
    rows = np.asarray(arrays[source])
    if not config.is_encoder_decoder:
        for name in arrays.keys() & SEGMENTS.keys():
            if np.any(arrays[name]):
                raise DataError(f"inputs: {name} must be 0 everywhere, as it is for new tokens")
        prompts = Prompts.of_ids(rows, arrays.get("attention_mask"), config.vocab_size)
        return Prepared(rows, prompts, ())
    tokens, given = None, {name: arrays[name] for name in _OF_ENCODER if name in arrays}
    if source == "input_ids":
        size = family_of(config).vocab_size(config, source)
        real_tokens(rows, given.get("attention_mask"), size)
        given = _lengthened(given, config.position.max_length)
        tokens = np.where(given["attention_mask"] > 0, given["input_ids"], -1).astype(np.int32)
    prompt = arrays.get("decoder_input_ids")
    mask = arrays.get("decoder_attention_mask")
    if prompt is None:
        if mask is not None:
            raise DataError("inputs: decoder_attention_mask is given without decoder_input_ids")
        prompt = np.full((len(rows), 1), _start_token(pretrained), np.int32)
    if len(prompt) != len(rows):
        raise DataError(
            f"inputs: decoder_input_ids has {len(prompt)} rows, and {source} has {len(rows)}"
        )
    ids = np.asarray(prompt)
    prompts = Prompts.of_ids(ids, mask, config.vocab_size, tokens)
    return Prepared(ids, prompts, pretrained.encode(given, hooks))


def tokenize(pretrained: Pretrained, text: str) -> list[int]:
    """The tokens of a prompt, or of an encoder's input.

    Args:
        pretrained: The model.
        text: The text.

    Returns:
        Token ids.
    """
    encoder = pretrained.prompt_encoder
    encodes = pretrained.config.is_encoder_decoder
    return encoder.source(text) if encodes else encoder.plain(text)


def reads_images(pretrained: Pretrained) -> bool:
    """Whether a model's inputs are images; then the prompts of `generate` are their files."""
    return family_of(pretrained.config).source == "pixel_values"


def reads_files(pretrained: Pretrained, inputs: Inputs) -> bool:
    """Whether the inputs of `generate` are images that are to be read from files."""
    return reads_images(pretrained) and not isinstance(inputs, Mapping)


def blank_inputs(pretrained: Pretrained, rows: int, length: int) -> Arrays:
    """Inputs of an encoder, with nothing in them.

    Args:
        pretrained: The model.
        rows: The number of texts or images.
        length: The tokens of each text.

    Returns:
        "input_ids" or "pixel_values".
    """
    config = pretrained.config
    source = family_of(config).source
    if source == "input_ids":
        return {source: np.zeros((rows, length), np.int32)}
    encoder = config.parts["encoder"]
    return {source: np.zeros((rows, encoder.channels, *encoder.image_size), np.float32)}


def _arrays(pretrained: Pretrained, inputs: Inputs, padding: int) -> Arrays:
    """Inputs as arrays, by the names that transformers gives them."""
    if isinstance(inputs, Mapping):
        return inputs
    if reads_images(pretrained):
        return _pixels(pretrained, inputs)
    texts = texts_of(inputs)
    rows = rows_of(inputs) if texts is None else [tokenize(pretrained, text) for text in texts]
    return padded(rows, padding, left=not pretrained.config.is_encoder_decoder)


def _pixels(pretrained: Pretrained, files: Any) -> Arrays:
    """The images of a file or of several, as the model reads them."""
    files = [files] if isinstance(files, str | Path) else files
    is_list = isinstance(files, Sequence) and len(files) > 0
    fits = is_list and all(isinstance(file, str | Path) for file in files)
    expected = 'the file of an image, a list of files, or {"pixel_values": array}'
    check_argument("inputs", files, fits, expected)
    from jaxformer.pretrained.prediction.image_reader import HFImageReader

    reader = HFImageReader(pretrained)
    return reader.arrays(reader.encode([(str(file),) for file in files]), 1)


def _start_token(pretrained: Pretrained) -> int:
    """The first token of an encoder-decoder's answer, found as transformers does."""
    found = recommendations(pretrained)
    given = [found.get(name) for name in ("decoder_start_token_id", "bos_token_id")]
    start = next((token for token in given if token is not None), None)
    size = pretrained.config.vocab_size
    if not (TOKEN.allows(start) and start < size):
        raise ConfigError(
            f"decoder_start_token_id = {start!r} in {GENERATION} or config.json: must be a token "
            f"of the model, 0 to {size - 1}; correct it, or give decoder_input_ids"
        )
    return start


def _lengthened(arrays: Arrays, longest: int | None) -> Arrays:
    """Pads an encoder's inputs on the right, so that programs are compiled for few lengths."""
    ids = np.asarray(arrays["input_ids"])
    given = {"attention_mask": np.ones_like(ids), **arrays}
    length = bucket(ids.shape[1], _MIN_ENCODER_LENGTH)
    length = length if longest is None else min(length, longest)
    more = ((0, 0), (0, length - ids.shape[1]))
    return {name: np.pad(np.asarray(array), more) for name, array in given.items()}
