"""Random inputs that reveal mistakes: odd sizes, padding on either side, T != S."""

import math
from collections.abc import Mapping
from functools import singledispatch
from typing import Any, Literal, get_args

import numpy as np

from jaxformer.functional.audio.convolution import num_windows
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.families import SEGMENTS, family_of
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import section
from jaxformer.hub.tasks.classes import (
    IGNORED,
    CausalLMTask,
    EndTokenClassificationTask,
    EndTokenTask,
    MaskedLMTask,
    NextSentenceTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
    UnshiftedCausalLMTask,
    num_labels,
)
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.hub.tasks.images import MaskedPixelsTask, VisualTokensTask
from jaxformer.hub.tasks.speech import CTCTask, QuantizedFramesTask
from jaxformer.models import SpectrogramPatchesConfig, VisionConfig, WaveformConfig
from jaxformer.parity.tiny import LENGTHS
from jaxformer.zoo.electra import ReplacedTokensTask

Padding = Literal["none", "right", "left"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)
CHOICES = 2
"""Number of choices per row."""
Inputs = Mapping[str, np.ndarray]


def example_inputs(
    checkpoint: HFCheckpoint,
    padding: Padding = "none",
    rows: int = 3,
    length: int | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns inputs with labels for a model, by transformers' names."""
    if length is None:
        of_system = LENGTHS.get(checkpoint.model_format.model_type, 11)
        length = LENGTHS.get(checkpoint.architecture.name, of_system)
    rng = np.random.default_rng(seed)
    config = checkpoint.config
    encoder = config.parts.get("encoder", config)
    task = checkpoint.architecture.task
    if any(head.unit == "choice" for head in config.heads):
        return _choices(checkpoint, padding, (rows, CHOICES, length), rng)
    family = family_of(config)
    names, accepted, inputs = family.inputs, family.names_of_inputs(config), {}
    if "input_ids" in names:
        inputs |= _texts(checkpoint, padding, (rows, length), rng)
    if "decoder_input_ids" in names and not task.repeats_inputs:
        inputs |= _ids(checkpoint, padding, (rows, length - 2), rng, "decoder_")
    if "spatial_shapes" in accepted:
        inputs |= _shaped_images(config.parts.get("image", config), padding, rows, rng)
    elif "pixel_values" in names:
        size = (rows, encoder.channels, *encoder.image_size)
        inputs["pixel_values"] = rng.standard_normal(size).astype(np.float32)
        if "noise" in accepted:
            inputs["noise"] = rng.random((rows, encoder.num_patches)).astype(np.float32)
    if "input_features" in names:
        size = (rows, encoder.num_mel_bins, encoder.num_frames)
        inputs["input_features"] = rng.standard_normal(size).astype(np.float32)
    if "input_values" in names:
        inputs |= _sounds(encoder, padding, rows, rng)
    hf_config = checkpoint.hf_config
    if config.is_encoder_decoder:  # the parent config may have a different size, which is unused
        size = family.vocab_size(config, "decoder_input_ids")
        hf_config = hf_config.with_values(vocab_size=size)
    return inputs | _labels(task, rng, inputs, hf_config)


_FRAMES = 13
"""Frames of a waveform."""


def _sounds(
    config: SpectrogramPatchesConfig | WaveformConfig,
    padding: Padding,
    rows: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns spectrograms, or waveforms of unequal lengths, whose samples come before padding."""
    if isinstance(config, SpectrogramPatchesConfig):
        size = (rows, *config.image_size[::-1])
        return {"input_values": rng.standard_normal(size).astype(np.float32)}
    features = config.features
    samples = features.min_samples + (_FRAMES - 1) * config.samples_per_frame + 1
    waveforms = rng.standard_normal((rows, samples)).astype(np.float32)
    if padding == "none":
        return {"input_values": waveforms}
    sizes = samples - np.arange(rows) * (samples // (2 * rows))
    real = np.arange(samples) < sizes[:, None]
    return {"input_values": waveforms * real, "attention_mask": real.astype(np.int64)}


def _shaped_images(
    config: VisionConfig, padding: Padding, rows: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns images of several shapes as patches, padded on the right."""
    shapes = ((2, 6), (4, 3), (1, 12)) if padding == "none" else ((2, 5), (4, 3), (1, 7))
    grids = np.array([shapes[row % len(shapes)] for row in range(rows)])
    counts = np.prod(grids, axis=1)[:, None]
    length = 12 if padding == "none" else 14
    size = math.prod(config.patch_size) * config.channels
    real = np.arange(length) < counts
    pixels = rng.standard_normal((rows, length, size)) * real[..., None]
    return {
        "pixel_values": pixels.astype(np.float32),
        "pixel_attention_mask": real.astype(np.int64),
        "spatial_shapes": grids,
    }


def _choices(
    checkpoint: HFCheckpoint,
    padding: Padding,
    shape: tuple[int, int, int],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns texts `[B, C, T]`, and the index of the correct choice of each row."""
    rows, choices, length = shape
    inputs = _texts(checkpoint, padding, (rows * choices, length), rng)
    # transformers fails for multiple choice with token types, which it does not flatten to rows.
    inputs.pop("task_type_ids", None)
    inputs = {name: array.reshape(shape) for name, array in inputs.items()}
    return inputs | {"labels": rng.integers(choices, size=rows)}


def _texts(
    checkpoint: HFCheckpoint, padding: Padding, shape: tuple[int, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns ids, their mask, and token types if the model has them."""
    inputs = _ids(checkpoint, padding, shape, rng, "")
    encoder = checkpoint.config.parts.get("encoder", checkpoint.config)
    for name, table in SEGMENTS.items():
        if size := getattr(encoder, "type_sizes", {}).get(table):
            inputs[name] = rng.integers(size, size=shape)
    return inputs


def _ids(
    checkpoint: HFCheckpoint,
    padding: Padding,
    shape: tuple[int, int],
    rng: np.random.Generator,
    prefix: str,
) -> dict[str, np.ndarray]:
    """Returns ids and mask of the encoder or decoder; no real token has the padding id."""
    rows, length = shape
    config = checkpoint.config
    vocab_size = family_of(config).vocab_size(config, f"{prefix}input_ids")
    pad = text_values(checkpoint).get("pad_token_id")
    ids = rng.integers(vocab_size, size=shape)
    if pad is not None:
        ids = np.where(ids == pad, (pad + 1) % vocab_size, ids)
    if padding == "none":
        return {f"{prefix}input_ids": ids}
    sizes = np.maximum(length - np.arange(rows) * (length // rows), 1)
    places = np.arange(length)
    real = places < sizes[:, None] if padding == "right" else places >= (length - sizes)[:, None]
    if pad is not None:
        ids = np.where(real, ids, pad)
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": real.astype(np.int64)}


def text_values(checkpoint: HFCheckpoint) -> Mapping[str, Any]:
    """Returns the values of config.json about text: those of its text section, if it has one."""
    parts = [name for name, part in checkpoint.model_format.sections.items() if part.reads_text]
    return (checkpoint.part(parts[0]) if parts else checkpoint).hf_config.values


# Labels -----------------------------------------------------------------------------------------


@singledispatch
def _labels(
    task: Task, rng: np.random.Generator, inputs: Inputs, hf_config: HFConfig
) -> dict[str, Any]:
    """Returns labels for the loss of a class, and further inputs that its loss needs."""
    del task, rng, inputs, hf_config
    return {}


@_labels.register
def _causal_lm(task: CausalLMTask, rng, inputs, hf_config):
    labels = _token_labels(rng, inputs, hf_config.values["vocab_size"])
    # The first token after padding is predicted from a padding state, which is meaningless.
    real = _real(inputs)
    labels[:, 1:] = np.where(real[:, :-1], labels[:, 1:], IGNORED)
    return {"labels": labels}


@_labels.register
def _seq2seq_lm(task: Seq2SeqLMTask, rng, inputs, hf_config):
    size = hf_config.values["vocab_size"]
    shape = inputs["decoder_input_ids"].shape
    labels = rng.integers(size, size=shape)
    # Predictions at padding are meaningless.
    real = inputs.get("decoder_attention_mask", np.ones(shape)) > 0
    return {"labels": np.where(real & (rng.random(shape) >= 0.2), labels, IGNORED)}


@_labels.register(MaskedLMTask)
@_labels.register(UnshiftedCausalLMTask)
def _same_places(task, rng, inputs, hf_config):
    return {"labels": _token_labels(rng, inputs, hf_config.values["vocab_size"])}


@_labels.register
def _pre_training(task: PreTrainingTask, rng, inputs, hf_config):
    labels = _token_labels(rng, inputs, hf_config.values["vocab_size"])
    return {"labels": labels, f"{task.label}_label": rng.integers(2, size=len(labels))}


@_labels.register
def _next_sentence(task: NextSentenceTask, rng, inputs, hf_config):
    return {"labels": rng.integers(2, size=len(inputs["input_ids"]))}


@_labels.register
def _sequence(task: SequenceClassificationTask, rng, inputs, hf_config):
    rows = len(next(iter(inputs.values())))
    return {"labels": rng.integers(num_labels(hf_config), size=rows)}


@_labels.register
def _transcripts(task: CTCTask, rng, inputs, hf_config):
    """Labels of a different length for each clip; one label between others is -100."""
    rows, size = len(inputs["input_values"]), hf_config.values["vocab_size"]
    blank = hf_config.values["pad_token_id"]
    labels = (blank + rng.integers(1, size, size=(rows, 5))) % size
    labels[0, 1] = labels[0, 0]
    lengths = 5 - np.arange(rows)
    labels = np.where(np.arange(5) < lengths[:, None], labels, IGNORED)
    labels[1, 0] = IGNORED
    return {"labels": labels}


@_labels.register
def _quantized_frames(task: QuantizedFramesTask, rng, inputs, hf_config):
    """Masks half of the frames; negatives may have the same codes as the masked frame."""
    rows, samples = inputs["input_values"].shape
    frames, names = samples, ("conv_kernel", "conv_stride")
    for size, stride in zip(*map(hf_config.take, names), strict=True):
        frames = num_windows(frames, size, stride)
    masked = np.arange(frames) % 2 == rng.integers(2, size=(rows, 1))
    others = rng.integers(frames, size=(rows, frames, 4)) + np.arange(rows)[:, None, None] * frames
    return {"mask_time_indices": masked.astype(np.int64), "sampled_negative_indices": others}


@_labels.register
def _end_token(task: EndTokenClassificationTask, rng, inputs, hf_config):
    ids = with_ends(inputs, hf_config.values["eos_token_id"])
    return _sequence(task, rng, inputs, hf_config) | {"input_ids": ids}


@_labels.register
def _tokens(task: TokenClassificationTask, rng, inputs, hf_config):
    return {"labels": _token_labels(rng, inputs, num_labels(hf_config))}


@_labels.register
def _replaced_tokens(task: ReplacedTokensTask, rng, inputs, hf_config):
    return {"labels": rng.integers(2, size=inputs["input_ids"].shape)}


@_labels.register
def _answers(task: QuestionAnsweringTask, rng, inputs, hf_config):
    rows, length = inputs["input_ids"].shape
    mask = inputs.get("attention_mask", np.ones((rows, length)))
    if not mask[:, 0].all():
        # The loss would include a decoder's scores at left padding, which are meaningless.
        return {}
    places = rng.integers(length + 3, size=(2, rows))  # some beyond the end
    return {"start_positions": places[0], "end_positions": places[1]}


@_labels.register
def _pairs(task: ContrastiveTask, rng, inputs, hf_config):
    """Pairs each text with one image; ids have two end tokens, of which the first counts."""
    del rng
    text = section(hf_config, "text_config")
    end = text.get("eos_token_id")
    size = text.get("vocab_size")
    # The default id in SigLIP's class exceeds the vocabulary of its models.
    known = end is not None and (size is None or end < size)
    ids = {"input_ids": with_ends(inputs, end, twice=True)} if known else {}
    return ids | {"return_loss": np.array(True)}


@_labels.register
def _masked_pixels(task: MaskedPixelsTask, rng, inputs, hf_config):
    return {"bool_masked_pos": _hidden_patches(rng, inputs, hf_config)}


@_labels.register
def _visual_tokens(task: VisualTokensTask, rng, inputs, hf_config):
    hidden = _hidden_patches(rng, inputs, hf_config)
    labels = rng.integers(hf_config.number("vocab_size"), size=hidden.sum())
    return {"bool_masked_pos": hidden, "labels": labels}


def _hidden_patches(rng: np.random.Generator, inputs: Inputs, hf_config: HFConfig) -> np.ndarray:
    """Returns the masked patches of square images, a different number in each row."""
    rows, _, height, width = inputs["pixel_values"].shape
    size = hf_config.number("patch_size")
    return rng.random((rows, (height // size) * (width // size))) < 0.6


@_labels.register
def _two_ends(task: EndTokenTask, rng, inputs, hf_config):
    """Returns no labels, but ids with two end tokens in each row, of which the first counts."""
    return {"input_ids": with_ends(inputs, hf_config.number("eos_token_id"), twice=True)}


def with_ends(inputs: Inputs, end: int, *, twice: bool = False) -> np.ndarray:
    """Returns ids `[B, T]` whose only end token is the last real token."""
    ids, real = inputs["input_ids"], _real(inputs)
    places = np.arange(ids.shape[1])
    last = np.max(np.where(real, places, 0), axis=1, keepdims=True)
    first = last - np.sum(real, axis=1, keepdims=True) // 3 if twice else last
    other = np.where(ids == end, end + 1, ids)
    return np.where((places == first) | (places == last), end, other)


def _token_labels(rng: np.random.Generator, inputs: Inputs, choices: int) -> np.ndarray:
    """Returns labels for most of the real tokens."""
    shape = inputs["input_ids"].shape
    counted = _real(inputs) & (rng.random(shape) < 0.8)
    return np.where(counted, rng.integers(choices, size=shape), IGNORED)


def _real(inputs: Inputs) -> np.ndarray:
    """Returns the non-padding tokens, bool `[B, T]`."""
    return inputs.get("attention_mask", np.ones_like(inputs["input_ids"])) > 0
