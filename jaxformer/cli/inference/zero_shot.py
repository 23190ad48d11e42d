"""``jaxformer zero-shot DIR IMAGE... --labels ...``: zero-shot image classification."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from jaxformer.cli.options import ModelChoice, ModelDir
from jaxformer.io.console import console, plain_table
from jaxformer.io.paths import any_path
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.zero_shot import TEMPLATE
from jaxformer.pretrained.prediction.zero_shot import zero_shot as classify

Images = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE [IMAGE ...]")
]


@dataclass(frozen=True)
class ZeroShot(ModelChoice):
    """Classifies images by text labels with a dual encoder (CLIP, SigLIP).

    CLIP's probabilities sum to 1 over the labels; SigLIP's are independent for each label.
    """

    folder: ModelDir
    """The folder of a Hugging Face checkpoint, or of a run imported from one."""
    images: Images
    """The image files."""
    labels: tuple[str, ...]
    """The labels, as text."""
    template: str = TEMPLATE
    """The template of a label's text, with {} for the label."""
    batch_size: int = 32
    """Images per batch."""
    json: bool = False
    """Print one JSON object per image."""


def zero_shot(options: ZeroShot) -> None:
    """Prints the labels of images, with their probabilities."""
    pretrained = load(options.folder, **options.how)
    keywords = {"template": options.template, "batch_size": options.batch_size}
    images = [any_path(file, "IMAGE") for file in options.images]
    found = classify(pretrained, images, options.labels, **keywords)
    table = plain_table("image", "label", "score >")
    for file, row in zip(images, found, strict=True):
        if options.json:
            labels = [score._asdict() for score in row]
            print(json.dumps({"image": str(file), "labels": labels}, ensure_ascii=False))
        for number, (label, score) in enumerate(row):
            table.add_row(Text("" if number else str(file)), Text(label), f"{score:.4f}")
    if not options.json:
        console().print(table)
