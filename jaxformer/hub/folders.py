"""A folder as transformers keeps it, written whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.settings import CONFIG

# What belongs to a model besides its configuration and weights, and travels unchanged.
TRAVELLING = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "merges.txt", "preprocessor_config.json", "sentencepiece.bpe.model", "source.spm",
    "special_tokens_map.json", "spiece.model", "target.spm", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip


def check_unused(folder: str | Path) -> None:
    """Checks, before the work, that a folder can be written to.

    Raises:
        ConfigError: It is a file, or a folder that holds something.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: name a new or an empty folder")


def write_whole(folder: str | Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Writes a folder aside and renames it when it is complete.

    Args:
        folder: Absent or empty.
        num_bytes: About how much will be written.
        write: Fills the folder that it is given.

    Raises:
        ConfigError: The folder holds something.
        DataError: The disk has too little room, or cannot be written to.
    """
    check_unused(folder)
    folder = Path(folder).expanduser().absolute()
    home = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(home).free
    if num_bytes > free:
        raise DataError(
            f"{folder}: {num_bytes / 1e9:.2f} GB are to be written, but the disk has "
            f"{free / 1e9:.2f} GB free"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=home) as scratch:
            written = Path(scratch, "folder")
            written.mkdir()
            write(written)
            folder.parent.mkdir(parents=True, exist_ok=True)
            written.rename(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written, and nothing of it was: {error}") from error


def copy_travelling(source: Path | None, target: Path) -> None:
    """Copies tokenizer, generation settings and the like, where the source has them."""
    for name in TRAVELLING:
        if source is not None and (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_settings(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes config.json."""
    text = json.dumps(dict(values), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
