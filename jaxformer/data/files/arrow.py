"""Parquet and Arrow files, read in batches of rows."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxformer.data.files.record import Record, table_row
from jaxformer.errors import DataError, StorageError
from jaxformer.extras import optional_module
from jaxformer.io.files import ordinary_file, read_json
from jaxformer.io.streams import readable

_BATCH_ROWS = 1024
_INFO = "dataset_info.json"


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Yields the rows of an Apache Parquet file, with one row group in memory."""
    parquet = optional_module("pyarrow.parquet", f"reading {path}")
    with _reported(path, "a Parquet"), parquet.ParquetFile(readable(path)) as file:
        schema = file.schema_arrow
        known = columns is not None and set(columns) <= set(schema.names)
        batches = file.iter_batches(_BATCH_ROWS, columns=list(columns) if known else None)
        yield from _rows(path, batches, _label_names(path, schema))


def read_arrow(path: Path, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Yields the rows of an Arrow IPC file or stream, which is mapped into memory."""
    arrow = optional_module("pyarrow", f"reading {path}")
    with _reported(path, "an Arrow"), arrow.memory_map(str(ordinary_file(path))) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = (arrow.ipc.open_file if is_file else arrow.ipc.open_stream)(file)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        if columns is not None and set(columns) <= set(reader.schema.names):
            batches = (batch.select(list(columns)) for batch in batches)
        parts = (
            batch.slice(start, _BATCH_ROWS)
            for batch in batches
            for start in range(0, len(batch), _BATCH_ROWS)
        )
        yield from _rows(path, parts, _label_names(path, reader.schema))


@contextmanager
def _reported(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (DataError, StorageError):
        raise
    except Exception as error:  # pyarrow's own errors have many bases
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path}: not {kind} file that can be read: {reason}") from error


def _rows(path: Path, batches: Any, names: dict[str, Callable[[Any], Any]]) -> Iterator[Record]:
    number = 0
    for batch in batches:
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError:
            rows = [_row(path, number + i, batch.slice(i, 1)) for i in range(len(batch))]
        for values in rows:
            number += 1
            for column in names.keys() & values.keys():
                values[column] = names[column](values[column])
            yield table_row(path, number, values)


def _row(path: Path, before: int, batch: Any) -> dict[str, Any]:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, row {before + 1}: not UTF-8 ({error.reason})") from error


def _label_names(path: Path, schema: Any) -> dict[str, Callable[[Any], Any]]:
    """Returns functions from numbers to names, for the columns of type ClassLabel (`datasets`)."""
    described = (schema.metadata or {}).get(b"huggingface")
    try:
        if described is not None:
            features = json.loads(described)["info"]["features"]
        elif path.with_name(_INFO).is_file():
            features = read_json(path.with_name(_INFO))["features"]
        else:
            return {}
        found = {name: _namer(feature) for name, feature in features.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # the description is optional, and may be of another version
    return {name: namer for name, namer in found.items() if namer is not None}


def _namer(feature: Any) -> Callable[[Any], Any] | None:
    """Returns a function that names the numbers in a feature's value; None without labels."""
    if isinstance(feature, list):  # the form of lists in old versions of datasets
        feature = {"feature": feature[0]}
    if feature.get("_type") == "ClassLabel" and feature.get("names"):
        names = dict(enumerate(feature["names"])) | {-1: None}  # -1: the label is unknown
        return lambda value: names.get(value, value)
    inner = _namer(feature["feature"]) if isinstance(feature.get("feature"), dict | list) else None
    if inner is None:
        return None
    return lambda values: values and [inner(value) for value in values]
