"""Predicts tags of words, and entities."""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from jaxformer.data.files.record import TEXT_COLUMNS, Record, recognised
from jaxformer.errors import DataError
from jaxformer.models.heads.base import PredictionOptions, number
from jaxformer.pretrained.prediction.predictor import Prediction, Predictor, Subject
from jaxformer.pretrained.prediction.reader import Words


class TagPredictor(Predictor):
    """Predicts a tag for each word, from its first token, and the entities marked by the tags.

    Texts are split into words; a column may also contain lists of words.
    """

    _COLUMNS: ClassVar = (("words",), ("tokens",), *TEXT_COLUMNS[:2])

    def __init__(self, subject: Subject, function: Callable, options: PredictionOptions):
        """Takes the function that computes the tag probabilities of a batch."""
        super().__init__(subject)
        self._labels = options.labels
        self._entities = all(re.fullmatch(r"O|[BIES]-.+", tag) for tag in self._labels)
        self._all = options.scores
        self._lists: bool | None = None
        self._compute = self._batches(function)

    def _rows(self, records):
        texts, rows = self._words(records)
        found = self._tokens_run(self._compute, [row.tokens for row in rows])
        return [
            self._row(text, row, scores[self.reader.token_slice(len(row.tokens.ids), length)])
            for text, row, (scores, length) in zip(texts, rows, found, strict=True)
        ]

    def check(self, record):
        self._given(record)

    def _given(self, record: Record) -> str | list[str]:
        """Returns the text or the words of a row; rows must not mix texts and lists of words."""
        (column,) = self.subject.text or recognised(record, self._COLUMNS, "--text")
        if self._lists is None:
            self._lists = isinstance(record.value(column), list)
        return _listed(record, column) if self._lists else record.text(column)

    def _words(self, records: Sequence[Record]) -> tuple[list[str], list[Words]]:
        given = [self._given(record) for record in records]
        if self._lists:
            return [" ".join(words) for words in given], self.reader.encode_words(given)
        return given, self.reader.split_words(given)

    def _row(self, text: str, words: Words, scores: np.ndarray) -> Prediction:
        best, labels = scores.argmax(axis=-1), self._labels
        tags = [None if n < 0 else labels[best[n]] for n in words.first]
        scores_of_tags = [None if n < 0 else number(scores[n].max()) for n in words.first]
        split = {} if self._lists else {"words": [text[start:end] for start, end in words.spans]}
        row = split | {"tags": tags}
        if self._entities:
            row["entities"] = entities(text, words.spans, tags, scores_of_tags)
        return row | ({"tag_scores": scores_of_tags} if self._all else {})


def entities(
    text: str,
    spans: Sequence[tuple[int, int]],
    tags: Sequence[str | None],
    scores: Sequence[float | None],
) -> list[Prediction]:
    """Returns the entities marked by the tags of words, as in token-classification pipelines.

    A tag I-X continues an entity X; B-X and S-X start a new one.
    """
    found: list[dict] = []
    before = None
    for (start, end), tag, score in zip(spans, tags, scores, strict=True):
        prefix, _, kind = (tag or "O").partition("-")
        if prefix == "O":
            before = None
            continue
        if before == kind and prefix in "IE":
            found[-1]["scores"].append(score)
            found[-1]["end"] = end
        else:
            found.append({"entity_group": kind, "scores": [score], "start": start, "end": end})
        before = None if prefix in "ES" else kind
    return [
        {
            "entity_group": entity["entity_group"],
            "score": number(np.mean(entity["scores"])),
            "word": text[entity["start"] : entity["end"]],
            "start": entity["start"],
            "end": entity["end"],
        }
        for entity in found
    ]


def _listed(record: Record, column: str) -> list[str]:
    words = record.value(column)
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise DataError(
            f"{record.where}: column {column!r} holds {words!r:.80}: must be a list of words"
        )
    return words
