"""Configuration objects to and from JSON: ``{"type": "RMSNorm", "field": value, ...}``.

Reading is strict: every value must have the annotated type of its field. An unknown field, a number
written as a string and a class that its field does not accept are errors. Only component classes
are imported or instantiated.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable
from typing import Any

from jaxformer.checks import rule_of
from jaxformer.errors import ConfigError, did_you_mean, shortened
from jaxformer.io.components import (
    all_types,
    find_type,
    is_user_class_name,
    moved_fields,
    type_name,
    union_members,
    with_values,
)
from jaxformer.io.notices import warn_once

_SCALARS = (bool, int, float, str, type(None))
_JSON_WORDS = {bool: "true or false", type(None): "null"}


def to_json(value: Any) -> Any:
    """Converts a tree of frozen dataclasses, tuples and scalars to JSON-serializable values."""
    return _to_json(value, "config")


def _to_json(value: Any, where: str) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _to_json(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"type": type_name(type(value)), **fields}
    if isinstance(value, (tuple, list)):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _to_json(item, f"{where}.{key}") for key, item in value.items()}
    raise ConfigError(f"{where}: a {type(value).__name__} cannot be saved as JSON ({value!r}).")


def from_json(data: Any, kind: Any, find_user_class: Callable[[str], Any] | None = None) -> Any:
    """Rebuilds an object from the result of ``to_json``."""
    return _read(data, kind, "config", find_user_class)


def json_round_trip(value: Any) -> Any:
    """Returns an object after a round trip through JSON."""
    return from_json(to_json(value), type(value))


def _read(data: Any, hint: Any, where: str, find_user_class: Callable[[str], Any] | None) -> Any:
    """Reads a value according to an annotation."""
    allowed = union_members(hint)
    if isinstance(data, dict):
        bases = [kind for kind in allowed if _is_component(kind)]
        if bases:
            return _component(data, bases, where, find_user_class)
        if "type" not in data and any(_allows(kind, dict) for kind in allowed):
            return {
                key: _read(item, Any, f"{where}.{key}", find_user_class)
                for key, item in data.items()
            }
    elif isinstance(data, list):
        for kind in allowed:
            if _allows(kind, tuple) or _is_list(kind):
                return _sequence(data, kind, where, find_user_class)
    elif any(_is_scalar(data, kind) for kind in allowed):
        return data
    words = " or ".join(text for kind in allowed for text in _describe_hint(kind))
    choices = [item for kind in allowed for item in typing.get_args(kind) if isinstance(item, str)]
    near = did_you_mean(data, choices)
    raise ConfigError(f"{where} = {shortened(data)}: must be {words}{near}")


def _component(
    data: dict[str, Any], bases: list[Any], where: str, find_user_class: Callable[[str], Any] | None
) -> Any:
    kind = _find_type(data.get("type"), bases, where, find_user_class)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    moved = moved_fields(kind)
    given = {key: item for key, item in data.items() if key != "type" and key not in moved}
    for name in given:
        if name not in fields:
            raise ConfigError(
                f"{where}.{name}: {kind.__name__} has no such field; its fields are "
                f"{', '.join(fields)}{did_you_mean(name, fields)}"
            )
    required = [name for name, field in fields.items() if default_of(field) is dataclasses.MISSING]
    if missing := [name for name in required if name not in given]:
        raise ConfigError(f"{where}: {kind.__name__} needs {', '.join(missing)}.")
    hints = _hints(kind)
    values = {
        name: _read(item, hints[name], f"{where}.{name}", find_user_class)
        for name, item in given.items()
    }
    try:
        found = kind(**values)
        return with_values(found, _moved_values(found, data, where, find_user_class))
    except ConfigError:
        raise
    except Exception as error:  # a user-defined __post_init__ may raise anything
        raise ConfigError(f"{where}: {kind.__name__} rejected its fields: {error}") from error


def _moved_values(
    owner: Any, data: dict[str, Any], where: str, find_user_class: Callable[[str], Any] | None
) -> dict[str, Any]:
    """Reads fields of an older version that have moved into components, by their new paths."""
    found = {}
    for name, path in moved_fields(type(owner)).items():
        if name not in data:
            continue
        first, _, last = path.partition(".")
        component = getattr(owner, first)
        usual = type(owner).__dataclass_fields__[first].default
        if last in (field.name for field in dataclasses.fields(component)):
            hint = _hints(type(component))[last]
            found[path] = _read(data[name], hint, f"{where}.{name}", find_user_class)
        elif data[name] != to_json(getattr(usual, last)):
            warn_once(
                f"{where}.{name} = {shortened(data[name])} is ignored: {type(component).__name__} "
                f"has no {last}; derive it from {type(usual).__name__}, which has"
            )
    return found


def _find_type(
    name: Any, bases: list[Any], where: str, find_user_class: Callable[[str], Any] | None
) -> type:
    """Looks up a component class by name among those that the field accepts."""
    if isinstance(name, str) and find_user_class and is_user_class_name(name):
        found = find_user_class(name)
        if any(found in all_types(base) for base in bases):
            return found
    elif isinstance(name, str):
        for base in bases:
            if found := find_type(name, base):
                return found
    known = [kind.__name__ for base in bases for kind in all_types(base)]
    near = did_you_mean(name.rpartition(".")[2], known) if isinstance(name, str) else ""
    raise ConfigError(
        f"{where}.type = {shortened(name)} is not a known type: it must be one of "
        f"{', '.join(known)}{near}"
    )


def _sequence(
    data: list[Any], hint: Any, where: str, find_user_class: Callable[[str], Any] | None
) -> tuple | list:
    kinds = typing.get_args(hint)
    if not kinds or _is_list(hint) or kinds[1:] == (...,):
        kinds = (kinds[0] if kinds else Any,) * len(data)
    if len(kinds) != len(data):
        raise ConfigError(f"{where} = {shortened(data)}: must be a list of {len(kinds)} values")
    pairs = enumerate(zip(data, kinds, strict=True))
    items = [_read(item, kind, f"{where}[{i}]", find_user_class) for i, (item, kind) in pairs]
    return items if _is_list(hint) else tuple(items)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and hint is not Any and hint.__module__ != "builtins"


def _allows(hint: Any, kind: type) -> bool:
    """Whether an annotation allows this container; `Any` allows all."""
    return hint is Any or kind in (hint, typing.get_origin(hint))


def _is_list(hint: Any) -> bool:
    return list in (hint, typing.get_origin(hint))


def _is_scalar(data: Any, hint: Any) -> bool:
    """Whether an annotation allows a scalar."""
    named = hint in _SCALARS or typing.get_origin(hint) is typing.Literal
    return hint is Any or (named and rule_of(hint).allows(data))


def _describe_hint(hint: Any) -> list[str]:
    """Describes the values that an annotation allows, for messages."""
    if typing.get_origin(hint) is typing.Literal:
        return [repr(item) for item in typing.get_args(hint)]
    if hint in _SCALARS:
        return [_JSON_WORDS.get(hint, rule_of(hint).expected)]
    if _is_component(hint):
        return [f"a component with its type ({', '.join(k.__name__ for k in all_types(hint))})"]
    if typing.get_args(hint):
        kinds = [kind for item in typing.get_args(hint) for kind in union_members(item)]
        inner = [text for kind in kinds if kind is not ... for text in _describe_hint(kind)]
        return [f"a list of {' or '.join(dict.fromkeys(inner))}"]
    return ["a value without a type (annotate the field with the base class of its components)"]


def summary(value: Any) -> str:
    """Returns a configuration object as Python code, without fields at their defaults."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{summary(item)}, " for item in value).strip() + ")"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [
        f"{field.name}={summary(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.init and getattr(value, field.name) != default_of(field)
    ]
    return f"{type(value).__name__}({', '.join(shown)})"


def default_of(field: dataclasses.Field) -> Any:
    """Returns the default of a field, or `dataclasses.MISSING`."""
    made = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if made else field.default


def diff(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Compares two configuration trees field by field."""
    return dict(_diff(to_json(old), to_json(new), ""))


def _diff(old: Any, new: Any, where: str) -> Iterable[tuple[str, tuple[Any, Any]]]:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("type") != new.get("type"):
            names = _short(old), _short(new)
            is_one = names[0] == names[1]  # from two modules
            yield f"{where}.type".lstrip("."), (old["type"], new["type"]) if is_one else names
            return
        for key in {**old, **new}:
            yield from _diff(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
    elif old != new:
        yield where, (_short(old), _short(new))


def _short(value: Any) -> Any:
    """Returns the class name of a component, or the repr of a scalar."""
    if isinstance(value, dict) and "type" in value:
        return value["type"].rpartition(".")[2]
    return value
