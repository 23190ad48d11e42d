"""The parts of a model that files of other classes lack: its heads and its pooler."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.names import spellings
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.models.parameters import AbstractModel


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


def absent_parts(
    model_format: ModelFormat, config: Any, abstract_model: AbstractModel
) -> list[str]:
    """Returns the tensors of heads, and of a pooler, that other classes of the system have.

    A file may have them beside those of the model: that of a pre-trained BERT has both heads of
    pre-training, whatever class its config.json names.

    Args:
        model_format: The system.
        config: The model.
        abstract_model: Its structure.

    Returns:
        Patterns of names: "cls.seq_relationship" and "cls.seq_relationship.*".
    """
    own = {("heads", head.name) for head in config.heads}
    own |= {(path.split(".")[0],) for path in abstract_model.shapes}
    named: dict[str, set[tuple[str, ...]]] = {}
    for path, tensor in model_format.weight_map(config).names.items():
        first, *rest = path.split(".")
        part = (first, rest[0]) if first == "heads" else (first,)
        named.setdefault(tensor, set()).add(part)
    absent = []
    for tensor, parts in named.items():
        if not parts & own and all(part[0] in ("heads", "pooler") for part in parts):
            for name in spellings(tensor.replace("{}", "*"), model_format.prefix):
                absent += [name, f"{name}.*"]
    return absent
