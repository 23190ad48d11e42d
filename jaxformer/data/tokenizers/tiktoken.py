"""Converts tiktoken files, byte sequences with ranks, to tokenizers of the `tokenizers` library."""

import base64
import binascii
import re
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from jaxformer.checks import check_argument
from jaxformer.data.tokenizers.training import END_OF_TEXT, bpe_merges, byte_alphabet
from jaxformer.errors import DataError, did_you_mean
from jaxformer.io.files import read_bytes

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})")


class Encoding(NamedTuple):
    """How a text is split before its bytes are merged, and the special tokens."""

    pattern: str
    special_tokens: tuple[str | None, ...]
    """The special tokens after the last rank, in the order of their ids; None for an id without a
    token.
    """


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++\z|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++\z|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    rf"{_CONTRACTIONS}?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    rf"{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _digits(most: str) -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{most}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_RESERVED = tuple(f"<|reserved_special_token_{number}|>" for number in range(251))
ENCODINGS = {
    "gpt2": Encoding(_GPT2, (END_OF_TEXT,)),
    "r50k_base": Encoding(_GPT2, (END_OF_TEXT,)),
    "p50k_base": Encoding(_GPT2, (END_OF_TEXT,)),
    "cl100k_base": Encoding(
        _CL100K,
        (None, END_OF_TEXT, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
        + (None,) * 15
        + ("<|endofprompt|>",),
    ),
    "o200k_base": Encoding(_O200K, (None, END_OF_TEXT) + (None,) * 18 + ("<|endofprompt|>",)),
    "llama3": Encoding(
        _digits("{1,3}"),
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            *_RESERVED[:4],
            "<|start_header_id|>",
            "<|end_header_id|>",
            _RESERVED[4],
            "<|eot_id|>",
            *_RESERVED[5:],
        ),
    ),
    "qwen": Encoding(_digits(""), (END_OF_TEXT, "<|im_start|>", "<|im_end|>")),
}
"""Encodings by name, as OpenAI, Meta and Alibaba published them."""


def is_tiktoken(path: Path) -> bool:
    """Whether a file holds base64 text and a rank on its first line."""
    with open(path, "rb") as file:
        return _LINE.fullmatch(file.readline(1 << 16).strip()) is not None


def tiktoken_tokenizer(path: Path, pattern: str | None = None) -> Tokenizer:
    """Reads a file of ranks; the tokenizer gives the same ids as tiktoken."""
    encoding = _encoding(path, pattern)
    ranks = _read_ranks(path)
    character = byte_alphabet()
    ids = {"".join(character[byte] for byte in token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(ids, bpe_merges(ids, ids), ignore_merges=True))
    try:
        split = pre_tokenizers.Split(Regex(encoding.pattern), "isolated")
    except Exception as error:  # the Rust library raises bare Exception
        raise DataError(f"pattern = {pattern!r}: not a regular expression: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    names = [
        name or f"<|reserved_token_{id_}|>"
        for id_, name in enumerate(encoding.special_tokens, start=len(ranks))
    ]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return tokenizer


def _encoding(path: Path, pattern: str | None) -> Encoding:
    if pattern is None:
        stem = path.name.partition(".")[0]
        pattern = {"tokenizer": "llama3"}.get(stem, stem if stem in ENCODINGS else "cl100k_base")
    if pattern in ENCODINGS:
        return ENCODINGS[pattern]
    is_regex = not re.fullmatch(r"[\w-]*", pattern)
    hint = did_you_mean(pattern, ENCODINGS)
    check_argument(
        "pattern", pattern, is_regex, f"{', '.join(ENCODINGS)} or a regular expression{hint}"
    )
    check_argument(
        "pattern",
        pattern,
        not re.search(r"[0-9]\}\+", pattern),
        "written without a plus after a count: {1,3} instead of {1,3}+",
    )
    return Encoding(pattern, (END_OF_TEXT,))


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not (match := _LINE.fullmatch(line.strip())):
            if not line.strip():
                continue
            raise DataError(f"{path}:{number}: must be base64 text, a space and a rank")
        try:
            ranks[base64.b64decode(match[1], validate=True)] = int(match[2])
        except binascii.Error as error:
            raise DataError(f"{path}:{number}: not base64: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) < 256:
        raise DataError(f"{path}: the ranks must be 0, 1, ... without a gap, and begin with bytes")
    return ranks
