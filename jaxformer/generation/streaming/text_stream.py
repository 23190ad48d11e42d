"""The text of one row while it is generated: tokens in, what may be shown out."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from jaxformer.generation.streaming.detokenize import detokenizer
from jaxformer.generation.streaming.stop import StopStrings


class TextStream:
    """Decodes the tokens of one row up to the first stop string.

    Attributes:
        finished: Whether the text is complete: a stop string was found, or it was flushed. Tokens
            after that are ignored.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        """`stop` are strings that end the text and are not part of it.

        Raises:
            ConfigError: `stop` has an empty string, or is no list of strings.
        """
        self._decoder = detokenizer(tokenizer)
        self._stop = StopStrings(stop)
        self._shown: list[str] = []
        self.finished = False

    @property
    def text(self) -> str:
        """All that has been shown so far."""
        return "".join(self._shown)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text; None if none did."""
        return self._stop.found

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that may be shown after ids [tokens]: no half character or stop string.

        It may be empty; what is held back comes with a later token or with `flush`.
        """
        return "" if self.finished else self._show(self._decoder.push(ids))

    def flush(self) -> str:
        """Ends the text and returns what was held back."""
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
