"""The parts of a model that files of other classes lack: its heads and its pooler."""

from collections.abc import Callable, Iterable

from jaxformer.hub.weights.weight_map import Placement


def part_of(parameter: str) -> str | None:
    """Returns the head or pooler that a parameter belongs to: "heads.label"; None for the body."""
    first, *rest = parameter.split(".")
    if first == "heads":
        return f"heads.{rest[0]}"
    return first if first == "pooler" else None


def tensor_parts(placements: Iterable[Placement]) -> set[str]:
    """Returns the parts whose parameters are in these tensors."""
    places = (place for placement in placements for place in placement.places)
    return {part_of(place.parameter) for place in places} - {None}


def parts_without(
    placements: Iterable[Placement], is_there: Callable[[Placement], bool]
) -> tuple[str, ...]:
    """Returns the parts none of whose tensors is there.

    Args:
        placements: The tensors of a model, with the parameters in each.
        is_there: Whether a file has a tensor.
    """
    found: dict[str, bool] = {}
    for placement in placements:
        for name in tensor_parts([placement]):
            found[name] = found.get(name, False) or is_there(placement)
    return tuple(name for name, there in found.items() if not there)


def tensors_in(placements: Iterable[Placement], parts: Iterable[str]) -> list[Placement]:
    """Returns the tensors whose parameters are all in some parts."""
    kept = set(parts)
    return [
        placement
        for placement in placements
        if placement.places and {part_of(place.parameter) for place in placement.places} <= kept
    ]
