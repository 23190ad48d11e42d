"""Reads the tokenizer of a folder as transformers' `AutoTokenizer` does.

The class, the settings and the tokens of tokenizer_config.json, and the special tokens around a
text all become part of one tokenizer of the `tokenizers` library. A separate process loads it with
transformers, once for each folder; the result is cached by the digest of the files.
"""

import hashlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from jaxformer.data.tokenizers import auto_process, python_classes
from jaxformer.errors import DataError
from jaxformer.extras import EXTRAS, MissingExtra
from jaxformer.io.files import read_bytes, replacing, sha256_of
from jaxformer.io.model_files import SIDE_FILES, read_object, small_file_in
from jaxformer.io.scripts import run_script
from jaxformer.io.staging import cache_folder

_CONFIG = "config.json"
_OF_CONFIG = ("model_type", "model_name", "tokenizer_class", "transformers_version")
"""The fields of config.json, also of an encoder in it, that `AutoTokenizer` reads."""
_FILES = tuple(
    name
    for name in SIDE_FILES
    if not name.startswith(("chat_template", "generation", "preprocessor", "processor", "video"))
)
_LIMITS = {"patience": 600, "megabytes": 8192, "cpu_seconds": 300}
"""The limits of the process; a vocabulary of 256,000 pieces takes a tenth of the memory and time.
"""
_log = logging.getLogger(__name__)


class UnreadableTokenizerError(DataError):
    """transformers cannot read the tokenizer of a folder."""


class Answer(NamedTuple):
    """The tokenizer of a folder, as transformers reads it."""

    class_name: str
    padding_side: str
    """ "left" or "right"."""
    special_tokens: Mapping[str, str]
    """The special tokens by the names that chat templates use: "bos_token", ..."""
    split_special_tokens: bool
    """Whether the name of a special token in a text is ordinary text."""
    definition: bytes
    """The tokenizer.json; empty for a class that is Python code and cannot be rebuilt."""

    def tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the `tokenizers` package."""
        tokenizer = Tokenizer.from_buffer(self.definition)
        tokenizer.encode_special_tokens = self.split_special_tokens
        return tokenizer


def ask_transformers(folder: str | os.PathLike) -> Answer:
    """Returns the tokenizer of a folder, as transformers reads it."""
    files = {name: file for name in _FILES if (file := small_file_in(folder, name)) is not None}
    config = _reduced(read_object(folder, _CONFIG))
    asked = [config, _versions(), sorted((name, sha256_of(file)) for name, file in files.items())]
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]
    kept = cache_folder() / "tokenizers" / digest
    answer = _read_cached(kept)
    if answer is None:
        answer = _with_definition(_ask_process(Path(folder), files, config), files)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as temporary:
                temporary.write_bytes(_sum(answer) + answer)
        except (OSError, DataError) as error:
            _log.warning("the tokenizer as transformers reads it is not cached: %s", error)
    header, _, definition = answer.partition(b"\n")
    facts = json.loads(header)
    texts = {name: text for name, text in facts["special_tokens"].items() if isinstance(text, str)}
    return Answer(
        facts["class"], facts["padding_side"], texts, facts["split_special_tokens"], definition
    )


def _read_cached(kept: Path) -> bytes | None:
    """Returns a cached result; None if it is missing or damaged."""
    try:
        stored = read_bytes(kept) if kept.exists() else b""
    except (OSError, DataError):
        return None
    size = len(_sum(b""))
    return stored[size:] if stored[:size] == _sum(stored[size:]) and stored[size:] else None


def _sum(answer: bytes) -> bytes:
    return hashlib.sha256(answer).digest()


def _ask_process(folder: Path, files: Mapping[str, Path], config: dict[str, Any] | None) -> bytes:
    """Returns the result of the process, which sees only these files of the folder."""
    with tempfile.TemporaryDirectory(prefix="jaxformer-") as temporary:
        home = Path(temporary, "model")
        answer = Path(temporary, "answer")
        home.mkdir()
        for name, file in files.items():
            (home / name).symlink_to(file.resolve())
        if config is not None:
            (home / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
        try:
            done = run_script(auto_process, home, answer, **_LIMITS)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{folder}: transformers needs more than {_LIMITS['patience']} s for it"
            ) from None
        if done.returncode == 0:
            return read_bytes(answer)
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if done.returncode == 1 and lines else "it needs too much time or memory"
        reason = reason.replace(str(home), str(folder))[:300]
        raise UnreadableTokenizerError(
            f"{folder}: transformers cannot read its tokenizer: {reason}"
        )


def _with_definition(answer: bytes, files: Mapping[str, Path]) -> bytes:
    """Returns a result with a tokenizer.json, if one can be made."""
    header, _, definition = answer.partition(b"\n")
    facts = json.loads(header)
    if (python := facts.pop("python", None)) is not None:
        built = python_classes.rebuilt(python | {"class": facts["class"]}, files)
        definition = b"" if built is None else built.to_str().encode()
    return json.dumps(facts).encode() + b"\n" + definition


def _reduced(config: dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    kept = {name: config[name] for name in _OF_CONFIG if name in config}
    parts = {name: config[name] for name in ("encoder", "decoder") if name in config}
    return kept | {name: _reduced(part) for name, part in parts.items() if isinstance(part, dict)}


def _versions() -> list[str]:
    """The versions that a result depends on, in addition to the folder."""
    try:
        code = [sha256_of(module.__file__) for module in (auto_process, python_classes)]
        return [version("transformers"), version("tokenizers"), *code]
    except PackageNotFoundError as error:
        library, extra = EXTRAS["transformers"]
        raise MissingExtra(
            f"the tokenizer of a Hugging Face checkpoint needs {library}: "
            f"pip install 'jaxformer[{extra}]'"
        ) from error
