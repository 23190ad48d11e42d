"""Typed command-line overrides for a tree of frozen dataclasses.

``--model.num-layers 6`` sets a field. ``--model.position ALiBi`` puts another component where the
field's type allows several (any concrete dataclass derived from the same base), after which
``--model.position.FIELD`` are the fields of the new one. ``--model.heads Span LanguageModel`` puts
several where there may be several; their fields are ``--model.heads.0.FIELD``. The parsing itself
is tyro's.
"""

import contextlib
import copy
import dataclasses
import difflib
import io
import sys
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import tyro

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.components import all_types, type_name, union_members
from jaxformer.io.paths import check_local_paths


def parse(default: Any, arguments: Sequence[str], prog: str) -> Any:
    """Applies command-line options to a dataclass instance.

    Args:
        default: Gives the type, the allowed options and their defaults.
        arguments: The command line without the program.
        prog: What to call the program in messages.

    Returns:
        A new instance of the same type, validated by its own ``__post_init__``.

    Raises:
        ConfigError: An unknown option or component; names the nearest spelling. Or a URL where a
            path belongs.
        SystemExit: Status 0 after ``--help``, 2 where a value does not parse (tyro prints why).
    """
    tree, remaining = _choose_components(default, arguments)
    asks_help = "--help" in remaining or "-h" in remaining
    if not asks_help:
        _check_names(tree, remaining)
    try:
        with _shortened_errors():
            parsed = tyro.cli(
                type(default),
                default=tree,
                args=remaining,
                prog=prog,
                config=(tyro.conf.AvoidSubcommands,),
            )
        check_local_paths(parsed)
        return parsed
    finally:
        if asks_help:
            _print_components(tree)


@contextlib.contextmanager
def _shortened_errors() -> Iterator[None]:
    """What tyro says of a value it repeats, however long that is: its middle is left out."""
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written):
            yield
    finally:
        lines = written.getvalue().splitlines()
        cut = [*lines[:12], "  ...", *lines[-8:]] if len(lines) > 24 else lines
        print("".join(f"{line}\n" for line in cut), end="", file=sys.stderr)


def given(arguments: Sequence[str]) -> set[str]:
    """Returns the names of the fields that a command line sets: ``--no-do-sample``: do_sample."""
    names = {".".join(_path(option)) for option, _ in _groups(arguments) if option}
    return names | {name.removeprefix("no_") for name in names}


def component_choices(owner: Any, name: str) -> dict[str, Any]:
    """Returns what may stand in a field, by name; empty where it is no component.

    Args:
        owner: The dataclass instance that has the field.
        name: The field.

    Returns:
        ``{"RoPE": RoPE, ...}``, with the full name of a class where another has the same, with
        ``"None": None`` where the field is optional, and with the words it allows.
    """
    hint = typing.get_type_hints(type(owner))[name]
    members = typing.get_args(hint) if _is_tuple(hint) else union_members(hint)
    found: dict[str, Any] = {}
    for kind in (kind for member in members for kind in all_types(member)):
        taken = found.get(kind.__name__)
        is_other = taken is not None and type_name(taken) != type_name(kind)
        found[type_name(kind) if is_other else kind.__name__] = kind
    if found:
        words = [word for member in members for word in typing.get_args(member)]
        found |= {word: word for word in words if isinstance(word, str)}
    if found and type(None) in members:
        found["None"] = None
    return found if len(found) > 1 else {}


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _choose_components(tree: Any, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Replaces ``--path.to.field Name`` by the component of that name, outer ones first.

    A field of the one component that may stand where there is None chooses that component.
    """
    remaining, chosen = [], []
    for option, values in sorted(_groups(arguments), key=lambda group: group[0].count(".")):
        path = _path(option)
        owner = tree
        for name in path[:-1]:
            owner = _child(owner, name)
        is_field = dataclasses.is_dataclass(owner) and path[-1] in _field_names(owner)
        choices = component_choices(owner, path[-1]) if is_field else {}
        if choices:
            several = _is_tuple(typing.get_type_hints(type(owner))[path[-1]])
            words = values if several else [" ".join(values)]
            picked = tuple(_chosen(option, word, choices) for word in words)
            tree = _replaced(tree, path, picked if several else picked[0])
            chosen.append(path)
        else:
            tree = _with_implied(tree, path, chosen)
            remaining += [option, *values]
    return tree, remaining


def _with_implied(tree: Any, path: list[str], chosen: list[list[str]]) -> Any:
    """Puts the only component there is where the path of an option leads through None."""
    owner = tree
    for depth, name in enumerate(path[:-1], 1):
        is_field = dataclasses.is_dataclass(owner) and name in _field_names(owner)
        if is_field and getattr(owner, name) is None and path[:depth] not in chosen:
            choices = component_choices(owner, name).values()
            kinds = [kind for kind in choices if isinstance(kind, type)]
            if len(kinds) != 1:
                return tree
            tree = _replaced(tree, path[:depth], _unvalidated(kinds[0]))
            return _with_implied(tree, path, chosen)
        owner = _child(owner, name)
    return tree


def _chosen(option: str, given: str, choices: dict[str, Any]) -> Any:
    spelled = {name.lower(): name for name in choices}
    name = spelled.get(given.lower()) or spelled.get(given.lower().replace("-", ""))
    if name is None:
        hint = did_you_mean(given, choices)
        raise ConfigError(f"{option}: got {given!r}; choose one of {', '.join(choices)}{hint}")
    return _unvalidated(choices[name]) if isinstance(choices[name], type) else choices[name]


def _unvalidated(kind: type) -> Any:
    """An instance whose required fields are still missing; tyro asks for them and validates."""
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value: Any = tyro.MISSING
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(instance, field.name, value)
    return instance


def _replaced(tree: Any, path: list[str], value: Any) -> Any:
    """A copy of the tree with one field changed and nothing validated yet."""
    if not path:
        return value
    if isinstance(tree, tuple):
        place = int(path[0])
        return (*tree[:place], _replaced(tree[place], path[1:], value), *tree[place + 1 :])
    tree = copy.copy(tree)
    object.__setattr__(tree, path[0], _replaced(getattr(tree, path[0]), path[1:], value))
    return tree


def _check_names(tree: Any, arguments: Sequence[str]) -> None:
    flags = dict(_options(tree))
    for option, values in _groups(arguments):
        name = "--" + ".".join(_path(option)).replace("_", "-")
        if name not in flags:
            raise ConfigError(_unknown_option(option, name, list(flags)))
        if flags[name] is bool and values:
            raise ConfigError(
                f"{option} takes no value, got {' '.join(values)!r}: write one of "
                f"{', '.join(_spellings(name.replace('.no-', '.')))}."
            )


def _unknown_option(option: str, name: str, allowed: list[str]) -> str:
    """What to say of an option that there is not: the nearest spelling, by its last word first."""
    group, word = _split(name)
    likeness = {item: _likeness(word, _split(item)[1]) for item in allowed}
    closest = max(likeness.values())
    if closest >= 0.6:
        alike = [item for item in allowed if likeness[item] == closest]
        whole = {item: _likeness(name, item) for item in alike}
        best = [item for item in alike if not group or whole[item] == max(whole.values())]
        return f"Unknown option {option}; did you mean {' or '.join(best[:4])}?"
    siblings = [item for item in allowed if _split(item)[0] == group]
    listed = ", ".join((siblings or allowed)[:12])
    return f"Unknown option {option}; there are {listed}; --help lists them all."


def _likeness(given: str, word: str) -> float:
    """How alike two spellings are, 0 to 1: `lr`, `rate` and `learning-rates` to `learning-rate`."""
    parts = word.split("-")
    if len(given) > 1 and given == "".join(part[:1] for part in parts):
        return 0.9
    ratio = difflib.SequenceMatcher(None, given, word).ratio()
    words, own = {*given.split("-")}, {*parts}
    return 0.85 + ratio / 10 if words < own or own < words else ratio


def _split(option: str) -> tuple[str, str]:
    """An option's group and its last word: ``--model.num-layers`` -> model, num-layers."""
    group, _, word = option.removeprefix("--").rpartition(".")
    return group, word


def _options(tree: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Every option that tyro makes of the tree, with the type of its field."""
    hints = typing.get_type_hints(type(tree))
    for name in _field_names(tree):
        option = prefix + name.replace("_", "-")
        if parts := _parts(getattr(tree, name), option):
            for inner, part in parts:
                yield from _options(part, inner + ".")
        else:
            for spelling in _spellings(option) if hints[name] is bool else (option,):
                yield spelling, hints[name]


def _spellings(flag: str) -> tuple[str, str]:
    """The two options of a boolean field."""
    group, word = _split(flag)
    return flag, f"--{group}.no-{word}" if group else f"--no-{word}"


def _print_components(tree: Any) -> None:
    print("Components, chosen by name; their own options follow the choice:")
    for prefix, owner in _owners(tree, "--"):
        for name in _field_names(owner):
            if choices := component_choices(owner, name):
                option, value = prefix + name.replace("_", "-"), getattr(owner, name)
                parts = [type(part).__name__ for _, part in _parts(value, option)]
                now = " ".join(parts) or ("nothing" if value == () else value)
                print(f"  {option} {{{','.join(choices)}}} (now {now})")


def _owners(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    yield prefix, tree
    for name in _field_names(tree):
        for option, part in _parts(getattr(tree, name), prefix + name.replace("_", "-")):
            yield from _owners(part, option + ".")


def _parts(value: Any, option: str) -> list[tuple[str, Any]]:
    """The components in a field and the option of each: that of the field, or numbered."""
    if dataclasses.is_dataclass(value):
        return [(option, value)]
    several = isinstance(value, tuple) and all(dataclasses.is_dataclass(item) for item in value)
    return [(f"{option}.{i}", item) for i, item in enumerate(value)] if several else []


def _child(owner: Any, name: str) -> Any:
    """A field of a dataclass or an item of a tuple; None where there is none."""
    if isinstance(owner, tuple):
        return owner[int(name)] if name.isdecimal() and int(name) < len(owner) else None
    return getattr(owner, name, None)


def _groups(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Splits a command line into options, each with the values that follow it."""
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


def _path(option: str) -> list[str]:
    return option.removeprefix("--").replace("-", "_").split(".")


def _field_names(tree: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(tree) if field.init]
