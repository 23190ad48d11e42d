"""Extractive question answering: the answer is a span of the context, as in SQuAD."""

import math
import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.bad_rows import OnBadRow, read_rows
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.files.lines import Malformed
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks.sequences import (
    EncodedText,
    RowEncoder,
    SequenceData,
    check_fit,
    encode_each,
    model_inputs,
)
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import read_json
from jaxformer.io.notices import warn_once
from jaxformer.io.paths import any_path
from jaxformer.models.heads.base import HeadResult


@dataclass(frozen=True)
class Question:
    """A question about a context."""

    where: str
    """The file and the line or the question's id, for messages."""
    text: str
    context: str
    answers: tuple[str, ...]
    """All correct answers; empty if the context has none."""
    start: int | None
    """The character of the context at which the first answer begins."""


def read_questions(path: str | os.PathLike, on_bad_row: OnBadRow = "stop") -> list[Question]:
    """Returns the questions of a file.

    A .json file is SQuAD's (v1.1 or v2.0): {"data": [{"paragraphs": [{"context", "qas": [{"id",
    "question", "answers": [{"text", "answer_start"}]}]}]}]}. In a .jsonl or .parquet file each row
    has "context", "question" and "answers", which is such a list or {"text": [...],
    "answer_start": [...]}, as in `datasets`; a .json file may hold such rows too.
    """
    path = any_path(path, "path")
    records = partial(_squad, path) if path.suffix.lower() == ".json" else None
    return read_rows(path, _question, on_bad_row, records)


def _squad(path: Path, malformed: Malformed) -> Iterator[Record]:
    """The questions of a .json file: SQuAD's, or rows as in a .jsonl file, also below "data"."""
    try:
        content = read_json(path, object)
    except DataError as damage:
        yield from _rows(path, damage, malformed)
        return
    if content and isinstance(content, list):
        yield from read_records(path, malformed=malformed)
        return
    try:
        for number, item in enumerate(content["data"], start=1):
            if "paragraphs" not in item and "question" in item:
                yield Record(f"{path}, row {number}", item)
                continue
            for paragraph in item["paragraphs"]:
                for question in paragraph["qas"]:
                    values = {"context": paragraph["context"], **question}
                    yield Record(f"{path}, question {question.get('id')!r}", values)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not in SQuAD's form, data > paragraphs > context, qas: {error}"
        ) from error


def _rows(path: Path, damage: DataError, malformed: Malformed) -> Iterator[Record]:
    """The objects on the lines of a file that is not JSON as a whole."""
    begun = False
    try:
        for record in read_records(path, malformed=malformed):
            begun = True
            yield record
    except DataError as error:
        raise (error if begun else damage) from error


def _question(record: Record) -> Question:
    text = record.text("question")
    context = record.text("context")
    answers = _answers(record)
    for answer, start in answers[:1]:
        found = context[start : start + len(answer)]
        if found != answer:
            raise DataError(
                f"{record.where}: the answer {answer!r} should stand at character {start} of the "
                f"context, but there is {found!r}"
            )
    start = answers[0][1] if answers else None
    return Question(record.where, text, context, tuple(answer for answer, _ in answers), start)


def _answers(record: Record) -> list[tuple[str, int]]:
    answers: Any = record.value("answers")
    try:
        if isinstance(answers, dict):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
    except (KeyError, TypeError, ValueError):
        pairs = [(None, None)]
    for text, start in pairs:
        known = isinstance(text, str) and type(start) is int and start >= 0
        if not known or not text.strip():
            raise DataError(
                f'{record.where}: "answers" must hold the "text" of each answer, which is not '
                f'empty, and its "answer_start", counted from 0; got {reprlib.repr(answers)}'
            )
    return pairs


# A run of letters and digits, or any other character, with the blanks before it.
_WORD = re.compile(r"\s*(?:\w+|[^\w\s])")


@dataclass(frozen=True)
class SpanText(SequenceData[Question]):
    """Questions and contexts with the answer's position in the context.

    A row has "inputs", "segments" and "token_types" int32 [T]: [CLS] question [SEP] context [SEP];
    "span" int32 [2], the answer's first and last token, and "span_weights" float32; "span_places"
    bool [T], true for the context's tokens. A context that is too long becomes several rows that
    overlap; a row without the answer has weight 0. If the context has no answer at all, the span is
    [CLS] alone. With `truncate` longer questions are cut.

    References:
        Devlin et al., BERT, https://arxiv.org/abs/1810.04805, sections 4.2 and 4.3.
    """

    train: str = "train-v1.1.json"
    """The training questions: SQuAD's .json, or .jsonl or .parquet with a question in each row."""

    validation: str | None = None
    """The validation questions; None holds out the questions on a share of the contexts."""

    sequence_length: int | None = field(default=384, kw_only=True)
    """The tokens of a row; None: as in the checkpoint, at most 384."""

    question_length: int = 64
    """The maximum number of tokens of a question."""

    stride: int = 128
    """The number of tokens between the starts of two rows over one context."""

    head = "span"
    longest_row = 384

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", question_length=at_least(1), stride=at_least(1))
        room = (self.sequence_length or math.inf) - self.question_length - 3
        if self.stride > room:
            raise ConfigError(
                f"stride={self.stride} would leave tokens of the context out: sequence_length="
                f"{self.sequence_length} and question_length={self.question_length} leave {room} "
                "for it"
            )

    def of_length(self, length: int) -> "SpanText":
        """Returns the data in rows of a length, with a stride that covers all tokens of a
        context.
        """
        question, stride = self.question_length, self.stride
        if stride > length - question - 3:
            question = question if question <= length // 2 else length // 4
            stride = max(min(stride, (length - question - 3) // 2), 1)
            warn_once(
                f"Rows have {length} tokens, as in the checkpoint: data.question_length = "
                f"{question} and data.stride = {stride} fit them"
            )
        return replace(self, sequence_length=length, question_length=question, stride=stride)

    def read(self, source: str) -> list[Question]:
        return read_questions(source, self.on_bad_row)

    def side_of(self, row: Question) -> str:
        return row.context

    def texts(self, row: Question) -> tuple[str, str]:
        return row.text, row.context

    def examples(self, rows, tokenizer, labels=()) -> "SpanExamples":
        """Returns the rows of questions, several for a long context."""
        words = [_words(question.context) for question in rows]
        pieces = encode_each((text for context in words for text, _, _ in context), tokenizer)
        asked = tokenizer.encode_batch([question.text for question in rows])
        sizes = [len(ids) for ids in asked]
        places = [question.where for question in rows]
        limit = self.question_length
        check_fit(sizes, places, limit, "data.question_length", self.truncate)
        encoder, windows = self.encoder(tokenizer), []
        for number, (question, context) in enumerate(zip(rows, words, strict=True)):
            tokens = _Tokens.of(context, pieces)
            head = asked[number][: self.question_length]
            windows += self._windows(number, question, head, tokens, encoder)
        return SpanExamples(rows, windows, self.sequence_length, tokenizer.pad_id)

    def _windows(
        self,
        number: int,
        question: Question,
        head: np.ndarray,
        tokens: "_Tokens",
        encoder: RowEncoder,
    ) -> list["Window"]:
        """The rows of one question and its context."""
        offset = encoder.special.start((len(head),), 2)  # of the context in the row
        room = self.sequence_length - encoder.special.count(2) - len(head)
        answer = tokens.span_of(question)
        last_start = max(len(tokens.ids) - room, 0)
        starts = [*range(0, last_start, self.stride), last_start]
        windows = []
        for start in starts:
            ids = tokens.ids[start : start + room]
            span, weight = (0, 0), 1.0
            if answer is not None:
                inside = start <= answer[0] and answer[1] < start + len(ids)
                weight = float(inside)
                span = tuple(place - start + offset for place in answer) if inside else (0, 0)
            text = encoder.joined([head, ids])
            characters = tokens.characters[start : start + room]
            windows.append(Window(number, text, span, weight, offset, characters))
        return windows


class Window(NamedTuple):
    """A question and a part of its context."""

    question: int
    """The question's number."""
    text: EncodedText
    span: tuple[int, int]
    """The answer's first and last token."""
    weight: float
    """0 if the answer is elsewhere in the context."""
    offset: int
    """The context's first token."""
    characters: np.ndarray
    """int [tokens, 2], where the word of each token of the context begins and ends in it."""


class SpanExamples(ExampleSource):
    """Tokenised questions; the windows of a question are adjacent rows."""

    def __init__(
        self, questions: Sequence[Question], windows: Sequence[Window], length: int, pad_id: int
    ):
        self.questions = questions
        self.windows = windows
        self._shape = (length, pad_id)

    def __len__(self) -> int:
        return len(self.windows)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the model's inputs with "span", "span_weights" and "span_places"."""
        window, (length, _) = self.windows[index], self._shape
        places = np.arange(length) - window.offset
        return model_inputs(window.text, *self._shape) | {
            "span": np.array(window.span, np.int32),
            "span_weights": np.float32(window.weight),
            "span_places": (places >= 0) & (places < len(window.characters)),
        }

    def answer(self, index: int, first: int, last: int) -> str:
        """Returns the text of a row's tokens `first` to `last`; empty outside the context."""
        window = self.windows[index]
        first = first - window.offset
        last = last - window.offset
        if not 0 <= first <= last < len(window.characters):
            return ""
        context = self.questions[window.question].context
        return context[window.characters[first, 0] : window.characters[last, 1]]

    def best_answers(self, result: HeadResult) -> tuple[list[str], list[tuple[str, ...]]]:
        """Returns the predicted answer to each question, and the references.

        The best-scoring span of all windows of a question is its answer; there is no answer if
        every window gives a higher score to having none.
        """
        best: dict[int, tuple[float, str]] = {}
        nothing: dict[int, float] = {}
        spans = result.predictions.predicted
        scores = result.predictions.scores
        for row, span, (score, none) in zip(result.rows, spans, scores, strict=True):
            question = self.windows[row].question
            nothing[question] = min(none, nothing.get(question, math.inf))
            if question not in best or score > best[question][0]:
                best[question] = score, self.answer(row, *span)
        texts = [text if score > nothing[q] else "" for q, (score, text) in best.items()]
        return texts, [self.questions[question].answers for question in best]


class _Tokens(NamedTuple):
    """A context as tokens."""

    ids: np.ndarray
    characters: np.ndarray

    @classmethod
    def of(cls, words: list[tuple[str, int, int]], pieces: dict[str, np.ndarray]) -> "_Tokens":
        ids = [np.zeros(0, np.int32), *(pieces[text] for text, _, _ in words)]
        places = [place for text, *place in words for _ in pieces[text]]
        return cls(np.concatenate(ids), np.array(places, np.int32).reshape(-1, 2))

    def span_of(self, question: Question) -> tuple[int, int] | None:
        """The first and last token of the words that contain the answer."""
        if question.start is None:
            return None
        end = question.start + len(question.answers[0])
        begins, ends = self.characters.T
        touched = np.flatnonzero((begins < end) & (ends > question.start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _words(context: str) -> list[tuple[str, int, int]]:
    """Yields (word with a preceding blank if there is one, start, end)."""
    words = []
    for match in _WORD.finditer(context):
        word = match[0].lstrip()
        blank = " " if len(word) < len(match[0]) else ""
        words.append((blank + word, match.end() - len(word), match.end()))
    return words
