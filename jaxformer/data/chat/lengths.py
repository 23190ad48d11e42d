"""Handles conversations that are longer than a row."""

from collections.abc import Sequence
from typing import Literal

from jaxformer.data.rows import too_long_error

TooLong = Literal["error", "cut", "drop"]


def check_sizes(
    sizes: Sequence[int], places: Sequence[str], limit: int, too_long: TooLong, what: str
) -> None:
    """Raises DataError if rows are too long and `too_long` is "error"."""
    if too_long == "error" and max(sizes, default=0) > limit:
        remedy = "cut them or leave them out with --data.too-long cut or drop"
        raise too_long_error(sizes, places, limit, "data.sequence_length", what, remedy)


def describe_changes(num_cut: int, num_dropped: int, limit: int) -> list[str]:
    """Describes how many rows were cut and how many were left out, if any."""
    cut = [f"{num_cut:,} cut to {limit} tokens"] if num_cut else []
    return cut + ([f"{num_dropped:,} longer ones left out"] if num_dropped else [])
