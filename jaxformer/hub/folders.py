"""What lies in a folder of transformers' besides the weights."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.hub.hf_config import CONFIG
from jaxformer.io.model_files import read_json_object, small_file_in

# What belongs to a model besides its configuration and weights, and travels unchanged.
TRAVELLING = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "merges.txt", "preprocessor_config.json", "sentencepiece.bpe.model", "source.spm",
    "special_tokens_map.json", "spiece.model", "target.spm", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip


def is_pretrained(folder: Path) -> bool:
    """Whether a folder is one of transformers', whole or not.

    Raises:
        DataError: Its config.json cannot be read.
    """
    if any(True for suffix in ("safetensors", "bin", "pt") for _ in folder.glob(f"*.{suffix}")):
        return True
    # A run's has no model_type, and may be a link: its files are the user's own.
    config = folder / CONFIG
    return config.exists() and "model_type" in read_json_object(config)


def travelling_files(source: Path | None) -> list[Path]:
    """Tokenizer, generation settings and the like, where the source has them.

    Raises:
        DataError: One is not a file of that folder, or too large.
    """
    found = [] if source is None else [small_file_in(source, name) for name in TRAVELLING]
    return [file for file in found if file is not None]


def copy_travelling(source: Path | None, target: Path) -> None:
    """Copies `travelling_files`."""
    for file in travelling_files(source):
        shutil.copyfile(file, target / file.name)


def write_hf_config(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes config.json."""
    text = json.dumps(dict(values), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
