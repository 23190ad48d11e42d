"""Configuration objects as JSON: ``{"type": "RMSNorm", "field": value, ...}`` and back.

Reading is strict: every value must be what its field is annotated with. An unknown field, a number
written as a string and a class that may not stand in its field are errors, so a file that loads
means what it says. Nothing but components is ever imported or built.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean, shortened
from jaxformer.io.components import all_types, find_type, is_own_name, type_name, union_members

_SCALARS = (bool, int, float, str, type(None))
_IN_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    type(None): "null",
}


def to_json(value: Any) -> Any:
    """Turns a tree of frozen dataclasses, tuples and scalars into what ``json.dump`` writes.

    Args:
        value: A dataclass instance, tuple, list, string-keyed dict, string, number, bool or None;
            nested at will.

    Returns:
        Dictionaries, lists and scalars. A dataclass becomes ``{"type": "RMSNorm", ...}``.

    Raises:
        ConfigError: A value has no JSON form; the message names the field it sits in.
    """
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


def from_json(data: Any, kind: Any, find_own: Callable[[str], Any] | None = None) -> Any:
    """Rebuilds the object that ``to_json`` wrote.

    Args:
        data: What ``json.load`` returned. Lists come back as tuples.
        kind: The class of the object or a base of it, as the annotation of a field would have it.
        find_own: Finds a class outside of this library by its full name; None: among the classes
            that are imported already.

    Returns:
        The object; its own ``__post_init__`` has validated it.

    Raises:
        ConfigError: A value of another type than its field, an unknown type or field (with the
            allowed ones and the nearest spelling), or a missing field.
    """
    return _read(data, kind, "config", find_own)


def as_saved(value: Any) -> Any:
    """Returns an object as it is when it has been saved as JSON and read back.

    Raises:
        ConfigError: It would not come back, for a field has a value of another type than its own.
    """
    return from_json(to_json(value), type(value))


def _read(data: Any, hint: Any, where: str, find_own: Callable[[str], Any] | None) -> Any:
    """The value of a field with this annotation."""
    allowed = union_members(hint)
    if isinstance(data, dict):
        bases = [kind for kind in allowed if _is_component(kind)]
        if bases:
            return _component(data, bases, where, find_own)
        if "type" not in data and any(_holds(kind, dict) for kind in allowed):
            return {key: _read(item, Any, f"{where}.{key}", find_own) for key, item in data.items()}
    elif isinstance(data, list):
        for kind in allowed:
            if _holds(kind, tuple) or _is_list(kind):
                return _sequence(data, kind, where, find_own)
    elif any(_is_scalar(data, kind) for kind in allowed):
        return data
    words = " or ".join(text for kind in allowed for text in _in_words(kind))
    choices = [item for kind in allowed for item in typing.get_args(kind) if isinstance(item, str)]
    near = did_you_mean(data, choices)
    raise ConfigError(f"{where} = {shortened(data)}: must be {words}{near}")


def _component(
    data: dict[str, Any], bases: list[Any], where: str, find_own: Callable[[str], Any] | None
) -> Any:
    kind = _find_type(data.get("type"), bases, where, find_own)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    given = {key: item for key, item in data.items() if key != "type"}
    for name in given:
        if name not in fields:
            raise ConfigError(
                f"{where}.{name}: {kind.__name__} has no such field; it has "
                f"{', '.join(fields)}{did_you_mean(name, fields)}"
            )
    required = [name for name, field in fields.items() if _default(field) is dataclasses.MISSING]
    if missing := [name for name in required if name not in given]:
        raise ConfigError(f"{where}: {kind.__name__} needs {', '.join(missing)}.")
    hints = _hints(kind)
    values = {
        name: _read(item, hints[name], f"{where}.{name}", find_own) for name, item in given.items()
    }
    try:
        return kind(**values)
    except ConfigError:
        raise
    except Exception as error:  # what the __post_init__ of any class may raise
        raise ConfigError(f"{where}: {kind.__name__} refuses its fields: {error}") from error


def _find_type(
    name: Any, bases: list[Any], where: str, find_own: Callable[[str], Any] | None
) -> type:
    """Looks a component up by its full name, among those that may stand in the field."""
    if isinstance(name, str) and find_own and is_own_name(name):
        found = find_own(name)
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
    data: list[Any], hint: Any, where: str, find_own: Callable[[str], Any] | None
) -> tuple | list:
    kinds = typing.get_args(hint)
    if not kinds or _is_list(hint) or kinds[1:] == (...,):
        kinds = (kinds[0] if kinds else Any,) * len(data)
    if len(kinds) != len(data):
        raise ConfigError(f"{where} = {shortened(data)}: must be a list of {len(kinds)} values")
    pairs = enumerate(zip(data, kinds, strict=True))
    items = [_read(item, kind, f"{where}[{i}]", find_own) for i, (item, kind) in pairs]
    return items if _is_list(hint) else tuple(items)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_component(hint: Any) -> bool:
    return isinstance(hint, type) and hint is not Any and hint.__module__ != "builtins"


def _holds(hint: Any, kind: type) -> bool:
    """Whether an annotation is of this container; what is not annotated may be any."""
    return hint is Any or kind in (hint, typing.get_origin(hint))


def _is_list(hint: Any) -> bool:
    return list in (hint, typing.get_origin(hint))


def _is_scalar(data: Any, hint: Any) -> bool:
    """Whether a scalar is what an annotation says; an integer is a number too, a bool is not."""
    if typing.get_origin(hint) is typing.Literal:
        return any(data == item and type(data) is type(item) for item in typing.get_args(hint))
    if hint in (int, float) and isinstance(data, bool):
        return False
    wider = (int, float) if hint is float else hint
    return hint is Any or (hint in _IN_WORDS and isinstance(data, wider))


def _in_words(hint: Any) -> list[str]:
    """What an annotation allows, as a message says it."""
    if typing.get_origin(hint) is typing.Literal:
        return [repr(item) for item in typing.get_args(hint)]
    if hint in _IN_WORDS:
        return [_IN_WORDS[hint]]
    if _is_component(hint):
        return [f"a component with its type ({', '.join(k.__name__ for k in all_types(hint))})"]
    if typing.get_args(hint):
        kinds = [kind for item in typing.get_args(hint) for kind in union_members(item)]
        inner = [text for kind in kinds if kind is not ... for text in _in_words(kind)]
        return [f"a list of {' or '.join(dict.fromkeys(inner))}"]
    return ["a value without a type (annotate the field with the base class of its components)"]


def summary(value: Any) -> str:
    """Writes a configuration object as Python would, without the fields that have their default."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{summary(item)}, " for item in value).strip() + ")"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [
        f"{field.name}={summary(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if field.init and getattr(value, field.name) != _default(field)
    ]
    return f"{type(value).__name__}({', '.join(shown)})"


def _default(field: dataclasses.Field) -> Any:
    made = field.default_factory is not dataclasses.MISSING
    return field.default_factory() if made else field.default


def diff(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Compares two configuration trees field by field.

    Args:
        old: An object that ``to_json`` accepts.
        new: The other one.

    Returns:
        ``{"model.num_layers": (old value, new value), ...}`` for what differs. Where a component is
        of another type, its fields are not compared; the entry ends in ``.type``.
    """
    return dict(_diff(to_json(old), to_json(new), ""))


def _diff(old: Any, new: Any, where: str) -> Iterable[tuple[str, tuple[Any, Any]]]:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("type") != new.get("type"):
            names = _short(old), _short(new)
            is_one = names[0] == names[1]  # of two modules
            yield f"{where}.type".lstrip("."), (old["type"], new["type"]) if is_one else names
            return
        for key in {**old, **new}:
            yield from _diff(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
    elif old != new:
        yield where, (_short(old), _short(new))


def _short(value: Any) -> Any:
    """A component's class name instead of its JSON; scalars as they are."""
    if isinstance(value, dict) and "type" in value:
        return value["type"].rpartition(".")[2]
    return value
