"""The command line of a tree of frozen dataclasses, parsed by tyro.

``--model.num-layers 6`` sets a field. ``--model.position ALiBi`` replaces a component by another
concrete dataclass with the same base, after which ``--model.position.FIELD`` sets the fields of the
new one. ``--model.heads Span LanguageModel`` sets a tuple of components, whose fields are
``--model.heads.0.FIELD``.
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import io
import sys
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from jaxformer.config.options import child, current_name, groups, keep_moved_fields, path_of
from jaxformer.errors import ArgumentError, ConfigError, did_you_mean
from jaxformer.io.components import all_types, source_of, type_name, union_members
from jaxformer.io.paths import check_paths
from jaxformer.io.serialization import default_of


def parse(default: Any, arguments: Sequence[str], prog: str) -> Any:
    """Parses a command line into a dataclass."""
    tree = _unvalidated(default) if isinstance(default, type) else default
    tree, remaining = _choose_components(tree, arguments)
    asks_help = "--help" in remaining or "-h" in remaining
    if not asks_help:
        _check_names(tree, remaining)
    try:
        with _short_errors():
            parsed = tyro.cli(
                type(tree),
                default=tree,
                args=remaining,
                prog=prog,
                config=(tyro.conf.AvoidSubcommands,),
                registry=_literals_as_options(tree) if asks_help else None,
            )
        check_paths(parsed)
        return parsed
    finally:
        if asks_help:
            _print_components(tree)


def _literals_as_options(tree: Any) -> ConstructorRegistry:
    """Makes the help show fields with a literal or a component as options, like all others."""
    registry = ConstructorRegistry()
    for _, owner in _owners(tree, "--"):
        hints = typing.get_type_hints(type(owner))
        for name in _field_names(owner):
            if isinstance(getattr(owner, name), str) and (found := component_choices(owner, name)):
                registry.primitive_rule(functools.partial(_as_literal, hints[name], tuple(found)))
    return registry


def _as_literal(
    hint: Any, choices: tuple[str, ...], info: PrimitiveTypeInfo
) -> PrimitiveConstructorSpec | None:
    if info.type != hint:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(choices) + "}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: True,
        str_from_instance=lambda value: [value if isinstance(value, str) else type(value).__name__],
    )


@contextlib.contextmanager
def _short_errors() -> Iterator[None]:
    """Re-raises validation errors of a dataclass; shortens tyro's messages, which repeat them."""
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written):
            yield
    except SystemExit as stop:
        error: BaseException | None = stop
        while error is not None and not isinstance(error, ArgumentError):
            error = error.__cause__ or error.__context__
        if error is not None:
            written = io.StringIO()  # tyro's box around the same sentence
            raise error from None
        raise
    finally:
        lines = written.getvalue().splitlines()
        cut = [*lines[:12], "  ...", *lines[-8:]] if len(lines) > 24 else lines
        print("".join(f"{line}\n" for line in cut), end="", file=sys.stderr)


def component_choices(owner: Any, name: str) -> dict[str, Any]:
    """Returns the components that a field allows, by name; empty for other fields."""
    hint = typing.get_type_hints(type(owner))[name]
    members = typing.get_args(hint) if _is_tuple(hint) else union_members(hint)
    found: dict[str, Any] = {}
    kinds = (kind for member in members for kind in all_types(member))
    for kind in (kind for kind in kinds if not _has_models(kind)):
        taken = found.get(kind.__name__)
        is_other = taken is not None and type_name(taken) != type_name(kind)
        found[type_name(kind) if is_other else kind.__name__] = kind
    if any(map(dataclasses.is_dataclass, members)):
        words = [word for member in members for word in typing.get_args(member)]
        found |= {word: word for word in words if isinstance(word, str)}
    if found and type(None) in members:
        found["None"] = None
    return found if len(found) > 1 or _is_tuple(hint) else {}


def _has_models(kind: type) -> bool:
    """Whether a class requires components that contain lists of components, as composites do."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    needed = [field.name for field in fields if default_of(field) is dataclasses.MISSING]
    # Annotations of user code are only evaluated when needed.
    hints = typing.get_type_hints(kind) if needed else {}
    parts = [part for name in needed for part in union_members(hints[name]) if all_types(part)]
    return any(_is_tuple(hint) for part in parts for hint in typing.get_type_hints(part).values())


def _is_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _is_positional(owner: Any, name: str) -> bool:
    hint = typing.get_type_hints(type(owner), include_extras=True)[name]
    return tyro.conf.Positional in typing.get_args(hint)


def _choose_components(tree: Any, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Applies every ``--path.to.field Name`` that names a component, outer ones first."""
    remaining, chosen = [], []
    given = [(current_name(tree, option), values) for option, values in groups(arguments)]
    for option, values in sorted(given, key=lambda group: group[0].count(".")):
        path = path_of(option)
        if (meant := _canonical_path(tree, path)) != path:
            path = meant
            option = "--" + ".".join(meant).replace("_", "-")
        owner = tree
        for name in path[:-1]:
            owner = child(owner, name)
        is_field = dataclasses.is_dataclass(owner) and path[-1] in _field_names(owner)
        choices = component_choices(owner, path[-1]) if is_field else {}
        if choices:
            several = _is_tuple(typing.get_type_hints(type(owner))[path[-1]])
            words = values if several else [" ".join(values)]
            picked = tuple(_chosen(option, word, choices) for word in words)
            if not several:
                keep_moved_fields(owner, path[-1], picked[0])
            tree = _replaced(tree, path, picked if several else picked[0])
            chosen.append(path)
        else:
            tree = _with_only_components(tree, path, chosen)
            remaining += [option, *values] if option else values
    return tree, remaining


def _canonical_path(tree: Any, path: list[str]) -> list[str]:
    """Returns the path of an option with the aliases in `also_called` replaced by field names."""
    owner, names = tree, []
    for name in path:
        fields = _field_names(owner) if dataclasses.is_dataclass(owner) else []
        own = getattr(type(owner), "also_called", {}).get(name)
        names.append(own if own in fields and name not in fields else name)
        owner = child(owner, names[-1])
    return names


def _with_only_components(tree: Any, path: list[str], chosen: list[list[str]]) -> Any:
    """Replaces None on the path of an option by the only component that the field allows."""
    owner = tree
    for depth, name in enumerate(path[:-1], 1):
        is_field = dataclasses.is_dataclass(owner) and name in _field_names(owner)
        if is_field and getattr(owner, name) is None and path[:depth] not in chosen:
            kinds = [k for k in component_choices(owner, name).values() if isinstance(k, type)]
            if len(kinds) != 1:
                return tree
            tree = _replaced(tree, path[:depth], _unvalidated(kinds[0]))
            return _with_only_components(tree, path, chosen)
        owner = child(owner, name)
    return tree


def _chosen(option: str, given: str, choices: dict[str, Any]) -> Any:
    spelled = {name.lower(): name for name in choices}
    name = spelled.get(given.lower()) or spelled.get(given.lower().replace("-", ""))
    if name is None:
        if source := source_of(given, choices.values()):
            return source
        hint = did_you_mean(given, choices)
        if any(hasattr(kind, "reads") for kind in choices.values()):
            hint = hint or ", or the path of an existing file or folder"
        raise ConfigError(f"{option}: got {given!r}; choose one of {', '.join(choices)}{hint}")
    return _unvalidated(choices[name]) if isinstance(choices[name], type) else choices[name]


def _unvalidated(kind: type) -> Any:
    """Returns an instance without its required fields, which tyro sets before validation."""
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        default = default_of(field)
        missing = default is dataclasses.MISSING
        object.__setattr__(instance, field.name, tyro.MISSING if missing else default)
    return instance


def _replaced(tree: Any, path: list[str], value: Any) -> Any:
    """Returns a copy of the tree with one field changed, without validation."""
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
    has_positionals = any(_is_positional(tree, name) for name in _field_names(tree))
    for option, values in groups(arguments):
        if has_positionals and not option:
            has_positionals = False  # values follow a flag, which takes none
            continue
        name = "--" + ".".join(path_of(option or values[0])).replace("_", "-")
        if name not in flags:
            raise ConfigError(_unknown_option(option or values[0], name, list(flags)))
        if flags[name] is bool and values and not has_positionals:
            raise ConfigError(
                f"{option} takes no value, got {' '.join(values)!r}: write one of "
                f"{', '.join(_spellings(name.replace('.no-', '.')))}."
            )


def _unknown_option(option: str, name: str, allowed: list[str]) -> str:
    """Returns the message for an unknown option, with the most similar options."""
    if not allowed:
        return f"Unknown option {option}; no options are available, see --help"
    group, word = _split(name)
    similarity = {item: _similarity(word, _split(item)[1]) for item in allowed}
    closest = max(similarity.values())
    if closest >= 0.6:
        alike = [item for item in allowed if similarity[item] == closest]
        whole = {item: _similarity(name, item) for item in alike}
        best = [item for item in alike if not group or whole[item] == max(whole.values())]
        return f"Unknown option {option}; did you mean {' or '.join(best[:4])}?"
    siblings = [item for item in allowed if _split(item)[0] == group]
    listed = ", ".join((siblings or allowed)[:12])
    return f"Unknown option {option}; available options are {listed}; --help lists them all."


def _similarity(given: str, word: str) -> float:
    """Returns the similarity of two names, from 0 to 1; high for `lr` or `rate` and
    `learning-rate`.
    """
    parts = word.split("-")
    if len(given) > 1 and given == "".join(part[:1] for part in parts):
        return 0.9
    ratio = difflib.SequenceMatcher(None, given, word).ratio()
    words, own = {*given.split("-")}, {*parts}
    return 0.85 + ratio / 10 if words < own or own < words else ratio


def _split(option: str) -> tuple[str, str]:
    """Splits an option into its group and its name: ``--model.num-layers`` -> model, num-layers."""
    group, _, word = option.removeprefix("--").rpartition(".")
    return group, word


def _options(tree: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yields every option that tyro derives from the tree, with the type of its field."""
    hints = typing.get_type_hints(type(tree))
    for name in _field_names(tree):
        if _is_positional(tree, name):
            continue
        option = prefix + name.replace("_", "-")
        if parts := _parts(getattr(tree, name), option):
            for inner, part in parts:
                yield from _options(part, inner + ".")
        else:
            for spelling in _spellings(option) if hints[name] is bool else (option,):
                yield spelling, hints[name]


def _spellings(flag: str) -> tuple[str, str]:
    """Returns the two options of a boolean field."""
    group, word = _split(flag)
    return flag, f"--{group}.no-{word}" if group else f"--no-{word}"


def _print_components(tree: Any) -> None:
    lines = []
    for prefix, owner in _owners(tree, "--"):
        for name in _field_names(owner):
            if choices := component_choices(owner, name):
                option = prefix + name.replace("_", "-")
                value = getattr(owner, name)
                parts = [type(part).__name__ for _, part in _parts(value, option)]
                now = " ".join(parts) or ("nothing" if value == () else value)
                lines.append(f"  {option} {{{','.join(choices)}}} (now {now})")
    if lines:
        print("Components, chosen by name; the options of a component follow the choice:")
        print("\n".join(lines))


def _owners(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    yield prefix, tree
    for name in _field_names(tree):
        for option, part in _parts(getattr(tree, name), prefix + name.replace("_", "-")):
            yield from _owners(part, option + ".")


def _parts(value: Any, option: str) -> list[tuple[str, Any]]:
    """Returns the components in a field with their options; items of a tuple are numbered."""
    if dataclasses.is_dataclass(value):
        return [(option, value)]
    several = isinstance(value, tuple) and all(dataclasses.is_dataclass(item) for item in value)
    return [(f"{option}.{i}", item) for i, item in enumerate(value)] if several else []


def _field_names(tree: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(tree) if field.init]
