"""Configuration objects as JSON: ``{"type": "module.QualName", "field": value, ...}`` and back.

Reading is strict: a field that the class does not have, a type that is not a dataclass of jaxformer
(or of a module that the program has imported already) and a value that JSON cannot express are
errors, so a file that loads means what it says.
"""

import dataclasses
import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any

from jaxformer.errors import ConfigError

_SCALARS = (bool, int, float, str, type(None))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Returns a phrase naming the allowed spelling closest to ``name``, or an empty string."""
    spelled = {item.lower(): item for item in allowed}
    found = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f" Did you mean {spelled[found[0]]!r}?" if found else ""


def to_json(value: Any) -> Any:
    """Turns a tree of frozen dataclasses, tuples and scalars into what ``json.dump`` writes.

    Args:
        value: A dataclass instance, tuple, list, string-keyed dict, string, number, bool or None;
            nested at will.

    Returns:
        Dictionaries, lists and scalars. A dataclass becomes ``{"type": "module.QualName", ...}``.

    Raises:
        ConfigError: A value has no JSON form; the message names the field it sits in.
    """
    return _to_json(value, "config")


def _to_json(value: Any, where: str) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        fields = {
            field.name: _to_json(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"type": f"{kind.__module__}.{kind.__qualname__}", **fields}
    if isinstance(value, (tuple, list)):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _to_json(item, f"{where}.{key}") for key, item in value.items()}
    raise ConfigError(f"{where}: a {type(value).__name__} cannot be saved as JSON ({value!r}).")


def from_json(data: Any) -> Any:
    """Rebuilds the object that ``to_json`` wrote.

    Args:
        data: What ``json.load`` returned. Lists come back as tuples.

    Returns:
        The object; its own ``__post_init__`` has validated it.

    Raises:
        ConfigError: An unknown type or field (with the allowed ones and the nearest spelling), or a
            missing field.
    """
    return _from_json(data, "config")


def _from_json(data: Any, where: str) -> Any:
    if isinstance(data, _SCALARS):
        return data
    if isinstance(data, list):
        return tuple(_from_json(item, f"{where}[{i}]") for i, item in enumerate(data))
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: cannot read a {type(data).__name__} ({data!r}).")
    if "type" not in data:
        return {key: _from_json(item, f"{where}.{key}") for key, item in data.items()}
    kind = _find_type(data["type"], where)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    given = {key: item for key, item in data.items() if key != "type"}
    for name in given:
        if name not in fields:
            raise ConfigError(
                f"{where}.{name}: {kind.__name__} has no such field; it has "
                f"{', '.join(fields)}.{nearest(name, fields)}"
            )
    required = [name for name, field in fields.items() if _default(field) is dataclasses.MISSING]
    if missing := [name for name in required if name not in given]:
        raise ConfigError(f"{where}: {kind.__name__} needs {', '.join(missing)}.")
    return kind(**{name: _from_json(item, f"{where}.{name}") for name, item in given.items()})


def _find_type(name: Any, where: str) -> type:
    """Looks a dataclass up by its full name; imports nothing outside of jaxformer."""
    module_name, _, qualified = str(name).rpartition(".")
    while module_name and module_name not in sys.modules:
        if module_name.split(".")[0] == "jaxformer":
            try:
                importlib.import_module(module_name)
                break
            except ModuleNotFoundError:
                pass
        module_name, _, outer = module_name.rpartition(".")
        qualified = f"{outer}.{qualified}"
    found: Any = sys.modules.get(module_name)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and dataclasses.is_dataclass(found):
        return found
    siblings = [
        key
        for key, item in vars(sys.modules.get(module_name, object)).items()
        if isinstance(item, type) and dataclasses.is_dataclass(item)
    ]
    raise ConfigError(
        f"{where}: {name!r} is not a known type: only dataclasses of jaxformer and of modules "
        f"imported already can be read.{nearest(qualified, siblings)}"
    )


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
            yield f"{where}.type".lstrip("."), (_short(old), _short(new))
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
