"""Tagged sentences in tables: a list of words and a list of their tags in each row."""

import reprlib
from dataclasses import dataclass

from jaxformer.data.files.malformed import map_or_report
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks.tags.sources import Sentence, TagSource, is_table
from jaxformer.errors import DataError


@dataclass(frozen=True)
class TagTable(TagSource):
    """A table with a sentence in each row, as in data sets on the Hugging Face hub."""

    path: str
    """The table: .parquet, .jsonl, a data set saved to disk, ..."""

    words: str = "tokens"
    """The column of the words, a list of strings in each row."""

    tags: str = "ner_tags"
    """The column of the tags, a list of strings or numbers of the same length."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether a path without the name of a source is read by this one."""
        return is_table(path)

    def sentences(self, malformed=None):
        columns = self.words, self.tags
        records = enumerate(read_records(self.path, columns=columns, malformed=malformed), start=1)
        found = map_or_report(self._sentence, records, malformed)
        yield from (sentence for sentence in found if sentence.words)

    def _sentence(self, numbered: tuple[int, Record]) -> Sentence:
        number, record = numbered
        words = _items(record, self.words, str)
        tags = _items(record, self.tags, str | int)
        if len(words) != len(tags):
            raise DataError(
                f"{record.where}: {len(words)} words in {self.words!r} and {len(tags)} tags in "
                f"{self.tags!r}: must be equally many"
            )
        return Sentence.of(number, words, list(map(str, tags)), [record.where] * len(words))


def _items(record: Record, column: str, kind: type) -> list:
    """Returns the list in a column."""
    items = record.value(column)
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise DataError(
            f"{record.where}: column {column!r} holds {reprlib.repr(items)}: must be a list with "
            f"{'a string' if kind is str else 'a string or a number'} for each word"
        )
    return items
