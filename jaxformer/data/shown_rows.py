"""Rows of a batch in readable form: texts, in which learned parts are marked, and arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as RustTokenizer

from jaxformer.data.dataset import Batch
from jaxformer.data.tokenizers.special_tokens import special_tokens_in
from jaxformer.data.tokenizers.specs import Tokenizer

_MOST_NUMBERS = 20_000
"""The largest number of values of an array that are listed one by one."""
_SIDES = ("inputs", "decoder_inputs")
_PAIR = ("chosen", "rejected")
_JUDGED = ("answer", "answer to another prompt")


class Part(NamedTuple):
    """A part of a text."""

    text: str
    learned: bool
    """Whether the model learns to predict it."""


class Text(NamedTuple):
    """A text of a row."""

    name: str
    """Its name: "text", "inputs", "targets", "chosen", ..."""
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        return "".join(part.text for part in self.parts)


class Column(NamedTuple):
    """An array with a value for each token of a sequence."""

    name: str
    values: np.ndarray
    words: list[str]
    """The text of each value: the piece of a token, the name of a tag, or the number."""
    is_named: bool
    """Whether values stand for something other than a number."""


@dataclass(frozen=True)
class RowReader:
    """Reads rows of one kind of data."""

    head: str
    """The head that the data train, see `Data.head`."""
    tokenizer: Tokenizer | None = None
    """The tokenizer; None: rows have no text."""
    labels: Sequence[str] = ()
    """The names of labels or tags, by their numbers."""

    def sequences(self, row: Batch) -> dict[str, Batch]:
        """The row under the name "", or both sequences of a pair under their names."""
        names = _JUDGED if "desirable" in row else _PAIR
        if not (_is_ids(row.get("inputs"), 2) and len(row["inputs"]) == len(names)):
            return {"": row}
        own = {name: x for name, x in row.items() if np.ndim(x) == 2 and len(x) == len(names)}
        return {name: {k: x[i] for k, x in own.items()} for i, name in enumerate(names)}

    def texts(self, row: Batch) -> list[Text]:
        """Returns the texts of a row, without padding."""
        found = []
        for name, sequence in self.sequences(row).items():
            if self.tokenizer is None or not _is_ids(sequence.get("inputs"), 1):
                return []
            for text in self._texts(sequence):
                own = "" if name and text.name == "text" else text.name
                found.append(text._replace(name=f"{name} {own}".strip()))
        return found

    def example(self, row: Batch) -> Batch:
        """The first document of a row of next-token prediction; any other row unchanged."""
        segments = row.get("segments")
        if self.head != "language_model" or "decoder_inputs" in row or np.ndim(segments) != 1:
            return row
        shape = segments.shape
        size = int((segments == segments[0]).argmin()) or len(segments)
        return {name: x[:size] if np.shape(x) == shape else x for name, x in row.items()}

    def columns(self, row: Batch) -> list[list[Column]]:
        """Returns the arrays with a value for each token of a row with one sequence."""
        sides = [row[name] for name in _SIDES if _is_ids(row.get(name), 1)]
        found: list[list[Column]] = []
        decoder = [name for name in row if name.startswith("decoder_")]
        for number, tokens in enumerate(sides):
            names = [name for name in row if np.shape(row[name]) == tokens.shape]
            if len(sides) == 2:
                of_decoder = {*decoder, "targets", "weights"}
                names = [name for name in names if (name in of_decoder) == (number == 1)]
            size = self._size(row, "decoder_inputs" if number else "inputs")
            found.append([self._column(name, row[name][:size]) for name in names])
        return found

    def others(self, row: Batch) -> dict[str, np.ndarray]:
        """Returns the arrays of a row without a value for each token: labels, images, spans."""
        sequence = next(iter(self.sequences(row).values()))
        sides = [name for name in _SIDES if _is_ids(sequence.get(name), 1)]
        shapes = {np.shape(row[name]) for name in sides}
        return {name: np.asarray(x) for name, x in row.items() if np.shape(x) not in shapes}

    def format_value(self, name: str, value: np.ndarray, row: Batch) -> str:
        """Formats an array without a value for each token."""
        labels = self.labels if name in ("label", "labels") else ()
        if value.ndim == 0:
            number = value.item()
            known = isinstance(number, int) and 0 <= number < len(labels)
            return f"{number} ({labels[number]})" if known else f"{number:.6g}"
        if labels and value.shape == (len(labels),):
            chosen = [label for label, weight in zip(labels, value, strict=True) if weight > 0]
            return f"{np.array2string(value)} ({', '.join(chosen) or 'none'})"
        if name == "span" and self.tokenizer is not None:
            start, end = value.tolist()
            return f"{start} to {end} ({self._text(row['inputs'][start : end + 1])})"
        if value.size <= 16 and value.ndim == 1:
            return np.array2string(value, precision=4, max_line_width=1000)
        if value.dtype == bool:
            return f"bool {list(value.shape)}, {int(value.sum())} of {value.size} true"
        return (
            f"{value.dtype} {list(value.shape)}, min {value.min():.4g}, mean {value.mean():.4g}, "
            f"max {value.max():.4g}"
        )

    def as_json(self, row: Batch) -> dict[str, Any]:
        """A row as values that `json.dump` can write."""
        pieces = {}
        for name, sequence in self.sequences(row).items() if self.tokenizer else ():
            for column in (each for side in self.columns(sequence) for each in side):
                if self._has_text(column.name):
                    pieces[f"{name} {column.name}".strip()] = column.words
        return {
            "texts": {
                text.name: [part._asdict() for part in text.parts] for text in self.texts(row)
            },
            "pieces": pieces,
            "arrays": {name: _numbers(np.asarray(x)) for name, x in row.items()},
        }

    @cached_property
    def _rust(self) -> RustTokenizer:
        return self.tokenizer.backend_tokenizer

    @cached_property
    def _special(self) -> frozenset[int]:
        own = (self.tokenizer.end_of_text_id, self.tokenizer.pad_id)
        return frozenset({*own, *special_tokens_in(self._rust)})

    def _piece(self, id_: int) -> str:
        """A token as the tokenizer stores it, or its number if there is none."""
        piece = self._rust.id_to_token(id_) if id_ >= 0 else None
        return f"<{id_}>" if piece is None else piece

    def _has_text(self, name: str) -> bool:
        tags = self.head == "token_classification"
        return name in _SIDES or (name.endswith("targets") and not tags)

    def _column(self, name: str, values: np.ndarray) -> Column:
        if self._has_text(name) and self.tokenizer is not None:
            return Column(name, values, list(map(self._piece, values.tolist())), True)
        if name == "targets" and self.labels:
            known = len(self.labels)
            texts = [self.labels[i] if 0 <= i < known else str(i) for i in values.tolist()]
            return Column(name, values, texts, True)
        return Column(name, values, [f"{value:.4g}" for value in values.tolist()], False)

    def _size(self, row: Batch, name: str) -> int:
        """The number of tokens of a sequence before its padding."""
        tokens = row[name]
        segments = row.get(name.replace("inputs", "segments"))
        if segments is not None and segments.shape == tokens.shape:
            real = segments > 0
        else:
            real = tokens != (self.tokenizer.pad_id if self.tokenizer else -1)
            side = "decoder_inputs" if "decoder_inputs" in row else "inputs"
            if name == side and np.shape(row.get("weights")) == tokens.shape:
                real = real | (row["weights"] > 0)
        return int(np.flatnonzero(real)[-1]) + 1 if real.any() else 0

    def _texts(self, row: Batch) -> Iterator[Text]:
        inputs = row["inputs"]
        targets = row.get("targets")
        weights = row.get("weights")
        predicts = _is_ids(targets, 1) and np.shape(weights) == targets.shape
        read = inputs[: self._size(row, "inputs")]
        nothing = np.zeros(len(inputs), bool)
        if "decoder_inputs" in row and predicts:
            size = self._size(row, "decoder_inputs")
            yield self._marked("inputs", read, nothing)
            yield self._marked("targets", targets[:size], weights[:size] > 0)
            return
        aligned = predicts and targets.shape == inputs.shape
        if not aligned or self.head == "token_classification":
            yield self._marked("inputs", read, nothing)
            return
        counts = weights[: len(read)] > 0
        follows = np.append(targets[: len(read) - 1] == read[1:], True) | ~counts
        if self.head == "language_model" and len(read) and follows.all():
            tokens = np.append(read, targets[len(read) - 1]) if counts[-1] else read
            learned = np.append(False, counts)[: len(tokens)]
            yield self._marked("text", tokens, learned)
            return
        yield self._marked("inputs", read, counts)
        places = np.flatnonzero(counts)
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
        parts = [Part(self._text(targets[run]), True) for run in runs]
        gaps = [each for part in parts for each in (Part(" ", False), part)]
        yield Text("targets", tuple(gaps[1:]))

    def _marked(self, name: str, tokens: np.ndarray, learned: np.ndarray) -> Text:
        runs = groupby(zip(tokens.tolist(), learned.tolist(), strict=False), key=lambda t: t[1])
        parts = (Part(self._text([i for i, _ in run]), bool(flag)) for flag, run in runs)
        return Text(name, tuple(parts))

    def _text(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of tokens, with the names of special ones."""
        known, parts = self.tokenizer.vocab_size, []

        def is_named(id_: int) -> bool:
            return id_ in self._special or not 0 <= id_ < known

        for named, run in groupby(map(int, ids), is_named):
            each = list(run)
            parts.append("".join(map(self._piece, each)) if named else self.tokenizer.decode(each))
        return "".join(parts)


def cut(texts: Sequence[Text], most: int) -> list[Text]:
    """Texts of at most `most` characters together."""
    found, room = [], most
    for text in texts:
        kept = []
        for part in text.parts:
            if room > 0:
                whole = len(part.text) <= room
                kept.append(part if whole else part._replace(text=f"{part.text[:room]}..."))
            room -= len(part.text)
        found.append(text._replace(parts=tuple(kept)))
    return found


def _is_ids(array: Any, rank: int) -> bool:
    """Whether a value is an array of integers with `rank` axes."""
    return np.ndim(array) == rank and np.issubdtype(np.asarray(array).dtype, np.integer)


def _numbers(array: np.ndarray) -> Any:
    if array.ndim < 3 and array.size <= _MOST_NUMBERS:
        return array.tolist()
    sizes = {"dtype": str(array.dtype), "shape": list(array.shape)}
    return sizes | {
        "min": float(array.min()),
        "mean": float(array.mean()),
        "max": float(array.max()),
    }
