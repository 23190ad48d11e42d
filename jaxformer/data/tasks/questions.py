"""Questions about a text whose answers are parts of it, as SQuAD distributes them."""

import os
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.data.tasks.records import Record, read_records
from jaxformer.errors import DataError
from jaxformer.io.json_files import read_json


@dataclass(frozen=True)
class Question:
    """A question about a context."""

    where: str
    """The file and the line or the question's id, for messages."""
    text: str
    context: str
    answers: tuple[str, ...]
    """All answers that count as right; empty: the context has none."""
    start: int | None
    """The character of the context at which the first answer begins."""


def read_questions(path: str | os.PathLike) -> list[Question]:
    """Returns the questions of a file.

    A .json file is SQuAD's: {"data": [{"paragraphs": [{"context", "qas": [{"id", "question",
    "answers": [{"text", "answer_start"}]}]}]}]}. In a .jsonl or .parquet file each row has
    "context", "question" and "answers", which is such a list or {"text": [...], "answer_start":
    [...]}.

    Raises:
        DataError: The file cannot be read, lacks a field or holds an answer that does not stand
            where it should; names the file and the line or question.
    """
    path = Path(os.path.expanduser(path))
    records = _squad(path) if path.suffix.lower() == ".json" else read_records(path)
    questions = [_question(record) for record in records]
    if not questions:
        raise DataError(f"{path} holds no questions")
    return questions


def _squad(path: Path) -> Iterator[Record]:
    content = read_json(path, object)
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    values = {"context": paragraph["context"], **question}
                    yield Record(f"{path}, question {question.get('id')!r}", values)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not in SQuAD's form, data > paragraphs > context, qas: {error}"
        ) from error


def _question(record: Record) -> Question:
    text, context = record.text("question"), record.text("context")
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
