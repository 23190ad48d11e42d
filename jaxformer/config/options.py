"""The options of a command line, each with the values that follow it, and their fields."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxformer.io.components import moved_fields
from jaxformer.io.notices import warn_once


def given(arguments: Sequence[str]) -> set[str]:
    """Returns the names of the fields that a command line sets; do_sample for --no-do-sample."""
    names = {".".join(path_of(option)) for option, _ in groups(arguments) if option}
    return names | {name.removeprefix("no_") for name in names}


def without(arguments: Sequence[str], *names: str) -> list[str]:
    """Returns a command line without the options of some fields, those of their parts included."""
    kept = [
        [option, *values] if option else values
        for option, values in groups(arguments)
        if option != "-h" and (not option or path_of(option)[0] not in names)
    ]
    return [word for group in kept for word in group]


def groups(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each option of a command line with the values that follow it; "" before the first."""
    option, values = "", []
    for item in arguments:
        if item.startswith("--") or item == "-h":
            if option or values:
                yield option, values
            option, equals, value = item.partition("=")
            values = [value] if equals else []
        else:
            values.append(item)
    if option or values:
        yield option, values


def path_of(option: str) -> list[str]:
    """Returns the names of the fields on the way to that of an option."""
    return option.removeprefix("--").replace("-", "_").split(".")


def child(owner: Any, name: str) -> Any:
    """A field of a dataclass or an item of a tuple, or None."""
    if isinstance(owner, tuple):
        return owner[int(name)] if name.isdecimal() and int(name) < len(owner) else None
    return getattr(owner, name, None)


def current_name(tree: Any, option: str) -> str:
    """An option, by the name that its field has now if it has moved; says so."""
    owner, path = tree, path_of(option)
    for place, name in enumerate(path):
        moved = moved_fields(type(owner)) if dataclasses.is_dataclass(owner) else {}
        own = name if name in moved else name.removeprefix("no_")
        if own in moved:
            first, last = moved[own].split(".")
            names = [*path[:place], first, name.removesuffix(own) + last, *path[place + 1 :]]
            current = "--" + ".".join(names).replace("_", "-")
            warn_once(f"{option} is now {current}")
            return current
        owner = child(owner, name)
    return option


def keep_moved(owner: Any, name: str, new: Any) -> None:
    """Keeps in a component what were fields of its owner when another one was in its place."""
    settings = [path.split(".") for path in moved_fields(type(owner)).values()]
    old = getattr(owner, name)
    shared = _field_names(old) & _field_names(new)
    for setting in (last for first, last in settings if first == name and last in shared):
        object.__setattr__(new, setting, getattr(old, setting))


def _field_names(value: Any) -> set[str]:
    is_component = dataclasses.is_dataclass(value)
    return {field.name for field in dataclasses.fields(value)} if is_component else set()
