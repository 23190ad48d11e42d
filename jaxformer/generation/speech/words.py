"""The times of words: cross-attention and dynamic time warping."""

import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxformer.errors import ConfigError
from jaxformer.generation.speech.tokens import SpeechTokens
from jaxformer.pretrained.model import Pretrained

_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose words are not separated by spaces."""
_OPENING, _CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word after them, or before them."""
_PUNCTUATION = string.punctuation
_UNKNOWN = "\ufffd"
"""Stands in a text for bytes that are not a character."""
_MEDIAN_WIDTH = 7


class Alignment(NamedTuple):
    """The tokens of a window, aligned with the states of the encoder."""

    attention: np.ndarray
    """float64 `[tokens, S]`: the mean of the chosen heads, each normalised over the tokens."""
    rows: np.ndarray
    """int `[K]`: the token of each step of the cheapest path."""
    columns: np.ndarray
    """int `[K]`: the state of each step."""

    @property
    def begins(self) -> np.ndarray:
        """The state at which each token begins, int `[tokens]`."""
        first = np.pad(np.diff(self.rows), (1, 0), constant_values=1).astype(bool)
        return self.columns[first]


def token_times(
    pretrained: Pretrained,
    tokens: SpeechTokens,
    features: np.ndarray,
    prompt: Sequence[int],
    new: Sequence[int],
    *,
    ended: bool,
    frames: int,
    seconds: float,
) -> np.ndarray:
    """Returns when each new token begins, float64 `[len(new)]` in seconds from a window's start.

    The new tokens are those without the end token. Unless that followed (`ended`), the last one
    begins with the one before it, as in transformers. A state of the encoder lasts some `seconds`;
    see `aligned` for the other arguments.

    References:
        `whisper.timing` of OpenAI, and `_extract_token_timestamps` of transformers.
    """
    count = len(new) if ended else len(new) - 1
    if count < 1:
        return np.zeros(len(new))
    ids = [*prompt, *new]
    found = aligned(pretrained, tokens, features, ids, len(prompt), count, frames)
    return np.pad(found.begins * seconds, (0, len(new) - count), mode="edge")


def aligned(
    pretrained: Pretrained,
    tokens: SpeechTokens,
    features: np.ndarray,
    ids: Sequence[int],
    start: int,
    count: int,
    frames: int,
) -> Alignment:
    """Aligns tokens of a window with the states of the encoder by dynamic time warping.

    Reads the heads that follow the sound, or all heads of the second half of the layers;
    ConfigError if the model lacks one. The features are the spectrogram of the window, float32 `[1,
    M, frames]`, of which `frames` belong to the sound. Of all ids that the decoder reads, `count`
    from `start` on are aligned.
    """
    layers, heads = pretrained.config.decoder_layers, pretrained.config.num_heads
    for layer, head in tokens.alignment_heads:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ConfigError(
                f"alignment_heads in generation_config.json has [{layer}, {head}], a layer and a "
                f"head, but the decoder has {layers} layers of {heads} heads: correct it, or "
                "remove alignment_heads, so that the heads of the second half of the layers count"
            )
    chosen = tokens.alignment_heads or tuple(
        (layer, head) for layer in range(layers // 2, layers) for head in range(heads)
    )
    name = "decoder.blocks.{}.cross_attn.hook_pattern"
    names = tuple({name.format(layer): None for layer, _ in chosen})
    inputs = {"input_features": features, "decoder_input_ids": np.array([ids], np.int32)}
    _, cache = pretrained.activations(inputs, names)
    weights = np.stack(
        [np.asarray(cache[name.format(layer)], np.float64)[0, head] for layer, head in chosen]
    )
    own = weights[:, start : start + count, : max(frames // 2, 1)]
    spread = own.std(axis=1, keepdims=True)
    own = (own - own.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    matrix = median_filter(own, _MEDIAN_WIDTH).mean(axis=0)
    return Alignment(matrix, *warping_path(-matrix))


def median_filter(x: np.ndarray, width: int) -> np.ndarray:
    """Returns the median of `width` neighbours along the last axis, whose ends are reflected.

    An axis that is too short is unchanged.
    """
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def warping_path(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cheapest monotonic path through a matrix: its rows and columns, int `[K]`.

    The matrix is filled one antidiagonal after another. Among equal predecessors the left one is
    taken, as by OpenAI.
    """
    height, width = cost.shape
    total = np.full((height + 1, width + 1), np.inf)
    total[0, 0] = 0
    step = np.zeros((height + 1, width + 1), int)
    step[0, :], step[:, 0] = 2, 1
    for diagonal in range(2, height + width + 1):
        i = np.arange(max(1, diagonal - width), min(height, diagonal - 1) + 1)
        j = diagonal - i
        both, up, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        from_both, from_up = (both < up) & (both < left), (up < both) & (up < left)
        step[i, j] = np.where(from_both, 0, np.where(from_up, 1, 2))
        total[i, j] = cost[i - 1, j - 1] + np.where(from_both, both, np.where(from_up, up, left))
    i, j = height, width
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        taken = step[i, j]
        i, j = i - (taken != 2), j - (taken != 1)
    rows, columns = np.array(path[::-1]).T
    return rows, columns


def words_of(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    starts: Sequence[float],
    end: float,
    language: str | None,
) -> list[dict[str, Any]]:
    """Returns "word", "start" and "end" of each word, from the starts of tokens and the end."""
    groups = grouped(tokenizer, tokens, language)
    begins = [round(float(starts[places[0]]), 3) for _, places in groups]
    ends = [*begins[1:], round(float(end), 3)]
    return [
        {"word": word, "start": begin, "end": max(last, begin)}
        for (word, _), begin, last in zip(groups, begins, ends, strict=True)
    ]


def timed_words(
    groups: Sequence[tuple[str, list[int]]], times: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """Returns "word", "start" and "end" of each word, from the times of all tokens."""
    return [
        {"word": word, "start": times[places[0]][0], "end": times[places[-1]][1]}
        for word, places in groups
    ]


def grouped(
    tokenizer: Tokenizer, tokens: Sequence[int], language: str | None
) -> list[tuple[str, list[int]]]:
    """Returns each word of a text with its punctuation, and the places of its tokens.

    `language` is a code: some languages do not separate words by spaces.

    References:
        `whisper.tokenizer.split_to_word_tokens` and `whisper.timing.merge_punctuations` of OpenAI,
        and `_combine_tokens_into_words` of transformers.
    """
    words = _characters(tokenizer, tokens)
    if language not in _WITHOUT_SPACES:
        words = _joined(
            words, lambda _, text: not text.startswith(" ") and text.strip() not in _PUNCTUATION
        )
    opened: list[tuple[str, list[int]]] = []
    for word, places in words[::-1]:
        if opened and word.startswith(" ") and word.strip() in _OPENING:
            after, others = opened[-1]
            opened[-1] = word + after, places + others
        else:
            opened.append((word, places))
    words = opened[::-1]
    return _joined(words, lambda before, text: not before.endswith(" ") and text in _CLOSING)


def _characters(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Groups tokens to whole characters; a token may be a part of one."""
    whole, done = tokenizer.decode(list(tokens)), 0
    groups: list[tuple[str, list[int]]] = []
    pending: list[int] = []
    for place in range(len(tokens)):
        pending.append(place)
        text = tokenizer.decode([tokens[each] for each in pending])
        unknown = text.find(_UNKNOWN)
        # A character that the whole text does not show either stays unknown.
        if unknown < 0 or whole[done + unknown : done + unknown + 1] in ("", _UNKNOWN):
            groups.append((text, pending))
            done, pending = done + len(text), []
    return groups


def _joined(
    words: Sequence[tuple[str, list[int]]], continues: Callable[[str, str], bool]
) -> list[tuple[str, list[int]]]:
    """Joins each word to the one before it if it continues it."""
    found: list[tuple[str, list[int]]] = []
    for word, places in words:
        if found and continues(found[-1][0], word):
            found[-1] = (found[-1][0] + word, found[-1][1] + places)
        else:
            found.append((word, places))
    return found
