"""The alignment of Whisper's text: cross-attention, and the path of dynamic time warping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from jaxformer.errors import DataError
from jaxformer.generation.api import generate, generation_config_for
from jaxformer.generation.speech.features import log_mel_of
from jaxformer.generation.speech.segments import STRIDE
from jaxformer.generation.speech.words import Alignment, aligned, words_of
from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.lab.drawing import canvas, heat_map, shown_text
from jaxformer.lab.selection import selected
from jaxformer.lab.speech.attention import patterns, time_maps
from jaxformer.lab.speech.sound import Sound, Spectrogram, mel_centres
from jaxformer.pretrained.model import Pretrained

_MOST_NAMES = 120


@dataclass(frozen=True)
class Answer:
    """A text for a sound, by default Whisper's transcript, with its alignment."""

    prompt: list[int]
    """The first tokens: start, language, task."""
    tokens: list[int]
    """The tokens of the text."""
    names: list[str]
    """The text of each token."""
    text: str
    language: str | None
    """The code of the language; None for a monolingual model."""
    inputs: np.ndarray
    """The spectrogram of a window, float32 `[1, M, frames]`."""
    states: int
    """The number of encoder states within the sound."""
    seconds: float
    """The time step between states."""
    alignment: Alignment | None
    """The alignment; None without a text."""
    words: list[Mapping[str, Any]]
    """"word", "start" and "end" of each word."""


def answer_of(
    pretrained: Pretrained, sound: Sound, text: str | None = None, language: str | None = None
) -> tuple[Answer, Spectrogram]:
    """Aligns a given text or Whisper's transcript with a sound of at most one window."""
    features = log_mel_of(pretrained)
    spectrogram = features.spectrogram(sound.waveform)
    inputs = spectrogram.T[None]
    room = pretrained.config.decoder_position.max_length
    options = {"do_sample": False, "num_beams": 1, "return_timestamps": False}
    options |= {"language": language, "max_new_tokens": room // 2 if text is None else 1}
    options = {name: value for name, value in options.items() if value is not None}
    found = generate(pretrained, {"input_features": inputs}, **options)
    sequence = found["sequences"][0].tolist()
    given = len(sequence) - found["log_probs"].shape[1]
    prompt, own = sequence[:given], generation_config_for(pretrained, options)
    if text is None:
        written = takewhile(lambda token: token not in own.end_tokens, sequence[given:])
        tokens = [token for token in written if token < own.end_tokens[0]]
    else:
        tokens = pretrained.prompt_encoder.rendered(f" {text.strip()}")
        if not tokens:
            raise DataError(f"text = {text!r}: has no token of the model: give the spoken words")
        if len(prompt) + len(tokens) > room:
            raise DataError(
                f"text: has {len(tokens)} tokens: must have at most {room - len(prompt)}, the "
                "decoder's positions; cut the sound and the text"
            )
    codes = [code for token in prompt if (code := own.tokens.language_of(token)) is not None]
    code = codes[0] if codes else None
    seconds = STRIDE * features.seconds_per_frame
    frames = min(-(-len(sound.waveform) // features.hop), features.num_frames)
    alignment, words = None, []
    tokenizer = pretrained.prompt_encoder.tokenizer
    if tokens:
        ids = [*prompt, *tokens]
        count = len(tokens)
        alignment = aligned(pretrained, own.tokens, inputs, ids, len(prompt), count, frames)
        starts = alignment.begins * seconds
        words = words_of(tokenizer, tokens, starts, sound.seconds, code)
    names = [tokenizer.decode([token]).strip() or tokenizer.id_to_token(token) for token in tokens]
    states = max(frames // STRIDE, 1)
    answer = Answer(
        prompt, tokens, names, tokenizer.decode(tokens).strip(), code, inputs, states, seconds,
        alignment, words,
    )  # fmt: skip
    centres = mel_centres(features.num_mel_bins, features.sampling_rate, "slaney")
    return answer, Spectrogram(spectrogram, frames, features.seconds_per_frame, centres)


def answer_maps(
    pretrained: Pretrained, answer: Answer, layers: Sequence[int] | None
) -> list[AttentionMaps]:
    """Returns the encoder's attention over time, and the cross-attention of each token."""
    config, maps = pretrained.config, []
    inputs = {
        "input_features": answer.inputs,
        "decoder_input_ids": np.array([[*answer.prompt, *answer.tokens]], np.int32),
    }
    shape = answer.seconds, answer.states
    chosen = selected("layers", layers, range(config.num_layers))
    weights = patterns(pretrained, inputs, "encoder.blocks.{}.attn.hook_pattern", chosen)
    maps.append(time_maps("encoder self-attention", weights, chosen, *shape))
    if answer.tokens:
        chosen = selected("layers", layers, range(config.decoder_layers))
        weights = patterns(pretrained, inputs, "decoder.blocks.{}.cross_attn.hook_pattern", chosen)
        weights = weights[..., len(answer.prompt) :, :]
        maps.append(time_maps("cross-attention", weights, chosen, *shape, answer.names))
    return maps


def alignment_picture(answer: Answer) -> Any:
    """Draws the cross-attention of the alignment heads, with the path."""
    found, count = answer.alignment, len(answer.tokens)
    height = min(0.17 * count + 1.8, 22)
    title = "Word alignment: cross-attention, and the path of dynamic time warping"
    figure, ((axes,),) = canvas(title, (11, max(height, 3.2)))
    end = found.attention.shape[1] * answer.seconds
    options = {"extent": (0, end, count - 0.5, -0.5), "cmap": "Blues"}
    bar = "attention / its deviation"
    heat_map(axes, found.attention, "", "seconds", "", bar=bar, **options)
    times = (found.columns + 0.5) * answer.seconds
    axes.plot(times, found.rows, color="#cf222e", linewidth=1.4)
    for word in answer.words:
        axes.axvline(word["start"], color="#999999", linewidth=0.5, linestyle=":")
    step = -(-count // _MOST_NAMES)
    places = range(0, count, step)
    axes.set_yticks(places, [shown_text(answer.names[place]) for place in places], fontsize=8)
    return figure
