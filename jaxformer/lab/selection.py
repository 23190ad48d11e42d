"""The layers or heads that a command shows."""

from collections.abc import Sequence

from jaxformer.errors import ArgumentError


def selected(name: str, wanted: Sequence[int] | None, there: Sequence[int]) -> list[int]:
    """Returns the places of the wanted numbers among those that a model has; None selects all."""
    if wanted is None:
        return list(range(len(there)))
    for number in wanted:
        if number not in there:
            raise ArgumentError(
                f"{name} = {number}: must be one of {there[0]} to {there[-1]}, a number that the "
                "model has"
            )
    return [there.index(number) for number in wanted]
