"""Component classes: finds those that a configuration field accepts, and imports their modules.

The annotation of a field names a base class; the field accepts every concrete dataclass that
derives from it. A class is abstract if it has abstract methods or lists `abc.ABC` as a base.
"""

import abc
import dataclasses
import functools
import importlib
import inspect
import os
import pkgutil
import types
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean

_LIBRARY = __name__.partition(".")[0]


def is_concrete(kind: Any) -> bool:
    """Whether instances of a class can be components of a configuration."""
    return (
        isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and abc.ABC not in kind.__bases__
        and not inspect.isabstract(kind)
    )


def is_library(module: str) -> bool:
    """Whether a dotted module name belongs to this library."""
    return module.partition(".")[0] == _LIBRARY


def type_name(kind: type) -> str:
    """Returns the name of a class for files and messages; library classes have no module prefix.

    "RMSNorm" for a class of the library, "my_module.Mine" for a user's class, and "experiment.Mine"
    for a class defined in an experiment file.
    """
    if is_library(kind.__module__):
        return kind.__qualname__
    return f"{kind.__module__.partition('@')[0]}.{kind.__qualname__}"


def is_user_class_name(name: str) -> bool:
    """Whether a type name refers to a user-defined class."""
    return "." in name and not is_library(name)


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: `RoPE | None` allows `RoPE` and `NoneType`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def imported_types(base: Any) -> list[type]:
    """Returns the imported concrete classes among a base and its subclasses."""
    return list(dict.fromkeys(filter(is_concrete, _descendants(base))))


def all_types(base: Any) -> list[type]:
    """Returns the concrete classes among a base and its subclasses."""
    for name in _package_modules(_package_of(base)):
        importlib.import_module(name)
    return imported_types(base)


def find_type(name: str, base: type) -> type | None:
    """Looks up a concrete class by name.

    Files written by older versions contain "jaxformer.functional.norms.RMSNorm": for library
    classes only the last part counts.
    """
    stable = name if is_user_class_name(name) else name.rpartition(".")[2]
    # If an experiment file was imported twice, the later version wins.
    return {type_name(kind): kind for kind in all_types(base)}.get(stable)


def _descendants(base: Any) -> Iterator[type]:
    if isinstance(base, type) and base.__module__ != "builtins":
        yield base
        for subclass in base.__subclasses__():
            yield from _descendants(subclass)


def _package_of(base: Any) -> str:
    """Returns the package of a library class, or "" for any other class."""
    module = getattr(base, "__module__", "")
    package = module.rpartition(".")[0]
    return package if is_library(module) and package != _LIBRARY else ""


@functools.cache
def _package_modules(package: str) -> tuple[str, ...]:
    if not package:
        return ()
    path = importlib.import_module(package).__path__
    return tuple(item.name for item in pkgutil.walk_packages(path, f"{package}."))


def source_of(word: str, kinds: Iterable[Any]) -> Any:
    """Returns the source for a bare path, given without the name of a class."""
    if not (os.path.exists(word) or any(mark in word for mark in "./*")):
        return None
    readers = (kind for kind in kinds if hasattr(kind, "reads"))
    return next((kind(word) for kind in readers if kind.reads(word)), None)


def value_at(owner: Any, path: str) -> Any:
    """Returns the value of a field, or of a field of a component: "self_attention.bias"."""
    return functools.reduce(getattr, path.split("."), owner)


def with_values(owner: Any, values: Mapping[str, Any], where: str = "") -> Any:
    """Returns a copy of a frozen dataclass with some fields, or fields of components, replaced."""
    if not values:
        return owner
    changes, inner = {}, defaultdict(dict)
    names = [field.name for field in dataclasses.fields(owner) if field.init]
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if name not in names and name not in moved_fields(type(owner)):
            hint = did_you_mean(name, names)
            raise ConfigError(f"{where}{name}: {type(owner).__name__} has no such field{hint}")
        (inner[name] if rest else changes)[rest or name] = value
    for name, own in inner.items():
        part = changes.get(name, getattr(owner, name))
        changes[name] = with_values(part, own, f"{where}{name}.")
    return dataclasses.replace(owner, **changes)


def moved_fields(kind: type) -> dict[str, str]:
    """Returns the fields that a class had in older versions, mapped to their current paths."""
    now = {field.name for field in dataclasses.fields(kind)}
    moved = getattr(kind, "moved_fields", {})
    return {name: path for name, path in moved.items() if name not in now}
