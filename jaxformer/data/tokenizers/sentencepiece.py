"""Converts SentencePiece models to tokenizers of the `tokenizers` library."""

import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from jaxformer.data.tokenizers.training import bpe_merges
from jaxformer.errors import DataError
from jaxformer.io.files import read_bytes

_SPACE = "\u2581"
# The kinds of pieces.
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
UNUSED = 5
IN_TEXT = (_NORMAL, _USER_DEFINED)
_UNIGRAM, _BPE = 1, 2
# A score below all learned ones, for pieces that SentencePiece never finds in a text.
_NEVER = -1e5


class Piece(NamedTuple):
    """An entry of the vocabulary; its index is its id."""

    text: str
    score: float = 0.0
    kind: int = _NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a .model file.

    References:
        sentencepiece_model.proto of https://github.com/google/sentencepiece
    """

    path: Path
    pieces: tuple[Piece, ...]
    is_bpe: bool
    byte_fallback: bool
    """Whether characters without a piece become bytes instead of the unknown token."""
    unknown_id: int
    character_map: bytes
    """The compiled rules that normalise a text; may be empty."""
    add_prefix: bool
    """Whether a space is added before a text."""
    remove_spaces: bool
    """Whether spaces at the ends and repeated spaces are removed."""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a model that SentencePiece trained."""
    try:
        fields = list(_fields(read_bytes(path)))
        last = dict(fields)
        trainer = dict(_fields(last.get(2, b"")))
        normalizer = dict(_fields(last.get(3, b"")))
        pieces = tuple(_piece(value) for number, value in fields if number == 1)
        pieces[trainer.get(40, 0)]
    except (LookupError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise DataError(f"{path}: not a SentencePiece model: {error}") from error
    kind = trainer.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE) or trainer.get(24) or not normalizer.get(5, 1):
        raise DataError(
            f"{path}: must be a unigram or BPE model that writes a space in front of words; train "
            "one, or use a tokenizer.json"
        )
    return SentencePieceModel(
        path,
        pieces,
        is_bpe=kind == _BPE,
        byte_fallback=bool(trainer.get(35, 0)),
        unknown_id=trainer.get(40, 0),
        character_map=normalizer.get(2, b""),
        add_prefix=bool(normalizer.get(3, 1)),
        remove_spaces=bool(normalizer.get(4, 1)),
    )


def sentencepiece_tokenizer(model: SentencePieceModel) -> Tokenizer:
    """Returns the tokenizer that gives SentencePiece's ids."""
    pieces = model.pieces
    unknown = model.pieces[model.unknown_id].text
    make = _bpe if model.is_bpe else _unigram
    tokenizer = Tokenizer(make(pieces, unknown, model.byte_fallback))
    steps, splits = _normalizers(model), []
    steps += [normalizers.Prepend(_SPACE)] if model.add_prefix else []
    steps.append(normalizers.Replace(" ", _SPACE))
    if model.remove_spaces and not any(_SPACE in piece.text[1:] for piece in pieces):
        # No piece continues after a space: words are tokenised, and cached, one by one.
        splits.append(pre_tokenizers.Metaspace(_SPACE, "never", split=True))
    if (names := _unknown_in_names(pieces)) and not model.is_bpe:
        splits.append(pre_tokenizers.Split(Regex(names), "isolated"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    parts += [decoders.Strip(" ", left=1)] if model.add_prefix else []
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_tokens(
        [
            AddedToken(piece.text, normalized=False, special=piece.kind != _USER_DEFINED)
            for piece in pieces
            if piece.kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer


def _normalizers(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    steps = []
    if model.character_map:
        try:
            rules = normalizers.Precompiled(model.character_map)
        except Exception as error:  # the Rust library raises bare Exception
            raise DataError(f"{model.path}: its rules of normalisation are damaged") from error
        if rules.normalize_str("\r") == rules.normalize_str("\n"):
            # The rules apply to grapheme clusters, such as these two characters.
            steps.append(normalizers.Replace("\r\n", "\n\n"))
        steps.append(rules)
    if model.remove_spaces:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {_SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" +"), " "))
    return steps


def _unknown_in_names(pieces: Sequence[Piece]) -> str:
    """Returns a pattern of the first unknown characters in the names of special tokens.

    If a text contains such a name, the unknown characters are a separate token. This keeps a
    unigram model, which prefers anything to unknown characters, from finding the name.
    """
    known = {piece.text for piece in pieces if piece.kind in IN_TEXT and len(piece.text) == 1}
    rests: dict[tuple[str, str], list[str]] = {}
    for name in (piece.text for piece in pieces if piece.kind not in IN_TEXT):
        before = "".join(itertools.takewhile(known.__contains__, name))
        rest = name[len(before) :]
        unknown = "".join(itertools.takewhile(lambda char: char not in known, rest))
        if unknown:
            rests.setdefault((before, unknown), []).append(re.escape(rest[len(unknown) :]))
    return "|".join(
        f"{f'(?<={re.escape(before)})' if before else ''}{re.escape(unknown)}(?={'|'.join(after)})"
        for (before, unknown), after in rests.items()
    )


def _unigram(pieces: Sequence[Piece], unknown: str, byte_fallback: bool) -> models.Unigram:
    vocabulary = [(p.text, p.score if p.kind in IN_TEXT else _NEVER) for p in pieces]
    unknown_id = next(i for i, piece in enumerate(pieces) if piece.text == unknown)
    return models.Unigram(vocabulary, unknown_id, byte_fallback)


def _bpe(pieces: Sequence[Piece], unknown: str, byte_fallback: bool) -> models.BPE:
    ids = {piece.text: id_ for id_, piece in enumerate(pieces)}
    order = {piece.text: -piece.score for piece in pieces if piece.kind in IN_TEXT}
    return models.BPE(
        ids,
        bpe_merges(ids, order),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    return Piece(fields[1].decode(), float(fields.get(2, 0.0)), int(fields.get(3, _NORMAL)))


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Yields (number, value) of the fields of a Protocol Buffers message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
        elif kind == 2:
            size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
        elif kind == 5:
            (value,), place = struct.unpack_from("<f", data, place), place + 4
        elif kind == 1:
            (value,), place = struct.unpack_from("<d", data, place), place + 8
        else:
            raise ValueError(f"byte {place} does not begin a field")
        if place > len(data):
            raise ValueError("it breaks off")
        yield key >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("it breaks off")
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value - (1 << 64) if value >> 63 else value), place
    raise ValueError(f"byte {place} does not end a number")
