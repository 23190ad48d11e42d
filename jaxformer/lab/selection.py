"""The selection of layers or heads to show."""

from collections.abc import Sequence

from jaxformer.errors import ArgumentError


def selected(name: str, wanted: Sequence[int] | None, there: Sequence[int]) -> list[int]:
    """Returns the indices of the wanted numbers in `there`; None selects all."""
    if wanted is None:
        return list(range(len(there)))
    for number in wanted:
        if number not in there:
            raise ArgumentError(
                f"{name} = {number}: must be one of {there[0]} to {there[-1]}, a number that the "
                "model has"
            )
    return [there.index(number) for number in wanted]
