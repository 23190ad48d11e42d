"""Text-to-text data from tables and questions: summaries, other outputs, and answers."""

from dataclasses import dataclass

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.files.record import Record
from jaxformer.data.tasks.span_text import Question, read_questions
from jaxformer.data.tasks.text_metrics import ROUGE, AnswerMatch, TextMetric
from jaxformer.data.tasks.text_to_text import TextPair, TextToText
from jaxformer.errors import DataError

_SUMMARIES = (
    ("article", "highlights"), ("dialogue", "summary"), ("article", "summary"),
    ("text", "summary"), ("article", "abstract"),
)  # fmt: skip
"""The columns of CNN/DailyMail, SAMSum, XL-Sum, BillSum, arXiv and PubMed."""


@dataclass(frozen=True)
class SummaryText(TextToText):
    """Rows of a table with a document and its summary, or any other input and output text.

    Rows of a batch are as in `TextToText`.

    References:
        Raffel et al., T5, https://arxiv.org/abs/1910.10683, appendix D.
    """

    train: str = "train.csv"
    """The training table: .csv, .tsv, .jsonl or .parquet."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    source: str = "document"
    """The column of the input text. If both columns are missing, those of CNN/DailyMail ("article",
    "highlights") and of other well-known data sets are recognised."""

    target: str = "summary"
    """The column of the output text."""

    prefix: str = "summarize: "
    """The text before every input text, as in T5's training; empty for BART."""

    source_length: int = 512
    """The maximum number of tokens of an input text, with special tokens."""

    target_length: int = 128
    """The maximum number of tokens of an output text, with special tokens."""

    metric: TextMetric = ROUGE()
    """The metric of the model's texts: ROUGE, BLEU or AnswerMatch."""

    product = ("summary", "summaries")

    def read(self, source: str) -> list[TextPair]:
        return read_rows(source, self._pair, self.on_bad_row)

    def _pair(self, record: Record) -> TextPair | None:
        columns = self._columns(record)
        pair = TextPair(tuple(map(record.text, columns)), (record.where,) * 2).checked(*columns)
        return pair and pair._replace(texts=(self.prefix + pair.texts[0], pair.texts[1]))

    def _columns(self, record: Record) -> tuple[str, str]:
        """The columns of the fields, or those of a well-known data set; raises DataError without
        any.
        """
        own = self.source, self.target
        choices = [own, *_SUMMARIES] if own == (SummaryText.source, SummaryText.target) else [own]
        for choice in choices:
            if record.values.keys() >= set(choice):
                return choice
        missing = next(name for name in own if name not in record.values)
        held = ", ".join(map(repr, record.values)) or "none"
        raise DataError(
            f"{record.where}: no column {missing!r}; the columns are: {held}; name two of them "
            "with --data.source and --data.target"
        )


@dataclass(frozen=True)
class AnswerText(TextToText):
    """Questions about contexts; the model writes the answer.

    Rows of a batch are as in `TextToText`. The source is "question: ... context: ..."; the target
    is the first answer, and empty if the context has none.

    References:
        Raffel et al., T5, https://arxiv.org/abs/1910.10683, appendix D.15.
    """

    train: str = "train-v1.1.json"
    """The training questions: SQuAD's .json, or .jsonl or .parquet with a question in each row."""

    validation: str | None = None
    """The validation questions; None holds out the questions on a share of the contexts."""

    source_length: int = 512
    """The maximum number of tokens of a question and its context, with special tokens."""

    target_length: int = 32
    """The maximum number of tokens of an answer, with special tokens."""

    metric: TextMetric = AnswerMatch()
    """The metric of the model's answers."""

    product = ("answer", "answers")

    def read(self, source: str) -> list[TextPair]:
        return [_pair(question) for question in read_questions(source, self.on_bad_row)]


def _pair(question: Question) -> TextPair:
    source = f"question: {question.text} context: {question.context}"
    answer = next(iter(question.answers), "")
    return TextPair((source, answer), (question.where,) * 2, question.answers, question.context)
