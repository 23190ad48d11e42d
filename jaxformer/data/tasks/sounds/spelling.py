"""How transcripts are spelled, for training and for error rates."""

import unicodedata
from dataclasses import dataclass
from typing import Literal

from jaxformer.checks import check_types

MARKS = '.,;:!?"()[]“”„«»…–—-'
"""Punctuation that is not spoken."""


@dataclass(frozen=True)
class Spelling:
    """How a transcript becomes the characters of a tokenizer."""

    case: Literal["as_is", "lower", "upper"] = "as_is"
    """Whether letters are changed to lower or upper case."""
    without: str = ""
    """Characters that become blanks, such as punctuation."""

    def __post_init__(self):
        check_types(self)

    def __call__(self, text: str) -> str:
        """Returns a text in Unicode's form NFKC, with single blanks between its words."""
        text = unicodedata.normalize("NFKC", text).replace("’", "'")
        text = text.translate(dict.fromkeys(map(ord, self.without), " "))
        cases = {"as_is": text, "lower": text.lower(), "upper": text.upper()}
        return " ".join(cases[self.case].split())

    def __str__(self) -> str:
        parts = ["NFKC"] + [f"{self.case} case"] * (self.case != "as_is")
        return ", ".join(parts + [f"without {self.without}"] * bool(self.without))


LIKE_LIBRISPEECH = Spelling(case="upper", without=MARKS)
"""Upper case without punctuation, as in LibriSpeech and the vocabularies of wav2vec 2.0."""
