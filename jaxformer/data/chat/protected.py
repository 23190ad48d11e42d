"""Encodes rendered chats; special tokens are recognised in the template, but not in messages."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from jaxformer.data.tokenizers.special_tokens import codes_of, special_tokens_in, with_codes
from jaxformer.data.tokenizers.specs import all_cores

# Letters without case, compatibility forms or spaces around them, which no template treats
# differently, in scripts so rare that one letter is always unused: Tangut, cuneiform, hieroglyphs.
_STAND_INS = (0x17000, 0x12000, 0x13000, 0x14400, 0x16800)


class TokenizedText(NamedTuple):
    """The tokens of a text, and the first character and the one after the last of each, int [T]."""

    tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class Disguise(NamedTuple):
    """A message's values, disguised so that they do not spell out special tokens."""

    values: Any
    """The values, with the first character of each special token's name replaced."""
    letters: Mapping[str, str]
    """The replaced characters, by their replacements."""

    def undo(self, text: str) -> str:
        """Returns a text with the disguise removed."""
        return text.translate(str.maketrans(dict(self.letters)))


class ProtectedTokenizer:
    """A tokenizer that distinguishes a template's special tokens from the same text in a message.

    The names of special tokens in messages get another first character before the chat is
    rendered. Any special token that the tokenizer then finds in the text was written by the
    template. A copy of the tokenizer, whose special tokens have names that occur in no text,
    encodes the text with these names in place of the template's and without the disguise. Texts
    whose messages do not name special tokens are encoded by the tokenizer itself.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Takes a tokenizer of Hugging Face's `tokenizers`, which is not changed."""
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        # It would trim blanks from the characters of a token.
        self._tokenizer.post_processor = None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._codes = codes_of(tokenizer)
        self._special = special_tokens_in(tokenizer)
        self._ids = np.array(list(self._special), np.int64)
        names = sorted(self._special.values(), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or "(?!)")
        # These are found in the normalised text, which may differ, for example in case.
        added = tokenizer.get_added_tokens_decoder().values()
        normalized = [token.content for token in added if token.special and token.normalized]
        self._loose = re.compile(
            "|".join(re.escape(self._normalized(name)) for name in normalized) or "(?!)"
        )
        self._has_loose = bool(normalized) and tokenizer.normalizer is not None

    def spells_special(self, values: Any) -> bool:
        """Whether a text, also within lists and dictionaries, spells out a special token."""
        if isinstance(values, str):
            if self._names.search(values):
                return True
            return self._has_loose and bool(self._loose.search(self._normalized(values)))
        if isinstance(values, Mapping):
            return any(map(self.spells_special, (*values.keys(), *values.values())))
        if isinstance(values, Sequence):
            return any(map(self.spells_special, values))
        return False

    def disguised(self, values: Any) -> Disguise:
        """Returns values with the first character of each special token in them replaced."""
        text = json.dumps(values, ensure_ascii=False)
        used = {ord(letter) >> 8 for letter in text}
        base = next((start for start in _STAND_INS if start >> 8 not in used), _STAND_INS[0])
        letters: dict[str, str] = {}

        def hidden(value: str) -> str:
            while found := self.special_in(value, self.encode([value])[0]):
                for _, start, end in found:
                    inside = value[start:end]
                    start += len(inside) - len(inside.lstrip() or inside)
                    stand_in = letters.setdefault(value[start], chr(base + len(letters)))
                    value = value[:start] + stand_in + value[start + 1 :]
            return value

        changed = _map_texts(hidden, values)
        return Disguise(changed, {stand_in: letter for letter, stand_in in letters.items()})

    def special_in(self, text: str, tokens: TokenizedText) -> list[tuple[int, int, int]]:
        """Returns (id, start, end) of each special token that the tokenizer finds in a text."""
        found = []
        for place in np.flatnonzero(np.isin(tokens.tokens, self._ids)):
            id_, start, end = (int(values[place]) for values in tokens)
            # Unknown characters become the special token <unk>, too.
            if self._same(text[start:end].strip(), self._special[id_].strip()):
                found.append((id_, start, end))
        return found

    def encode(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Returns the tokens of texts, in which all special tokens are read as such."""
        with all_cores():
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [_tokenized(encoding) for encoding in encodings]

    def encode_disguised(self, disguise: Disguise, text: str) -> TokenizedText:
        """Returns the tokens of a text, recognising special tokens only in the template."""
        plain = disguise.undo(text)
        parts = []
        starts = []
        ends = []
        done = 0
        for id_, start, end in self.special_in(text, self.encode([text])[0]):
            code = self._codes[id_]
            parts += [plain[done:start], code]
            starts += [*range(done, start), *[start] * len(code)]
            ends += [*range(done + 1, start + 1), *[end] * len(code)]
            done = end
        parts.append(plain[done:])
        starts += range(done, len(text) + 1)
        ends += range(done + 1, len(text) + 1)
        with all_cores():
            coded = _tokenized(self._coded.encode("".join(parts), add_special_tokens=False))
        starts, ends = np.array(starts), np.array([0, *ends])
        first = starts[coded.starts]
        # Some tokenizers begin a text with a token that has no characters.
        return TokenizedText(coded.tokens, first, np.maximum(first, ends[coded.ends]))

    def _same(self, text: str, name: str) -> bool:
        return text == name or self._normalized(text) == self._normalized(name)

    def _normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    @cached_property
    def _coded(self) -> Tokenizer:
        """A copy of the tokenizer with other names for its special tokens."""
        return with_codes(self._tokenizer)


def _tokenized(encoding: Encoding) -> TokenizedText:
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return TokenizedText(np.array(encoding.ids, np.int32), offsets[:, 0], offsets[:, 1])


def _map_texts(function: Callable[[str], str], values: Any) -> Any:
    """Returns values with a function applied to each text, keys included."""
    if isinstance(values, str):
        return function(values)
    if isinstance(values, Mapping):
        return {
            _map_texts(function, key): _map_texts(function, value) for key, value in values.items()
        }
    if isinstance(values, Sequence):
        return [_map_texts(function, value) for value in values]
    return values
