"""The inputs of a generation: prompts, and the outputs of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.checks import check_argument
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.activations import Hooks
from jaxformer.generation.config import TOKEN, recommendations
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.hub.families import SEGMENTS, family_of
from jaxformer.hub.inputs import checked_inputs, padded_prompts
from jaxformer.io.model_files import GENERATION
from jaxformer.models.model import ModelConfig
from jaxformer.pretrained.model import NO_HOOKS, Pretrained

Arrays = Mapping[str, Any]
Files = str | Path | Sequence[str | Path]
"""The file of an image, or several."""
Inputs = Arrays | Files | Sequence[int] | Sequence[Sequence[int]] | np.ndarray
"""Arrays by the names that transformers gives them; or one prompt or several, as text or token
ids; or, for a model that reads images, the file of one or several."""

FirstTokens = Callable[[EncoderOutputs], np.ndarray]
"""Maps the encoder's output to the first tokens of each answer, int `[B, T]`."""

_MIN_ENCODER_LENGTH = 16
_OF_ENCODER = (
    "input_ids", "attention_mask", "input_features", "input_values", "pixel_values", *SEGMENTS,
)  # fmt: skip


class Prompts(NamedTuple):
    """A batch of prompts, each from the left of its row."""

    tokens: np.ndarray
    """int32 `[B, T]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`, at least 1."""
    source: np.ndarray | None = None
    """int32 `[B, R]`: the tokens that an encoder has read, -1 at padding; None: it reads none."""

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Prompts:
        """Pads rows of tokens on the right."""
        lengths = np.array([len(row) for row in rows], np.int32)
        tokens = np.zeros((len(rows), lengths.max()), np.int32)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = ids
        return cls(tokens, lengths)

    @classmethod
    def of_ids(
        cls, ids: np.ndarray, mask: np.ndarray | None, source: np.ndarray | None = None
    ) -> Prompts:
        """Moves the padding of prompts int `[B, T]` to the right; DataError if one is empty.

        The mask `[B, T]` is 1 at real tokens and 0 at padding, on either side; None: no padding.
        """
        rows = [row[real] for row, real in zip(ids, real_tokens(ids, mask), strict=True)]
        return cls.of_rows(rows)._replace(source=source)


def real_tokens(ids: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Bool `[B, T]`: which ids are not padding; DataError if a row is only padding."""
    real = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) > 0
    empty = np.flatnonzero(~real.any(axis=1))
    if len(empty):
        raise DataError(
            f"input_ids: the prompt of row {empty[0]} is empty: it needs at least one token, such "
            "as the one that starts a text"
        )
    return real


def texts_of(inputs: Any) -> list[str] | None:
    """A text or several texts as a list; None if the inputs are not texts."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    is_list = isinstance(texts, Sequence | np.ndarray) and len(texts) > 0
    return list(texts) if is_list and all(isinstance(text, str) for text in texts) else None


def rows_of(inputs: Any) -> list[np.ndarray]:
    """The token ids of one prompt or of several as a list of int `[T]`.

    The inputs are a list of token ids, a list of such lists, or an array `[T]` or `[B, T]`.
    """
    is_rows = hasattr(inputs, "ndim") and inputs.ndim in (1, 2) and len(inputs) > 0
    if not hasattr(inputs, "ndim"):
        is_rows = isinstance(inputs, Sequence) and not isinstance(inputs, bytes) and len(inputs) > 0
    expected = "a text, token ids, a list of texts or of token ids, or a dictionary of arrays"
    check_argument("inputs", inputs, is_rows, expected)
    rows = [inputs] if np.ndim(inputs[0]) == 0 else inputs
    return [token_ids(f"inputs: prompt {number}", row) for number, row in enumerate(rows)]


def token_ids(name: str, value: Any) -> np.ndarray:
    """Token ids that a user gives, as int `[T]`; DataError if they are not integers."""
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of different lengths
        tokens = np.asarray(value, object)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise DataError(f"{name} must be a list of integers, got {tokens.dtype} {[*tokens.shape]}")
    return tokens


def are_real(lengths: np.ndarray, width: int) -> np.ndarray:
    """Bool `[B, width]`: the tokens of rows with these lengths `[B]` that are not padding."""
    return np.arange(width)[None, :] < lengths[:, None]


def bucket(size: int, least: int) -> int:
    """The next power of two, at least `least`, so that programs are compiled for few sizes."""
    return max(least, 1 << (size - 1).bit_length())


def check_generates(config: ModelConfig) -> None:
    """Raises ConfigError unless a model predicts the next token."""
    if not (config.causal or config.is_encoder_decoder):
        raise ConfigError(
            "generate: the model is an encoder: its tokens see what follows them, so it has not "
            "learned to predict what comes next; `jaxformer fill-mask` fills in its mask token, "
            "`jaxformer embed` makes vectors, and a decoder or an encoder-decoder generates"
        )
    if not config.predicts_next_token:
        raise ConfigError(
            "generate: the model has no head that predicts the next token; a decoder or an "
            "encoder-decoder with a language model's head has one"
        )


def prepare_inputs(
    pretrained: Pretrained,
    inputs: Inputs,
    padding: int = 0,
    hooks: Hooks = NO_HOOKS,
    first_tokens: FirstTokens | None = None,
) -> tuple[np.ndarray, Prompts, EncoderOutputs]:
    """Converts inputs to the decoder's prompts, and runs the encoder if there is one.

    Without "decoder_input_ids" an answer begins with `first_tokens`; None: with the start token.

    Returns:
        The prompts of the decoder int `[B, T]`; the same, each from the left of its row, with the
        tokens of the encoder; and the encoder's output with its mask, empty for a decoder.
    """
    check_generates(pretrained.config)
    config = pretrained.config
    arrays = checked_inputs(_arrays(pretrained, inputs, padding), config)
    source = family_of(config).source
    if source not in arrays:
        raise DataError(f"inputs: {source} is missing; there are {', '.join(arrays) or 'none'}")
    if "position_ids" in arrays:
        raise DataError("inputs: position_ids: must be left out; attention_mask determines them")
    rows = np.asarray(arrays[source])
    if not config.is_encoder_decoder:
        for name in arrays.keys() & SEGMENTS.keys():
            if np.any(arrays[name]):
                raise DataError(f"inputs: {name} must be 0 everywhere, as it is for new tokens")
        prompts = Prompts.of_ids(rows, arrays.get("attention_mask"))
        return rows, prompts, ()
    tokens = None
    given = {name: arrays[name] for name in _OF_ENCODER if name in arrays}
    if source == "input_ids":
        real_tokens(rows, given.get("attention_mask"))
        given = _lengthened(given, config.position.max_length)
        tokens = np.where(given["attention_mask"] > 0, given["input_ids"], -1).astype(np.int32)
    encoder_outputs = pretrained.encode(given, hooks)
    prompt = arrays.get("decoder_input_ids")
    mask = arrays.get("decoder_attention_mask")
    if prompt is None:
        if mask is not None:
            raise DataError("inputs: decoder_attention_mask is given without decoder_input_ids")
        if first_tokens is None:
            start = start_token(config, recommendations(pretrained))
            prompt = np.full((len(rows), 1), start, np.int32)
        else:
            prompt = first_tokens(encoder_outputs)
    if len(prompt) != len(rows):
        raise DataError(
            f"inputs: decoder_input_ids has {len(prompt)} rows, and {source} has {len(rows)}"
        )
    ids = np.asarray(prompt)
    prompts = Prompts.of_ids(ids, mask, tokens)
    return ids, prompts, encoder_outputs


def tokenize(pretrained: Pretrained, text: str) -> list[int]:
    """The token ids of a prompt, or of an encoder's input."""
    encoder = pretrained.prompt_encoder
    encodes = pretrained.config.is_encoder_decoder
    return encoder.source(text) if encodes else encoder.plain(text)


def reads_images(pretrained: Pretrained) -> bool:
    """Whether a model's inputs are images; then the prompts of `generate` are their files."""
    return family_of(pretrained.config).source == "pixel_values"


def reads_files(pretrained: Pretrained, inputs: Inputs) -> bool:
    """Whether the inputs of `generate` are images that are to be read from files."""
    return reads_images(pretrained) and not isinstance(inputs, Mapping)


def reads_sound(pretrained: Pretrained) -> bool:
    """Whether a model's inputs are spectrograms of sound."""
    return family_of(pretrained.config).source == "input_features"


def blank_inputs(pretrained: Pretrained, rows: int, length: int) -> Arrays:
    """Inputs of an encoder, all 0, by the name of its source."""
    config = pretrained.config
    source = family_of(config).source
    if source == "input_ids":
        return {source: np.zeros((rows, length), np.int32)}
    encoder = config.parts["encoder"]
    if source == "input_values":
        return {source: np.zeros((rows, encoder.features.min_samples), np.float32)}
    if source == "input_features":
        return {source: np.zeros((rows, encoder.num_mel_bins, encoder.num_frames), np.float32)}
    return {source: np.zeros((rows, encoder.channels, *encoder.image_size), np.float32)}


def _arrays(pretrained: Pretrained, inputs: Inputs, padding: int) -> Arrays:
    """Inputs as arrays, by the names that transformers gives them."""
    if isinstance(inputs, Mapping):
        return inputs
    if reads_images(pretrained):
        return _pixels(pretrained, inputs)
    texts = texts_of(inputs)
    rows = rows_of(inputs) if texts is None else [tokenize(pretrained, text) for text in texts]
    return padded_prompts(rows, padding, left=not pretrained.config.is_encoder_decoder)


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


def start_token(config: ModelConfig, options: Mapping[str, Any]) -> int:
    """Returns the first token of an encoder-decoder's answer, found as transformers does."""
    given = [options.get(name) for name in ("decoder_start_token_id", "bos_token_id")]
    start = next((token for token in given if token is not None), None)
    size = config.vocab_size
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
