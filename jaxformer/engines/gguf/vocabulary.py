"""The tokenizer in a GGUF file: tokens with their types and scores, and pre-tokenization."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.data.tokenizers.files import read_tokenizer, tokenizer_file
from jaxformer.engines.gguf import library
from jaxformer.errors import ConfigError

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = _LLAMA3.replace("{1,3}", "")
"""Qwen 2's regular expression for pre-tokenization."""
_CUTS = {_LLAMA3: "llama-bpe", QWEN2: "qwen2"}
"""Regular expressions for pre-tokenization -> llama.cpp's names for them."""
_SPACE = "\u2581"
_NO_MERGE = "\u0100 \u0100"
"""A merge of two zero bytes into a nonexistent token, since llama.cpp requires a merge."""


def write_vocabulary(writer: Any, folder: Path, size: int) -> None:
    """Writes the tokenizer of a Hugging Face folder, if any, with `size` tokens.

    Raises:
        ConfigError: llama.cpp does not support the tokenizer.
    """
    gguf = library()
    file = tokenizer_file(folder)
    if file is None:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(size)
        return
    definition = json.loads(read_tokenizer(file).to_str())
    kind = _kind(definition)
    tokens, types, scores = _tokens(definition, size)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(_cut(definition) if kind == "gpt2" else "default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if kind in ("llama", "t5"):
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(_adds_space(definition))
    if kind == "t5":
        writer.add_remove_extra_whitespaces(False)
        if (charsmap := _charsmap(definition.get("normalizer"))) is not None:
            writer.add_precompiled_charsmap(charsmap)
    special = gguf.SpecialVocab(folder, load_merges=kind == "gpt2", n_vocab=size)
    for role in ("bos", "eos"):
        special.add_special_token.setdefault(role, False)
    if kind == "gpt2" and not special.merges:
        special.merges = [_NO_MERGE]
    special.add_to_gguf(writer, quiet=True)


def _kind(definition: Mapping[str, Any]) -> str:
    """Returns llama.cpp's name for the algorithm of a tokenizer."""
    model = definition["model"]
    if model["type"] == "BPE":
        return "llama" if model.get("byte_fallback") else "gpt2"
    kinds = {"Unigram": "t5", "WordPiece": "bert"}
    if model["type"] not in kinds:
        raise ConfigError(
            f"--format gguf: the tokenizer is {model['type']}: must be BPE, Unigram or WordPiece, "
            "which llama.cpp supports"
        )
    return kinds[model["type"]]


def _tokens(definition: Mapping[str, Any], size: int) -> tuple[list[bytes], list[int], list[float]]:
    """Returns the bytes, type and score of each token, with fillers up to `size`."""
    kinds, model = library().TokenType, definition["model"]
    tokens = [f"[PAD{number}]" for number in range(size)]
    types, scores = [kinds.UNUSED] * size, [-10000.0] * size
    if model["type"] == "Unigram":
        entries = [(text, number, score) for number, (text, score) in enumerate(model["vocab"])]
    else:
        made = _ranks(model)
        entries = [
            (text, number, -float(made.get(text, 0))) for text, number in model["vocab"].items()
        ]
    wordpiece = model["type"] == "WordPiece"
    for text, number, score in entries:
        is_byte = model.get("byte_fallback") and len(text) == 6 and text.startswith("<0x")
        types[number] = kinds.BYTE if is_byte else kinds.NORMAL
        tokens[number] = _phantom(text) if wordpiece else text
        scores[number] = score
    unknown = model.get("unk_token") or model.get("unk_id")
    for text, number, _ in entries:
        if unknown in (text, number) and unknown is not None:
            types[number] = kinds.UNKNOWN
            tokens[number] = text
    for token in definition["added_tokens"]:
        number = token["id"]
        tokens[number] = token["content"]
        scores[number] = -1000.0
        types[number] = kinds.CONTROL if token["special"] else kinds.USER_DEFINED
    return [token.encode() for token in tokens], [int(kind) for kind in types], scores


def _ranks(model: Mapping[str, Any]) -> dict[str, int]:
    """Returns the index of the first merge that yields each token."""
    found: dict[str, int] = {}
    for number, pair in enumerate(model.get("merges") or ()):
        parts = pair.split(" ") if isinstance(pair, str) else pair
        found.setdefault("".join(parts), number + 1)
    return found


def _phantom(text: str) -> str:
    """Returns a WordPiece token with a mark at word starts, where BERT marks continuations."""
    return text[2:] if text.startswith("##") else _SPACE + text


def _cut(definition: Mapping[str, Any]) -> str:
    """Returns llama.cpp's name for the pre-tokenization of a byte-level tokenizer."""
    steps = _steps(definition.get("pre_tokenizer"), "pretokenizers")
    names = [step["type"] for step in steps]
    byte_level = next((step for step in steps if step["type"] == "ByteLevel"), {})
    if byte_level.get("add_prefix_space"):
        names.append("add_prefix_space")
    if not definition["model"]["merges"]:
        return "gpt-2"  # irrelevant without merges
    if names == ["ByteLevel"] and byte_level["use_regex"]:
        return "gpt-2"
    if names == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    if names == ["Split", "ByteLevel"] and steps[0]["pattern"].get("Regex") in _CUTS:
        return _CUTS[steps[0]["pattern"]["Regex"]]
    raise ConfigError(
        f"--format gguf: the tokenizer splits texts with {' and '.join(names) or 'nothing'}: must "
        "split as GPT-2, Llama 3, Qwen 2 or SmolLM do, which llama.cpp supports"
    )


def _steps(state: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    if state is None:
        return []
    return list(state[name]) if state["type"] == "Sequence" else [state]


def _adds_space(definition: Mapping[str, Any]) -> bool:
    """Whether a space is prepended to a text."""
    steps = _steps(definition.get("pre_tokenizer"), "pretokenizers")
    steps += _steps(definition.get("normalizer"), "normalizers")
    return any(
        step["type"] == "Prepend" or step.get("prepend_scheme") in ("first", "always")
        for step in steps
    )


def _charsmap(normalizer: Mapping[str, Any] | None) -> bytes | None:
    """Returns SentencePiece's compiled table of character replacements, if any."""
    for step in _steps(normalizer, "normalizers"):
        if step["type"] == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None
