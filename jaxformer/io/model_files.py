"""The files of a model folder, which is untrusted: no file outside of it is read."""

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file, read_json
from jaxformer.io.paths import AnyPath

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
OLD_FOLDER = "0_Transformer"
"""The subfolder in which the first versions of sentence-transformers stored a model."""
GENERATION = "generation_config.json"
LAYOUT = "weights.json"
"""The file in a run's imported folder that records the layout of the original weights."""
TOKENIZER = "tokenizer.json"
LICENSE = "LICENSE"
SIDE_FILES = (
    LICENSE, "added_tokens.json", "bpe.codes", "byte_maps.json", "chat_template.jinja",
    "chat_template.json", "dict.txt", "generation_config.json", "merges.txt",
    "preprocessor_config.json", "processor_config.json", "qwen.tiktoken",
    "sentencepiece.bpe.model", "sentencepiece.model", "source.spm", "special_tokens_map.json",
    "spiece.model", "spm.model", "target.spm", "target_vocab.json", "tekken.json", "tiktoken.model",
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "video_preprocessor_config.json",
    "vocab.json", "vocab.txt",
)  # fmt: skip
"""The files of a model other than config.json and the weights; they are copied unchanged."""
TEMPLATES = "additional_chat_templates"
"""The folder with a model's named chat templates (NAME.jinja), which are also copied."""
EMBEDDINGS = (
    "config_sentence_transformers.json", "modules.json", "sentence_albert_config.json",
    "sentence_bert_config.json", "sentence_camembert_config.json",
    "sentence_distilbert_config.json", "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json", "sentence_xlnet_config.json",
)  # fmt: skip
"""The files in which sentence-transformers describes how a model embeds a text."""
_MODULE = re.compile(r"\d+_(?!Transformer)\w+/(config\.json|model\.safetensors)")
_WEIGHTS = ("safetensors", "msgpack", "bin", "pt")
_LARGEST_JSON = 64 * 2**20
_LARGEST_SIDE_FILE = 512 * 2**20


def is_hf_checkpoint(folder: AnyPath) -> bool:
    """Returns whether a folder contains a Hugging Face checkpoint, which may be incomplete."""
    if any(True for suffix in _WEIGHTS for _ in folder.glob(f"*.{suffix}")):
        return True
    # The config.json of a run has no model_type. It may be a link, since a run's files are trusted.
    config = folder / CONFIG
    return config.exists() and "model_type" in read_json_object(config)


def is_adapter(folder: AnyPath) -> bool:
    """Returns whether a folder contains a PEFT adapter and no model."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).exists()


def file_in(folder: str | os.PathLike, name: str) -> Path | None:
    """Returns the path of a file in a folder, or None if it does not exist.

    Links are followed within the folder, and from a snapshot in a Hugging Face cache to its blobs.
    A link to anywhere else could leak any local file into an export of the model.
    """
    path = Path(folder, name)
    if not os.path.lexists(path):
        return None
    home = Path(os.path.realpath(folder))
    target = Path(os.path.realpath(path))
    if not (target.is_relative_to(home) or _is_blob(home, target)):
        raise DataError(
            f"{path} is a link to {target}, which is outside of the model's folder, and is not "
            "followed: put the file itself there"
        )
    return ordinary_file(path)


def small_file_in(folder: str | os.PathLike, name: str) -> Path | None:
    """Returns `file_in` for a file other than weights, which must be at most 512 MiB."""
    return _limited(file_in(folder, name), _LARGEST_SIDE_FILE)


def read_object(folder: str | os.PathLike, name: str) -> dict[str, Any] | None:
    """Returns the JSON object in a file of a folder, or None if the file does not exist."""
    path = file_in(folder, name)
    return None if path is None else read_json_object(path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file at any path."""
    return read_json(_limited(path, _LARGEST_JSON))


def is_embedding_file(name: str) -> bool:
    """Whether a file was written by sentence-transformers, such as "1_Pooling/config.json"."""
    return name in EMBEDDINGS or _MODULE.fullmatch(name) is not None


def is_side_file(name: str) -> bool:
    """Whether a relative path names a file of a model other than its weights."""
    if is_embedding_file(name):
        return True
    folder, _, last = name.rpartition("/")
    templates = folder == TEMPLATES and last.endswith(".jinja")
    tiktoken = not folder and last.endswith(".tiktoken")
    return name in SIDE_FILES or name == CONFIG or templates or tiktoken


def side_files(folder: Path | None) -> list[Path]:
    """Returns the `SIDE_FILES` in a folder and all other files that `is_side_file` accepts."""
    if folder is None:
        return []
    below = sorted([*(folder / TEMPLATES).glob("*.jinja"), *folder.glob("[0-9]*_*/*")])
    others = (path.relative_to(folder).as_posix() for path in below)
    names = (*SIDE_FILES, *EMBEDDINGS, *filter(is_side_file, others))
    return [file for file in (small_file_in(folder, name) for name in names) if file is not None]


def copy_side_files(folder: Path | None, target: Path, without: Collection[str] = ()) -> None:
    """Copies the `side_files` of a folder to another folder."""
    for file in side_files(folder):
        if file.name not in without:
            copied = target / file.relative_to(folder)
            copied.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copied)


def _is_blob(home: Path, target: Path) -> bool:
    """Whether a cached snapshot may link to a file: a blob of the model or of the shared cache."""
    if home.parent.name != "snapshots":
        return False
    model = home.parents[1]
    return target.parent == model / "blobs" or target.parents[1] == model.parent / "blobs"


def _limited(path: Path | None, most: int) -> Path | None:
    if path is not None and (size := path.stat().st_size) > most:
        raise DataError(
            f"{path} has {size / 2**20:,.0f} MiB: must have at most {most // 2**20}; fetch it again"
        )
    return path
