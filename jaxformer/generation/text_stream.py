"""The text of a row while it is generated: tokens in, text out, up to the first stop string."""

import abc
import codecs
import json
import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders

from jaxformer.data.tokenizers.auto_process import CLEANED, cleaned
from jaxformer.data.tokenizers.special_tokens import special_tokens_in
from jaxformer.data.tokenizers.training import byte_alphabet

_BYTES = {character: byte for byte, character in enumerate(byte_alphabet())}
_BYTE_FALLBACK = re.compile("<0x[0-9A-F]{2}>")
_UNCLEAR = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Decodes the tokens of one row up to the first stop string.

    Attributes:
        finished: Whether the text is complete, because of a stop string or `flush`. Later tokens
            are ignored.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        """Starts an empty text."""
        self._decoder = detokenizer(tokenizer)
        self._stop = StopStrings(stop)
        self._shown: list[str] = []
        self.finished = False

    @property
    def text(self) -> str:
        """The text that has been shown."""
        return "".join(self._shown)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stop.found

    def push(self, ids: Iterable[int]) -> str:
        """Adds tokens and returns the new text that can be shown.

        Incomplete characters and possible beginnings of a stop string are held back until a later
        call, or until `flush`.
        """
        return "" if self.finished else self._show(self._decoder.push(ids))

    def flush(self) -> str:
        """Ends the text and returns the part that was held back."""
        if self.finished:
            return ""
        text = self._show(self._decoder.flush())
        rest = self._stop.flush()
        self._shown.append(rest)
        self.finished = True
        return text + rest

    def _show(self, decoded: str) -> str:
        text = self._stop.push(decoded)
        self._shown.append(text)
        self.finished = self._stop.found is not None
        return text


class StopStrings:
    """Looks for several strings in a text that arrives in pieces, however it is cut.

    The string that is complete first ends the text; of those complete at the same character, the
    longest.

    Attributes:
        found: The string that ended the text; None until one is found.
    """

    def __init__(self, stop: Sequence[str]):
        """Takes any number of strings, none of them empty."""
        self._stop = tuple(stop)
        self._buffer = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Adds a piece and returns the text that can be shown; nothing after a stop string.

        The beginning of a possible stop string is held back.
        """
        if self.found is not None:
            return ""
        text = self._buffer + text
        starts = {one: text.find(one) for one in self._stop}
        ends = [(start + len(one), start, one) for one, start in starts.items() if start >= 0]
        if ends:
            _, start, self.found = min(ends)
            self._buffer = ""
            return text[:start]
        shown = len(text) - self._unclear(text)
        self._buffer = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Ends the text and returns the part that was held back."""
        text, self._buffer = self._buffer, ""
        return text

    def _unclear(self, text: str) -> int:
        """The number of characters at the end with which a stop string may begin."""
        longest = max(map(len, self._stop), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(text)), 0, -1)
                if any(one.startswith(text[-size:]) for one in self._stop)
            ),
            0,
        )


def detokenizer(tokenizer: Tokenizer) -> "Detokenizer":
    """Creates the detokenizer of one text.

    The `DecodeStream` of the tokenizers library raises on invalid UTF-8, which models may generate.
    """
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return _OfBytes(tokenizer)
    cleaned = _before_cleaning(tokenizer.decoder)
    return _OfTokens(tokenizer) if cleaned is None else _Cleaned(tokenizer, cleaned)


def _before_cleaning(decoder: decoders.Decoder | None) -> decoders.Decoder | None:
    """Returns the decoder before `CLEANED`, if a decoder ends with that."""
    if not isinstance(decoder, decoders.Sequence):
        return None
    stored = json.loads(decoder.__getstate__())["decoders"]
    kept = stored[: -len(CLEANED)]
    last = stored[-len(CLEANED) :]
    replaced = [(step.get("pattern", {}).get("String"), step.get("content")) for step in last]
    if replaced != list(CLEANED):
        return None
    found = decoders.Sequence([])
    found.__setstate__(json.dumps({"type": "Sequence", "decoders": kept}).encode())
    return found


class Detokenizer(abc.ABC):
    """Decodes one text, without special and unknown ids.

    The concatenated results of `push` and then `flush` are
    `tokenizer.decode(ids, skip_special_tokens=True)`. The time for a token does not depend on the
    tokens before it.
    """

    def __init__(self, tokenizer: Tokenizer):
        """`tokenizer` turns ids into tokens and identifies special ones."""
        self._tokenizer = tokenizer
        self._special = frozenset(special_tokens_in(tokenizer).values())

    def push(self, ids: Iterable[int]) -> str:
        """Adds ids, none negative, and returns the text that later ones cannot change."""
        pieces = []
        for id_ in map(int, ids):
            token = self._tokenizer.id_to_token(id_)
            if token is not None and token not in self._special:
                pieces.append(self._add(id_, token))
        return "".join(pieces)

    @abc.abstractmethod
    def flush(self) -> str:
        """Ends the text and returns the rest of it; an incomplete character becomes U+FFFD."""

    @abc.abstractmethod
    def _add(self, id_: int, token: str) -> str:
        """Adds a token and returns the text that later ones cannot change."""


class _OfBytes(Detokenizer):
    """Decodes byte-level tokens, which are bytes; at most three bytes are held back."""

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
    """Decodes tokens whose text depends on the one before: the start of a word, a run of bytes.

    A run is held back to its end, because one invalid byte turns all of it into U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, decoder: decoders.Decoder | None = None):
        super().__init__(tokenizer)
        decoder = decoder or tokenizer.decoder
        self._decode = " ".join if decoder is None else decoder.decode
        # The last token whose text has been returned, and its text when decoded alone.
        self._before: list[str] = []
        self._before_text = ""
        self._buffer: list[str] = []

    def flush(self) -> str:
        text = self._new_text()
        self._buffer = []
        return text

    def _add(self, id_: int, token: str) -> str:
        self._buffer.append(token)
        if _BYTE_FALLBACK.fullmatch(token):
            return ""
        text = self._new_text()
        if text.endswith(_UNCLEAR):
            return ""
        self._before, self._buffer = [token], []
        self._before_text = self._decode(self._before)
        return text

    def _new_text(self) -> str:
        return self._decode(self._before + self._buffer)[len(self._before_text) :]


class _Cleaned(_OfTokens):
    """Decodes tokens whose text is cleaned: blanks before punctuation and contractions are removed.

    The text from the last blank on is held back, since later tokens may remove it. It is not cut
    there if " ' " or " n't" may begin before that blank, or another blank precedes it.
    """

    def __init__(self, tokenizer: Tokenizer, decoder: decoders.Decoder):
        super().__init__(tokenizer, decoder)
        self._uncleaned = ""

    def flush(self) -> str:
        text = cleaned(self._uncleaned + super().flush())
        self._uncleaned = ""
        return text

    def _add(self, id_: int, token: str) -> str:
        self._uncleaned += super()._add(id_, token)
        cut = self._uncleaned.rfind(" ")
        while cut > 0 and self._uncleaned[:cut].endswith((" ", " '", " n")):
            cut = self._uncleaned.rfind(" ", 0, cut)
        text = self._uncleaned[: max(cut, 0)]
        self._uncleaned = self._uncleaned[max(cut, 0) :]
        return cleaned(text)
