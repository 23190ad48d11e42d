"""A small captioning model that transformers saves, and images for it."""

import json
from pathlib import Path

import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.prediction.image_settings import PREPROCESSOR

KIND = "vision-encoder-decoder"


def save_captioner(folder: Path) -> Path:
    """A ViT in colour with GPT-2, a tokenizer of 8 words and the settings of its images."""
    encoder = TINY[KIND]["encoder"] | {"num_channels": 3, "image_size": [12, 8]}
    encoder |= {"patch_size": [4, 4], "num_hidden_layers": 1}
    decoder = TINY[KIND]["decoder"] | {"vocab_size": 8, "n_layer": 1}
    save_tiny(KIND, folder, encoder=encoder, decoder=decoder)
    size = {"height": 12, "width": 8}
    settings = {"do_resize": True, "size": size, "image_processor_type": "ViTImageProcessor"}
    (folder / PREPROCESSOR).write_text(json.dumps(settings))
    return folder


def photos(folder: Path, count: int) -> list[Path]:
    """Random images of several sizes."""
    pillow = pytest.importorskip("PIL.Image")
    random, files = np.random.default_rng(0), []
    folder.mkdir()
    for number in range(count):
        pixels = random.integers(0, 255, (9 + number, 7, 3)).astype(np.uint8)
        files.append(folder / f"{number}.png")
        pillow.fromarray(pixels).save(files[-1])
    return files
