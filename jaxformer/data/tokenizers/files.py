"""The files of a tokenizer: tokenizer.json or older formats, and tokenizer_config.json.

The lengths of texts and the time of matches that a file can cause are bounded.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, normalizers

from jaxformer.data.tokenizers.auto import Answer, UnreadableTokenizerError, ask_transformers
from jaxformer.data.tokenizers.sentencepiece import read_sentencepiece, sentencepiece_tokenizer
from jaxformer.data.tokenizers.special_tokens import ids_of
from jaxformer.data.tokenizers.tiktoken import is_tiktoken, tiktoken_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import check_no_pointer, ordinary_file, read_bytes, write_text
from jaxformer.io.model_files import TOKENIZER, read_object, small_file_in
from jaxformer.io.notices import warn_once

SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER, SETTINGS)
"""The files that `write_tokenizer` writes."""
_CONFIG, _OWN = "config.json", "jaxformer_kind"
_MODELS = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "tiktoken.model",
    "source.spm",
)  # fmt: skip
_MOVED = ("sentencepiece.bpe.model", "source.spm")
"""SentencePiece models whose ids always differ from those of their model."""
_VOCABULARY = "vocab.json"
_WORDS = "vocab.txt"
_OTHER_FILES = (
    "a SentencePiece model (tokenizer.model, spiece.model), a tiktoken file, vocab.json with "
    "merges.txt, or vocab.txt"
)
# Published vocabularies have some unused ids, but never mostly unused ones.
_MOST_UNUSED = 1 << 16
MOST_GROWTH = 1000
"""The maximum number of characters that replacements may make from one."""


def tokenizer_file(folder: str | os.PathLike) -> Path | None:
    """Returns the file of a model's folder that holds its tokenizer; None if there is none."""
    for name in (TOKENIZER, *_MODELS):
        if (file := small_file_in(folder, name)) is not None:
            return file
    vocabulary = small_file_in(folder, _VOCABULARY)
    has_merges = small_file_in(folder, "merges.txt") is not None
    if vocabulary is not None and (has_merges or _of_characters(Path(folder))):
        return vocabulary
    named = sorted(path.name for path in Path(folder).glob("*.tiktoken"))
    file = small_file_in(folder, named[0] if named else _WORDS)
    if file is None and read_settings(Path(folder)).get("tokenizer_class") == "ByT5Tokenizer":
        return Path(folder, SETTINGS)  # this class needs no other file
    return file


def _of_characters(folder: Path) -> bool:
    """Whether vocab.json needs no merges: its tokens are characters, as those of wav2vec 2.0."""
    config = read_object(folder, _CONFIG) or {}
    class_name = read_settings(folder).get("tokenizer_class")
    # The name of the class may be missing.
    return class_name == "Wav2Vec2CTCTokenizer" or config.get("model_type") in (
        "hubert",
        "wav2vec2",
    )


def read_tokenizer(file: Path, pattern: str | None = None) -> Tokenizer:
    """Reads a tokenizer as transformers reads the folder of a file, or from the file alone."""
    if not file.exists():
        raise DataError(
            f"{file} does not exist: give a tokenizer.json, {_OTHER_FILES}; or the folder of one"
        )
    named = pattern is not None and is_tiktoken(ordinary_file(file))
    tokenizer = tiktoken_tokenizer(file, pattern) if named else _read(file)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(vocabulary, key=vocabulary.get, default=None)
    if last is None:
        raise DataError(f"{file}: it has no tokens")
    # A table of all ids would be too large.
    if vocabulary[last] > 2 * len(vocabulary) + _MOST_UNUSED:
        raise DataError(
            f"{file}: the token {last!r} has the id {vocabulary[last]}, but there are only "
            f"{len(vocabulary)} tokens"
        )
    check_growth(tokenizer, str(file))
    return tokenizer


def _read(file: Path) -> Tokenizer:
    """The tokenizer of a file's folder as transformers reads it, or else of the file alone."""
    if tokenizer_file(file.parent) != file:
        return _read_alone(file)
    try:
        answer = ask_about(file.parent)
    except UnreadableTokenizerError as error:
        if file.name in _MOVED:
            raise
        tokenizer = _read_alone(file, error)
        warn_once(f"{error}; {file.name} alone is read")
        return tokenizer
    if answer is not None and answer.definition:
        return answer.tokenizer()
    if answer is None:
        return _read_alone(file)
    name = answer.class_name
    found = f"{file.parent}: transformers reads this with its {name}, which is Python code"
    if file.name != TOKENIZER:
        raise DataError(
            f"{found}: not supported: give token ids in place of texts, or put a tokenizer.json "
            "there"
        )
    warn_once(f"{found}; {file.name} alone is read")
    return _read_alone(file)


def ask_about(folder: str | os.PathLike) -> Answer | None:
    """Returns the tokenizer of a folder as transformers reads it, if it is one for transformers."""
    settings = read_settings(Path(folder))
    config = small_file_in(folder, _CONFIG)
    asks = tokenizer_file(folder) is not None and (settings or config is not None)
    return ask_transformers(folder) if asks and _OWN not in settings else None


def _read_alone(file: Path, reason: UnreadableTokenizerError | None = None) -> Tokenizer:
    file = ordinary_file(file)
    if file.name in (_VOCABULARY, _WORDS, SETTINGS):
        raise reason or DataError(
            f"{file}: must have config.json or tokenizer_config.json next to it, which name the "
            "class of transformers"
        )
    if file.suffix == ".json":
        return _read_json(file)
    if is_tiktoken(file):
        return tiktoken_tokenizer(file)
    return sentencepiece_tokenizer(read_sentencepiece(file))


def _read_json(file: Path) -> Tokenizer:
    definition = read_bytes(file)
    check_no_pointer(definition, str(file))
    try:
        return Tokenizer.from_buffer(definition)
    except Exception as error:  # the Rust library raises bare Exception
        raise DataError(
            f"{file}: not a tokenizer.json that can be loaded: {str(error)[:300]}"
        ) from error


def tokenizer_in(folder: str | os.PathLike) -> Tokenizer:
    """Reads the tokenizer of a model's folder."""
    file = tokenizer_file(folder)
    if file is None:
        raise DataError(
            f"{Path(folder, TOKENIZER)} does not exist, nor {_OTHER_FILES}; transformers can write "
            "it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return read_tokenizer(file)


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads the tokenizer_config.json of a folder."""
    return read_object(folder, SETTINGS) or {}


def write_tokenizer(
    folder: str | os.PathLike, tokenizer: Tokenizer, end_of_text: str, pad: str, kind: str
) -> None:
    """Writes a tokenizer and the names of its special tokens."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "pad_token": pad,
        _OWN: kind,
    }
    for role in ("cls", "sep", "mask"):
        with suppress(ConfigError):
            (first, *_) = ids_of(role, tokenizer.token_to_id)
            settings[f"{role}_token"] = tokenizer.id_to_token(first)
    texts = (tokenizer.to_str(pretty=True), json.dumps(settings, indent=2) + "\n")
    for name, text in zip(TOKENIZER_FILES, texts, strict=True):
        write_text(folder / name, text)


class _Step(NamedTuple):
    """A step of a normalizer or of a decoder."""

    apply: Callable[[str], str]
    inserted: str
    """The text that a replacement inserts; empty for other steps."""
    replaced: str
    """The text that it replaces, or a regular expression."""


def check_growth(tokenizer: Tokenizer, where: str) -> None:
    """Raises an error if replacements make texts long enough to fill the memory.

    Each character and text that a replacement names passes through the whole chain, because later
    steps multiply the insertions of earlier ones.
    """
    for part in ("normalizer", "decoder"):
        steps = _steps(getattr(tokenizer, part), part)
        named = {text for step in steps for text in (step.inserted, step.replaced)}
        if any(_grows(start, steps) for start in named | set("".join(named))):
            raise DataError(
                f"{where}: the replacements of its {part} make a text more than {MOST_GROWTH} "
                "times as long, which would fill the memory"
            )


@contextmanager
def bounded_matches() -> Iterator[None]:
    """Converts the library's panic about an endless match to DataError."""
    try:
        yield
    except BaseException as error:
        # The Rust library panics, and does not export the class of the panic.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizer has given up on a text: {error}; a regular expression of its "
            "tokenizer.json tries too many ways to match it"
        ) from None


def _steps(part: normalizers.Normalizer | decoders.Decoder | None, name: str) -> list[_Step]:
    """The steps of a normalizer, if some are replacements; or the replacements of a decoder."""
    states = [] if part is None else _flat(json.loads(part.__getstate__()), f"{name}s")
    replacements = [state for state in states if state["type"] == "Replace"]
    return list(map(_step, states if replacements and name == "normalizer" else replacements))


def _flat(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [inner for part in state[name] for inner in _flat(part, name)]


def _step(state: dict[str, Any]) -> _Step:
    # Iterating over nested sequences would not reach each normalizer.
    normalizer = normalizers.Sequence([])
    normalizer.__setstate__(json.dumps(state).encode())
    if state["type"] != "Replace":
        return _Step(normalizer.normalize_str, "", "")
    (text,) = state["pattern"].values()
    return _Step(normalizer.normalize_str, state["content"], text)


def _grows(start: str, steps: list[_Step]) -> bool:
    most, text = MOST_GROWTH * max(1, len(start)), start
    with bounded_matches():
        for step in steps:
            # Before each character and at the end: a replacement cannot insert more often.
            if len(text) > most or (len(text) + 1) * len(step.inserted) > most * MOST_GROWTH:
                return True
            text = step.apply(text)
    return len(text) > most
