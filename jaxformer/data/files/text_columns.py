"""Recognises the columns of a table that hold its texts or its images."""

from collections.abc import Sequence

from jaxformer.data.files.record import Record
from jaxformer.errors import DataError

TEXT_COLUMNS = (
    ("text",), ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis"),
    ("question1", "question2"), ("question", "sentence"), ("text", "text_pair"),
)  # fmt: skip
"""The recognised columns of texts, the most usual ones first."""

IMAGE_COLUMNS = (
    ("image",), ("file",), ("path",), ("file_name",), ("filename",), ("image_path",),
    ("file_path",), ("filepath",), ("img",),
)  # fmt: skip
"""The columns with the paths of images."""


def recognised(
    record: Record, choices: Sequence[tuple[str, ...]], option: str, others: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the columns to read: the first of the choices that a table has, or its only
    column.
    """
    columns = tuple(name for name in record.values if name not in others)
    found = [choice for choice in choices if set(choice) <= set(columns)]
    pairs = [choice for choice in found if len(choice) == 2]
    if found or len(columns) == 1:
        return [*pairs, *found, columns][0]
    known = ", ".join(" and ".join(choice) for choice in choices)
    raise DataError(
        f"{record.where}: {option} must name the column to read (or two, of a pair of texts), of "
        f"{', '.join(map(repr, columns))}; without it, {known} are recognised"
    )
