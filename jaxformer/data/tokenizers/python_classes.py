"""Rebuilds tokenizers of transformers that are Python code with the `tokenizers` library.

For most classes, transformers has such a tokenizer. For these, it gives only the ids of the tokens,
the special tokens around a text, and the ids of some texts, which the rebuilt tokenizer must
reproduce.
"""

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from jaxformer.data.tokenizers.sentencepiece import (
    IN_TEXT,
    UNUSED,
    Piece,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from jaxformer.data.tokenizers.training import byte_alphabet, character_tokenizer

Description = Mapping[str, Any]
"""The result of `auto_process.description`, and "class", the name of the class."""


def rebuilt(description: Description, files: Mapping[str, Path]) -> Tokenizer | None:
    """Returns the tokenizer that gives the ids of a class."""
    if description["class"] not in _CLASSES:
        return None
    tokenizer = _CLASSES[description["class"]](description, files)
    if tokenizer is None:
        return None
    tokenizer.add_tokens([AddedToken(**token) for token in description["added"].values()])
    ids = {int(id_): token["content"] for id_, token in description["added"].items()}
    tokenizer.post_processor = _around(description["frames"], description["names"])
    known = all(tokenizer.token_to_id(name) == id_ for id_, name in ids.items())
    agrees = all(tokenizer.encode(text).ids == ids for text, ids in description["examples"])
    return tokenizer if known and agrees else None


def _around(frames: list[list[int]], names: Mapping[str, str]) -> processors.TemplateProcessing:
    """The special tokens around one text and two, which are -1 and -2 in the frames."""
    single, pair = (
        [{-1: "$A", -2: "$B:0"}.get(id_) or names[str(id_)] for id_ in frame] for frame in frames
    )
    special = [(name, int(id_)) for id_, name in names.items()]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _esm(description: Description, files: Mapping[str, Path]) -> Tokenizer:
    """Each token, an amino acid, is found anywhere in a text."""
    del files
    words = description["vocabulary"]
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=description["unknown"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    added = {token["content"] for token in description["added"].values()}
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False) for name in words if name not in added]
    )
    return tokenizer


def _byt5(description: Description, files: Mapping[str, Path]) -> Tokenizer:
    """A token for each byte, after three special ones."""
    del files
    ids = {char: byte + 3 for byte, char in enumerate(byte_alphabet())}
    ids |= {token["content"]: int(id_) for id_, token in description["added"].items()}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _m2m100(description: Description, files: Mapping[str, Path]) -> Tokenizer | None:
    """The pieces of a SentencePiece model, with the ids of the class."""
    model = read_sentencepiece(files["sentencepiece.bpe.model"])
    ids = description["vocabulary"]
    pieces = {piece.text: piece for piece in model.pieces if piece.kind in IN_TEXT}
    if not pieces.keys() <= ids.keys():
        return None
    names = {id_: name for name, id_ in ids.items()}
    order = [names.get(id_, f"<unused {id_}>") for id_ in range(max(names) + 1)]
    moved = tuple(pieces.get(name, Piece(name, kind=UNUSED)) for name in order)
    return sentencepiece_tokenizer(
        replace(model, pieces=moved, unknown_id=ids[description["unknown"]])
    )


def _siglip(description: Description, files: Mapping[str, Path]) -> Tokenizer:
    """A SentencePiece model that drops punctuation and, usually, upper case."""
    # After a special token that a text spells out, there is one more blank than in transformers.
    model = read_sentencepiece(files["spiece.model"])
    pieces = tuple(p if p.kind in IN_TEXT else p._replace(kind=UNUSED) for p in model.pieces)
    tokenizer = sentencepiece_tokenizer(replace(model, pieces=pieces))
    steps = [
        normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
        tokenizer.normalizer,
    ]
    lower = [normalizers.Lowercase()] if description["lower"] else []
    tokenizer.normalizer = normalizers.Sequence([*lower, *steps])
    return tokenizer


def _wav2vec2(description: Description, files: Mapping[str, Path]) -> Tokenizer | None:
    """A token for each character, and one for the blank between words (a "vocab.json" of CTC)."""
    del files
    words, delimiter = description["vocabulary"], description["delimiter"]
    if description["lower"] or not isinstance(delimiter, str):
        return None
    return character_tokenizer(words, unknown=description["unknown"], delimiter=delimiter)


_CLASSES: dict[str, Callable[[Description, Mapping[str, Path]], Tokenizer | None]] = {
    "ByT5Tokenizer": _byt5,
    "EsmTokenizer": _esm,
    "M2M100Tokenizer": _m2m100,
    "SiglipTokenizer": _siglip,
    "Wav2Vec2CTCTokenizer": _wav2vec2,
}
