"""Stop strings: a text ends before the first of them, wherever its pieces were cut."""

from collections.abc import Sequence

from jaxformer.errors import ConfigError


class StopStrings:
    """Looks for several strings in a text that comes in pieces.

    The one that is complete first ends the text; of those complete at the same character, the
    longest. How the text is cut into pieces changes nothing.

    Attributes:
        found: The string that ended the text; None while there is none.
    """

    def __init__(self, stop: Sequence[str]):
        """`stop` are the strings, any number of them.

        Raises:
            ConfigError: `stop` is a string itself, or one of its entries is empty or no string.
        """
        if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
            raise ConfigError(f"stop = {stop!r}: must be a list of strings, none of them empty")
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Returns what can be shown now that `text` is there too; nothing after a stop string.

        What may be the beginning of a stop string is held back until it is clear.
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
        """Returns what was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text

    def _unclear(self, text: str) -> int:
        """The most characters at the end with which a stop string may begin."""
        longest = max(map(len, self._stop), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(text)), 0, -1)
                if any(one.startswith(text[-size:]) for one in self._stop)
            ),
            0,
        )
