"""Heads and poolers, which files of other classes may lack."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.names import spellings
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.models.parameters import AbstractModel


def part_of(parameter: str) -> str | None:
    """Returns the head or pooler of a parameter, such as "heads.label"; None for the body."""
    first, *rest = parameter.split(".")
    if first == "heads":
        return f"heads.{rest[0]}"
    return first if first == "pooler" else None


def tensor_parts(placements: Iterable[Placement]) -> set[str]:
    """Returns the heads and poolers with parameters in these tensors."""
    places = (place for placement in placements for place in placement.places)
    return {part_of(place.parameter) for place in places} - {None}


def parts_without(
    placements: Iterable[Placement], is_there: Callable[[Placement], bool]
) -> tuple[str, ...]:
    """Returns the heads and poolers without any tensor for which `is_there` is true."""
    found: dict[str, bool] = {}
    for placement in placements:
        for name in tensor_parts([placement]):
            found[name] = found.get(name, False) or is_there(placement)
    return tuple(name for name, there in found.items() if not there)


def tensors_in(placements: Iterable[Placement], parts: Iterable[str]) -> list[Placement]:
    """Returns the tensors whose parameters all belong to the given parts."""
    kept = set(parts)
    return [
        placement
        for placement in placements
        if placement.places and {part_of(place.parameter) for place in placement.places} <= kept
    ]


def absent_parts(
    model_format: ModelFormat, config: Any, abstract_model: AbstractModel
) -> list[str]:
    """Returns patterns of tensors that other classes have but this model lacks.

    Files may contain them: a pre-trained BERT has both pre-training heads for any class in
    config.json, and T5 has a decoder even if the class is only the encoder. There are two patterns
    for each: "cls.seq_relationship" and "cls.seq_relationship.*".
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
        if not parts & own:
            for name in spellings(tensor.replace("{}", "*"), model_format.prefix):
                absent += [name, f"{name}.*"]
    return absent
