"""N-gram language models, which KenLM reads, for the beams of a CTC head."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.checks import FINITE, SWITCH, check_fields
from jaxformer.errors import ConfigError, DataError, first_line
from jaxformer.extras import optional_module
from jaxformer.generation.speech.ctc import Scorer
from jaxformer.io.files import ordinary_file, read_bytes
from jaxformer.io.model_files import read_json_object
from jaxformer.io.paths import any_path

_ENDINGS = (".arpa", ".bin", ".binary")
_FOLDER, _ATTRIBUTES, _WORDS = "language_model", "attrs.json", "unigrams.txt"
_ALPHABET = "alphabet.json"
_WORD_LENGTH = 6
"""The length from which an unknown part of a word costs more with each letter."""


@dataclass(frozen=True)
class LanguageModel:
    r"""An n-gram language model of words, with its weights relative to the scores of a CTC head.

    .. math:: f(w_1 \dots w_n) = \alpha \ln p(w_1 \dots w_n) + \beta n

    Fields are named as those of pyctcdecode, which `Wav2Vec2ProcessorWithLM` of transformers uses.
    """

    name: str
    """The file, for messages."""
    ngrams: Any
    """A `kenlm.Model`."""
    words: tuple[str, ...] = ()
    """Its vocabulary, sorted; empty if its file does not list it."""
    alphabet: tuple[str, ...] = ()
    """The labels that it was made for, in the order of their numbers; empty if unknown."""
    alpha: float = 0.5
    """α, the weight of the log-probability of a text."""
    beta: float = 1.5
    """β, which is added for each word."""
    unk_score_offset: float = -10.0
    """Added to the log-probability, to base 10, of an unknown word, and of a part of a word with
    which no known word begins.
    """
    score_boundary: bool = True
    """Whether a text is a sentence: begins after <s>, and ends with </s>."""

    def __post_init__(self):
        check_fields(self, alpha=FINITE, beta=FINITE, unk_score_offset=FINITE)
        check_fields(self, score_boundary=SWITCH)

    def scorer(self, letters: Sequence[str], separator: int) -> "WordScorer":
        """Returns the scorer of labels; `letters` has the text of each, "" for the blank.

        ConfigError: the model has other labels, or words that these cannot spell.
        """
        for number, (theirs, ours) in enumerate(zip(self.alphabet, letters, strict=False)):
            if len(ours) == 1 and theirs != ours:
                raise ConfigError(
                    f"{self.name}: {_ALPHABET} has {theirs!r} as label {number}, which is {ours!r} "
                    "in the tokenizer: name the language model of this tokenizer"
                )
        written = set("".join(letters))
        if self.words and not any(written.issuperset(word) for word in self.words):
            raise ConfigError(
                f"{self.name}: none of its words, such as {self.words[len(self.words) // 2]!r}, is "
                f"spelled with the labels of the tokenizer, {''.join(sorted(written))!r}: make it "
                "from texts in their spelling"
            )
        return WordScorer(self, letters, separator)


class _State(NamedTuple):
    """Labels so far."""

    added: float
    """The added terms of the complete words."""
    context: Any
    """The state of KenLM after them."""
    part: str
    """The letters after them."""


class WordScorer(Scorer):
    """Scores labels by a language model: each word once it is complete."""

    def __init__(self, model: LanguageModel, letters: Sequence[str], separator: int):
        self.separator = separator
        self._model, self._letters = model, letters
        self._library: Any = optional_module("kenlm", "A language model")
        context = self._library.State()
        if model.score_boundary:
            model.ngrams.BeginSentenceWrite(context)
        else:
            model.ngrams.NullContextWrite(context)
        self.start = _State(0.0, context, "")
        self._costs = lru_cache(1 << 14)(self._costs_after)

    def after(self, state: _State, label: int) -> _State:
        if label != self.separator:
            return state._replace(part=state.part + self._letters[label])
        return self._complete(state)

    def score(self, state: _State) -> float:
        return state.added + self._cost(state.part)

    def next_scores(self, state: _State) -> np.ndarray:
        found = state.added + self._costs(state.part)
        found[self.separator] = self._complete(state).added
        return found

    def final_score(self, state: _State) -> float:
        added, context, _ = self._complete(state)
        if not self._model.score_boundary:
            return added
        end = self._model.ngrams.BaseScore(context, "</s>", self._library.State())
        return added + self._model.alpha * math.log(10) * end

    def _complete(self, state: _State) -> _State:
        """Returns the state in which the letters after the last word form a word."""
        if not state.part:
            return state
        model, context = self._model, self._library.State()
        score = model.ngrams.BaseScore(state.context, state.part, context)
        if not self._knows(state.part):
            score += model.unk_score_offset
        added = model.alpha * math.log(10) * score + model.beta
        return _State(state.added + added, context, "")

    def _knows(self, word: str) -> bool:
        words = self._model.words
        place = bisect_left(words, word)
        return words[place : place + 1] == (word,) if words else word in self._model.ngrams

    def _cost(self, part: str) -> float:
        """Returns the term for a part of a word: 0 if a known word begins with it."""
        words = self._model.words
        place = bisect_left(words, part)
        if not words or (place < len(words) and words[place].startswith(part)):
            return 0.0
        return self._model.unk_score_offset * max(1.0, len(part) / _WORD_LENGTH)

    def _costs_after(self, part: str) -> np.ndarray:
        """Returns the terms for a part of a word followed by each label."""
        return np.array([self._cost(part + letter) for letter in self._letters])


def read_language_model(
    path: str | Path, *, alpha: float | None = None, beta: float | None = None
) -> LanguageModel:
    """Reads an n-gram language model.

    Args:
        path: A file of KenLM (.arpa, .bin or .binary), or a folder of pyctcdecode or of a
            `Wav2Vec2ProcessorWithLM`, with the file, its words and its weights.
        alpha: The weight of its log-probability; None: that of the folder, or 0.5.
        beta: The term added for each word; None: that of the folder, or 1.5.

    Returns:
        The language model.

    Raises:
        ConfigError: A weight is not a finite number.
        DataError: Names the file that is missing or is not a language model.
        MissingExtra: KenLM is not installed.
    """
    library: Any = optional_module("kenlm", "A language model")
    path = any_path(path, "language_model")
    file, words, fields = _folder(path) if path.is_dir() else (ordinary_file(path), None, {})
    if file.suffix not in _ENDINGS:
        raise DataError(f"{file}: must end with {', '.join(_ENDINGS)}, or be a folder with such")
    options = library.Config()
    options.show_progress, options.arpa_complain = False, library.ARPALoadComplain.NONE
    try:
        ngrams = library.Model(str(file), options)
    except (OSError, ValueError) as error:  # the latter if its message has no letters
        raise DataError(
            f"{file}: KenLM reads no language model here: give a file that lmplz or build_binary "
            f"wrote; {first_line(error)}"
        ) from error
    if words is None and file.suffix == ".arpa":
        words = _unigrams(file)
    known = {word for word in words or () if word in ngrams} - {"<s>", "</s>", "<unk>"}
    weights = {"alpha": alpha, "beta": beta}
    fields |= {name: value for name, value in weights.items() if value is not None}
    return LanguageModel(str(file), ngrams, tuple(sorted(known)), **fields)


def _folder(path: Path) -> tuple[Path, list[str] | None, dict[str, Any]]:
    """Returns the file of a folder, its words, and the fields of the model."""
    own = path / _FOLDER if (path / _FOLDER).is_dir() else path
    files = sorted(each for each in own.iterdir() if each.suffix in _ENDINGS)
    if len(files) != 1:
        names = ", ".join(each.name for each in files) or "none"
        raise DataError(
            f"{own}: must have one language model ({', '.join(_ENDINGS)}), and has {names}: name "
            "its file"
        )
    fields: dict[str, Any] = {}
    if (own / _ATTRIBUTES).exists():
        given = read_json_object(own / _ATTRIBUTES)
        names = ("alpha", "beta", "unk_score_offset", "score_boundary")
        fields = {name: given[name] for name in names if name in given}
        for name, value in fields.items():
            rule = SWITCH if name == "score_boundary" else FINITE
            if not rule.allows(value):
                raise DataError(f"{own / _ATTRIBUTES}: {name} = {value!r}: must be {rule.expected}")
    words = None
    if (own / _WORDS).exists():
        words = read_bytes(own / _WORDS).decode(errors="replace").splitlines()
    alphabet = next((each for each in (path, path.parent) if (each / _ALPHABET).exists()), None)
    if alphabet is not None:
        fields["alphabet"] = _alphabet(alphabet / _ALPHABET)
    return files[0], words, fields


def _alphabet(file: Path) -> tuple[str, ...]:
    """Returns the labels of alphabet.json."""
    given = read_json_object(file)
    labels = given.get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{file}: labels = {labels!r}: must be a list of texts")
    if given.get("is_bpe"):
        raise DataError(
            f"{file}: is_bpe is true: must be false: pieces of words have no label between words"
        )
    return tuple(labels)


def _unigrams(file: Path) -> list[str]:
    """Returns the words of an ARPA file: its 1-grams."""
    words, inside = [], False
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            line = line.strip()
            if inside and line.startswith("\\"):
                break
            if inside and line:
                words.append(line.split()[1])
            inside = inside or line == "\\1-grams:"
    return words
