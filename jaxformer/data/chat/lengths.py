"""Handles conversations that are longer than a row."""

from collections.abc import Sequence
from typing import Literal

from jaxformer.errors import DataError

TooLong = Literal["error", "cut", "drop"]


def check_sizes(
    sizes: Sequence[int], places: Sequence[str], limit: int, too_long: TooLong, what: str
) -> None:
    """Raises DataError if rows are too long and `too_long` is "error"."""
    long = [number for number, size in enumerate(sizes) if size > limit]
    if long and too_long == "error":
        raise DataError(
            f"{places[long[0]]}: {sizes[long[0]]} tokens, more than data.sequence_length = "
            f"{limit}, and so have {len(long):,} of {len(sizes):,} {what}: set "
            f"data.sequence_length to {max(sizes)}, which the model's positions must allow, or "
            "cut them or leave them out with --data.too-long cut or drop"
        )


def describe_changes(num_cut: int, num_dropped: int, limit: int) -> list[str]:
    """Describes how many rows were cut and how many were left out, if any."""
    cut = [f"{num_cut:,} cut to {limit} tokens"] if num_cut else []
    return cut + ([f"{num_dropped:,} longer ones left out"] if num_dropped else [])
