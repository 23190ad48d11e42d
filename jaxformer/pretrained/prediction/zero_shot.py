"""Zero-shot classification of images by text labels."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.checks import check_argument
from jaxformer.data.chat.template import special_tokens_of
from jaxformer.data.tokenizers.auto import UnreadableTokenizerError
from jaxformer.data.tokenizers.files import ask_about, read_settings
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.inputs import padded_prompts
from jaxformer.models import Contrastive
from jaxformer.pretrained.model import Pretrained, check_pretrained
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.prediction.image_reader import HFImageReader

TEMPLATE = "This is a photo of {}."
"""The default template, as in transformers' pipeline."""


class LabelScore(NamedTuple):
    """A label and its probability."""

    label: str
    """The label."""
    score: float
    """The probability among the labels (CLIP), or independent of other labels (SigLIP)."""


def zero_shot(
    pretrained: Pretrained,
    images: Sequence[str | Path],
    labels: Sequence[str],
    *,
    template: str = TEMPLATE,
    batch_size: int = 32,
) -> list[list[LabelScore]]:
    r"""Classifies images by labels that the model was not trained with.

    .. math:: p(l \mid v) = \mathrm{softmax}_l(x_{l v}) \quad \text{or} \quad \sigma(x_{l v})

    where x is the similarity of a label's text and an image: softmax for CLIP, sigmoid for SigLIP,
    whose labels are not mutually exclusive.

    Args:
        pretrained: A dual encoder, as `jaxformer.load` returns it.
        images: The image files.
        labels: The labels, as text.
        template: The template of a label's text, with {} for the label.
        batch_size: The number of images per batch.

    Returns:
        The labels of each image, most probable first.

    Raises:
        ArgumentError: Labels are missing, or the template does not contain {}.
        ConfigError: The model is not a dual encoder.
        DataError: An image cannot be decoded, a text is too long, or the tokenizer or
            preprocessor_config.json is missing.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 3.1.2.
    """
    check_pretrained("pretrained", pretrained)
    head = _head(pretrained)
    named = labels and all(isinstance(label, str) and label.strip() for label in labels)
    check_argument("labels", labels, bool(named), "at least one label, each of them a text")
    check_argument("template", template, "{}" in template, 'a text with {} in it: "a photo of {}."')
    texts = forward(
        pretrained, text_arrays(pretrained, [template.replace("{}", x) for x in labels])
    )
    vectors = image_vectors(pretrained, images, batch_size)
    logits = pretrained.model.similarities(texts["text_embeds"], vectors).T
    found = []
    for row in np.asarray(head.probabilities(logits)):
        order = np.argsort(-row, kind="stable")
        found.append([LabelScore(labels[n], float(row[n])) for n in order.tolist()])
    return found


def text_arrays(pretrained: Pretrained, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Converts texts to inputs of a dual encoder.

    They are padded to the longest or, if padding counts as text, to the model's number of
    positions.
    """
    settings = read_settings(pretrained.folder)
    rows = [pretrained.prompt_encoder.source(text) for text in texts]
    part = pretrained.checkpoint.part("text")
    longest = part.config.position.max_length
    fixed = part.architecture.task.reads_padding
    if fixed and longest is not None:
        rows = [row if len(row) <= longest else [*row[: longest - 1], row[-1]] for row in rows]
    for text, row in zip(texts, rows, strict=True):
        if longest is not None and len(row) > longest:
            raise DataError(
                f"{text!r} has {len(row)} tokens, but the model reads at most {longest}"
            )
    arrays = padded_prompts(rows, *_padding(pretrained), longest if fixed else None)
    if fixed and "attention_mask" not in settings.get("model_input_names", ["attention_mask"]):
        del arrays["attention_mask"]
    return arrays


def _padding(pretrained: Pretrained) -> tuple[int, bool]:
    """Returns the padding id, and whether padding is on the left."""
    folder, on_left = pretrained.folder, False
    with suppress(UnreadableTokenizerError):
        answer = ask_about(folder)
        on_left = answer is not None and answer.padding_side == "left"
    name = special_tokens_of(folder).get("pad_token")
    pad = None if name is None else pretrained.prompt_encoder.tokenizer.token_to_id(name)
    if pad is None:
        pad = pretrained.checkpoint.part("text").hf_config.values.get("pad_token_id") or 0
    return pad, on_left


def image_vectors(
    pretrained: Pretrained, images: Sequence[str | Path], batch_size: int = 32
) -> np.ndarray:
    """Returns vectors of images, float32 [images, width], of length 1."""
    check_argument("images", images, len(images) > 0, "at least one file")
    reader, found = HFImageReader(pretrained), []
    count = min(batch_size, len(images))
    for start in range(0, len(images), count):
        rows = reader.encode([(str(file),) for file in images[start : start + count]])
        rows += [rows[-1]] * (count - len(rows))
        found.append(forward(pretrained, reader.arrays(rows, 1))["image_embeds"])
    return np.concatenate(found)[: len(images)]


def _head(pretrained: Pretrained) -> Contrastive:
    heads = [head for head in pretrained.config.heads if isinstance(head, Contrastive)]
    if not heads:
        names = ", ".join(head.name for head in pretrained.config.heads) or "none"
        raise ConfigError(
            f"{pretrained.folder}: must be a model of texts and images, such as CLIP "
            f"or SigLIP; this has the heads {names}"
        )
    return heads[0]
