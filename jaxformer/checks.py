"""Rules about values: what a field or an argument may be, and how a message says it."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any, NamedTuple

from jaxformer.errors import check_field


def check_types(owner: object) -> None:
    """Raises ConfigError unless each field of a frozen dataclass holds what its annotation says.

    Scalars of NumPy and JAX become Python's and lists become tuples, so that a configuration can
    be hashed and written as JSON. Annotations other than scalars, `Literal`, unions, tuples and
    classes are not looked at.

    Args:
        owner: A dataclass whose fields are set; its `__post_init__` calls this first.
    """
    for field, rule in rules_of(type(owner)).items():
        value = _settled(getattr(owner, field))
        object.__setattr__(owner, field, value)
        hint = "" if rule.allows(value) else _nearest(value, rule)
        check_field(owner, field, rule.allows(value), rule.expected + hint)


class Rule(NamedTuple):
    """Which values are allowed, and the words that follow "must be" for any other."""

    allows: Callable[[Any], bool]
    expected: str
    choices: tuple[str, ...] = ()
    """The names among which to choose, if it is names."""


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy, and no bool; NaN is one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def one_of(choices: Sequence[Any]) -> Rule:
    """Some names, or other constants."""
    shown = [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices]
    names = tuple(choice for choice in choices if isinstance(choice, str))

    def allows(value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in choices)

    return Rule(allows, _joined(shown), names)


def plain(value: Any) -> Any:
    """A value with Python's scalars for those of NumPy and JAX, in tuples too."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if getattr(value, "shape", None) == () else value


@cache
def rules_of(kind: type) -> dict[str, Rule]:
    """The rule of each field of a dataclass, by its annotation."""
    try:
        annotations = typing.get_type_hints(kind)
    except NameError:  # a name that is known only where the class was defined
        return {}
    return {field.name: rule_of(annotations[field.name]) for field in dataclasses.fields(kind)}


_SCALARS = {
    bool: Rule(lambda value: isinstance(value, bool), "True or False"),
    int: Rule(is_integer, "an integer"),
    float: Rule(is_number, "a number"),
    str: Rule(lambda value: isinstance(value, str), "a string"),
    type(None): Rule(lambda value: value is None, "None"),
}


def rule_of(annotation: Any) -> Rule:
    """The values that an annotation allows: all of them where it is of another kind."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is typing.Literal:
        return one_of(parts)
    if origin in (typing.Union, types.UnionType):
        rules = [rule_of(part) for part in parts]
        choices = tuple(choice for rule in rules for choice in rule.choices)
        return Rule(
            lambda value: any(rule.allows(value) for rule in rules),
            _joined([rule.expected for rule in rules]),
            choices,
        )
    if origin is tuple and parts[-1] is ...:
        each = rule_of(parts[0])
        return Rule(
            lambda value: isinstance(value, tuple) and all(map(each.allows, value)),
            f"a tuple, each of it {each.expected}",
        )
    if origin is tuple:
        rules = [rule_of(part) for part in parts]
        return Rule(
            lambda value: (
                isinstance(value, tuple)
                and len(value) == len(rules)
                and all(rule.allows(part) for rule, part in zip(rules, value, strict=True))
            ),
            f"a tuple of {len(rules)}: {', '.join(rule.expected for rule in rules)}",
        )
    if isinstance(annotation, type) and not getattr(annotation, "_is_protocol", False):
        below = annotation.__subclasses__()
        example = f", such as {below[0].__name__}()" if below else ""
        article = "an" if annotation.__name__[0] in "AEIOU" else "a"
        expected = f"{article} {annotation.__name__}{example}"
        return Rule(lambda value: isinstance(value, annotation), expected)
    return Rule(lambda value: True, "anything")


def _joined(names: list[str]) -> str:
    """Names as a sentence lists them."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _nearest(value: object, rule: Rule) -> str:
    """A phrase naming the choice closest to what was written, or an empty string."""
    near = difflib.get_close_matches(value, rule.choices, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _settled(value: Any) -> Any:
    """A value as a configuration keeps it: without scalars of NumPy and JAX, and without lists."""
    return tuple(map(_settled, value)) if type(value) in (list, tuple) else plain(value)
