"""Adds columns of predictions to the rows of a file.

The predictions are first appended to OUTPUT.partial, so that they survive an interruption; the
output is written atomically at the end.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.errors import ConfigError, DataError, system_message
from jaxformer.io.mirror import mirrored
from jaxformer.io.paths import AnyPath
from jaxformer.io.tables import json_line, write_table
from jaxformer.pretrained.prediction.predictor import Prediction, Predictor


@dataclass(frozen=True)
class PredictedTable:
    """An input table, and the output table with predictions added to its rows."""

    input: AnyPath
    """The table to read."""
    output: AnyPath
    """The table to write."""
    header: bool = True
    """Whether the first line of the input contains column names."""
    read: Callable[[AnyPath, bool], Iterator[Record]] = read_records
    """Yields the rows of the input."""

    @property
    def partial(self) -> Path:
        """The local file of predictions so far."""
        return mirrored(self.output.parent) / f"{self.output.name}.partial"

    def records(self) -> Iterator[Record]:
        """Yields the rows of the input."""
        return self.read(self.input, self.header)

    def check_unused(self, resume: bool) -> None:
        """Raises ConfigError if the output exists, or if earlier predictions are not resumed."""
        if self.output.exists():
            raise ConfigError(f"--output {self.output} exists: name another file, or remove it")
        if not resume and self._has_predictions():
            raise ConfigError(
                f"{self.partial} has the predictions of a command that was interrupted: --resume "
                "continues after them, or remove it"
            )

    def count(self, predictor: Predictor) -> int:
        """Checks every row before predicting, and returns the number of rows."""
        total = 0
        for record in self.records():
            predictor.check(record)
            total += 1
        if not total:
            raise DataError(f"{self.input} has no rows")
        return total

    def predict(
        self, predictor: Predictor, settings: dict[str, Any], done: Callable[[int], None]
    ) -> None:
        """Predicts every row and writes the output."""
        count = self._resumed(settings)
        records = self.records()
        for number, (record, (digest, _)) in enumerate(
            zip(islice(records, count), self._predicted(), strict=True), start=1
        ):
            if digest != _digest(record):
                raise DataError(
                    f"{record.where}: not the row that prediction {number} in {self.partial} is "
                    "for: remove that file to start again"
                )
        done(count)
        size = predictor.subject.batch_size * predictor.reader.chunk
        try:
            with self.partial.open("a", encoding="utf-8") as file:
                while chunk := list(islice(records, size)):
                    for record, row in zip(chunk, predictor.predict(chunk), strict=True):
                        file.write(json_line({"row": _digest(record), "predicted": row}))
                    file.flush()
                    count += len(chunk)
                    done(count)
        except OSError as error:
            raise DataError(f"{self.partial} cannot be written: {system_message(error)}") from error
        write_table(self.output, self._rows)
        self.partial.unlink()

    def _has_predictions(self) -> bool:
        if not self.partial.exists():
            return False
        with self.partial.open("rb") as file:
            return any(line.endswith(b"\n") for line in islice(file, 1, None))

    def _resumed(self, settings: dict[str, Any]) -> int:
        """Returns the number of predicted rows, and prepares their file for appending."""
        first = json_line({"settings": settings})
        if not self._has_predictions():
            self.partial.write_text(first, encoding="utf-8")
            return 0
        with self.partial.open("rb+") as file:
            if file.readline().decode(errors="replace") != first:
                raise ConfigError(
                    f"--resume: {self.partial} has predictions with other options or another "
                    "model; give the same ones, or remove it"
                )
            count, end = 0, file.tell()
            for line in file:
                if not line.endswith(b"\n"):  # from a killed process
                    break
                count, end = count + 1, end + len(line)
            os.ftruncate(file.fileno(), end)
        return count

    def _predicted(self) -> Iterator[tuple[str, Prediction]]:
        """Yields the digest of each row and its prediction."""
        with self.partial.open(encoding="utf-8") as file:
            next(file)
            for number, line in enumerate(file, start=2):
                try:
                    found = json.loads(line)
                    yield found["row"], found["predicted"]
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(f"{self.partial}:{number}: damaged; remove it") from error

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of the input with their predictions."""
        for record, (_, predicted) in zip(self.records(), self._predicted(), strict=True):
            taken = {name: new_name(name, record.values) for name in predicted}
            yield record.values | {taken[name]: value for name, value in predicted.items()}


def new_name(name: str, columns: dict[str, Any]) -> str:
    """Returns the column of a prediction: predicted_label if the input has a column label."""
    while name in columns:
        name = f"predicted_{name}"
    return name


def _digest(record: Record) -> str:
    return hashlib.blake2b(json_line(record.values).encode(), digest_size=8).hexdigest()
