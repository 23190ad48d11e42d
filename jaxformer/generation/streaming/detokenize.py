"""Text from tokens as they come: the pieces joined are what decoding all of them at once gives."""

import abc
import codecs
import re
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders

_BYTE_FALLBACK = re.compile("<0x[0-9A-F]{2}>")
_UNCLEAR = "\N{REPLACEMENT CHARACTER}"


def detokenizer(tokenizer: Tokenizer) -> "Detokenizer":
    """Returns what decodes one text of a tokenizer, token by token.

    The library's own `DecodeStream` raises on bytes that are not UTF-8, which models do write.
    """
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
    return (_OfBytes if byte_level else _OfTokens)(tokenizer)


class Detokenizer(abc.ABC):
    """Decodes one text; special and unknown ids are left out.

    Concatenated, all that `push` and then `flush` return is
    `tokenizer.decode(ids, skip_special_tokens=True)`. A token costs the same wherever it stands.
    """

    def __init__(self, tokenizer: Tokenizer):
        """`tokenizer` turns ids into tokens and says which of them are special."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        self._special = {token.content for token in added if token.special}

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that ids [tokens], none negative, add and later ones cannot change."""
        pieces = []
        for id_ in map(int, ids):
            token = self._tokenizer.id_to_token(id_)
            if token is not None and token not in self._special:
                pieces.append(self._add(id_, token))
        return "".join(pieces)

    @abc.abstractmethod
    def flush(self) -> str:
        """Returns what was held back, at the end of the text; an unfinished character is U+FFFD."""

    @abc.abstractmethod
    def _add(self, id_: int, token: str) -> str:
        """Returns the text that is certain with one more token."""


class _OfBytes(Detokenizer):
    """Byte-level tokens are bytes, whatever is beside them: at most three are held back."""

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _add(self, id_: int, token: str) -> str:
        try:
            written = bytes(_BYTES[character] for character in token)
        except KeyError:  # a token that was added as plain text
            written = token.encode()
        return self._decoder.decode(written)


class _OfTokens(Detokenizer):
    """Tokens whose text depends on the one before: where words begin, or a run of single bytes.

    A run is held back to its end: one byte that does not fit turns all of it into U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__(tokenizer)
        # The last token whose text has been returned, and that text when it stands alone.
        self._before: list[int] = []
        self._before_text = ""
        self._held: list[int] = []

    def flush(self) -> str:
        text = self._new_text()
        self._held = []
        return text

    def _add(self, id_: int, token: str) -> str:
        self._held.append(id_)
        if _BYTE_FALLBACK.fullmatch(token):
            return ""
        text = self._new_text()
        if text.endswith(_UNCLEAR):
            return ""
        self._before, self._held = [id_], []
        self._before_text = self._tokenizer.decode(self._before)
        return text

    def _new_text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._before_text) :]


def _byte_of_character() -> dict[str, int]:
    """Byte-level tokens write a byte as its Latin-1 character if printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_of_character()
