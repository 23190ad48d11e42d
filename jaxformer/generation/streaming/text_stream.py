"""The text of a row while it is generated: tokens in, text out, up to the first stop string."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from jaxformer.errors import ConfigError
from jaxformer.generation.streaming.detokenize import detokenizer


class TextStream:
    """Decodes the tokens of one row up to the first stop string.

    Attributes:
        finished: Whether the text is complete, because of a stop string or `flush`. Later tokens
            are ignored.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        """Starts an empty text.

        Args:
            tokenizer: Decodes the tokens.
            stop: Strings that end the text and are not part of it.

        Raises:
            ConfigError: `stop` holds an empty string, or is not a list of strings.
        """
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

        Args:
            ids: The tokens.

        Returns:
            The text, perhaps empty.
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
        found: The string that ended the text; None while there is none.
    """

    def __init__(self, stop: Sequence[str]):
        """Takes the strings, any number of them.

        Args:
            stop: The strings.

        Raises:
            ConfigError: `stop` is a string itself, or one of its entries is empty or no string.
        """
        if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
            raise ConfigError(f"stop = {stop!r}: must be a list of strings, none of them empty")
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Adds a piece and returns the text that can be shown; nothing after a stop string.

        The beginning of a possible stop string is held back.

        Args:
            text: The piece.

        Returns:
            The text, perhaps empty.
        """
        if self.found is not None:
            return ""
        text = self._held + text
        starts = {one: text.find(one) for one in self._stop}
        ends = [(start + len(one), start, one) for one, start in starts.items() if start >= 0]
        if ends:
            _, start, self.found = min(ends)
            self._held = ""
            return text[:start]
        shown = len(text) - self._unclear(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Ends the text and returns the part that was held back."""
        text, self._held = self._held, ""
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
