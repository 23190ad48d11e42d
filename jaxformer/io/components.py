"""Component classes: which may stand in a field of a configuration, imported yet or not.

The annotation of a field names a base class; every concrete dataclass that derives from it may
stand there. A class is concrete unless it has abstract methods or derives from `abc.ABC` itself,
which is how a base says that it is one.
"""

import abc
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Any

_LIBRARY = __name__.partition(".")[0]


def is_concrete(kind: Any) -> bool:
    """Whether instances of a class can be parts of a configuration."""
    return (
        isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and abc.ABC not in kind.__bases__
        and not inspect.isabstract(kind)
    )


def is_library(module: str) -> bool:
    """Whether a module, by its dotted name, is one of this library's."""
    return module.partition(".")[0] == _LIBRARY


def type_name(kind: type) -> str:
    """The name of a class in files and messages: stable, wherever the library defines it.

    "RMSNorm" for a class of the library, "my_module.Mine" for one of the user's, and
    "experiment.Mine" for one that is defined in an experiment file.
    """
    if is_library(kind.__module__):
        return kind.__qualname__
    return f"{kind.__module__.partition('@')[0]}.{kind.__qualname__}"


def is_own_name(name: str) -> bool:
    """Whether a name in a file is that of a class outside of the library."""
    return "." in name and not is_library(name)


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: `RoPE | None` allows `RoPE` and `NoneType`."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def imported_types(base: Any) -> list[type]:
    """The concrete classes among a base and what derives from it, as far as they are imported."""
    return list(dict.fromkeys(filter(is_concrete, _descendants(base))))


def all_types(base: Any) -> list[type]:
    """The concrete classes among a base and what derives from it.

    Those of the library are in the package of their base, all of which is imported.
    """
    for name in _package_modules(_package_of(base)):
        importlib.import_module(name)
    return imported_types(base)


def find_type(name: str, base: type) -> type | None:
    """Looks a concrete class up by its name.

    Files written before names were stable have "jaxformer.functional.norms.RMSNorm": of the name
    of a class of the library only the last part counts.

    Args:
        name: What `type_name` gives.
        base: The annotation of the field in which the class is to stand.

    Returns:
        The class; None where no such class derives from the base.
    """
    stable = name if is_own_name(name) else name.rpartition(".")[2]
    # Of two versions of one experiment file the later counts.
    return {type_name(kind): kind for kind in all_types(base)}.get(stable)


def _descendants(base: Any) -> Iterator[type]:
    if isinstance(base, type) and base.__module__ != "builtins":
        yield base
        for subclass in base.__subclasses__():
            yield from _descendants(subclass)


def _package_of(base: Any) -> str:
    """The package that a class of the library is in; empty for any other."""
    module = getattr(base, "__module__", "")
    package = module.rpartition(".")[0]
    return package if is_library(module) and package != _LIBRARY else ""


@functools.cache
def _package_modules(package: str) -> tuple[str, ...]:
    if not package:
        return ()
    path = importlib.import_module(package).__path__
    return tuple(item.name for item in pkgutil.walk_packages(path, f"{package}."))
