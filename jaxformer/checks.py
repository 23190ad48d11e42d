"""Rules for valid values of fields and arguments, with descriptions for error messages."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, NamedTuple

from jaxformer.errors import ArgumentError, ConfigError, did_you_mean, shortened


class Rule(NamedTuple):
    """A predicate for valid values, and the phrase after "must be" in error messages."""

    allows: Callable[[Any], bool]
    expected: str
    choices: tuple[str, ...] = ()
    """The names among the allowed values, for suggestions."""


def check_argument(name: str, value: object, valid: bool, expected: str) -> None:
    """Raises ArgumentError unless `valid`: "softcap = 0: must be a positive, finite number"."""
    if not valid:
        raise ArgumentError(f"{name} = {shortened(value)}: must be {expected}")


def check_arguments(**arguments: tuple[Any, Rule]) -> None:
    """Raises ArgumentError unless the rule of each argument, `name=(value, rule)`, allows it."""
    for name, (value, rule) in arguments.items():
        check_argument(name, value, rule.allows(value), rule.expected)


def check_field(
    owner: object, field: str, valid: bool, expected: str, section: str | None = None
) -> None:
    """Raises ConfigError unless `valid`: "model.num_layers = 0: must be ..."."""
    if not valid:
        name = f"{section or type(owner).__name__}.{field}"
        raise ConfigError(f"{name} = {shortened(getattr(owner, field))}: must be {expected}")


def check_types(owner: object, section: str | None = None) -> None:
    """Checks that each field of a frozen dataclass has a value of its annotated type.

    NumPy and JAX scalars become Python scalars, lists become tuples and paths become strings, so
    that a configuration can be hashed and written as JSON. Annotations other than scalars,
    `Literal`, unions, tuples and classes are not checked.
    """
    for field, rule in rules_of(type(owner)).items():
        value = _hashable(getattr(owner, field))
        if isinstance(value, PurePath) and not rule.allows(value):
            value = str(value)
        object.__setattr__(owner, field, value)
        hint = "" if rule.allows(value) else did_you_mean(value, rule.choices)
        check_field(owner, field, rule.allows(value), rule.expected + hint, section)


def check_fields(owner: object, section: str | None = None, /, **rules: Rule) -> None:
    """Checks fields of a frozen dataclass; NumPy and JAX scalars become Python ones."""
    for field, rule in rules.items():
        value = plain(getattr(owner, field))
        check_field(owner, field, rule.allows(value), rule.expected, section)
        object.__setattr__(owner, field, value)


def is_integer(value: Any) -> bool:
    """Whether a value is a Python or NumPy integer; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a Python or NumPy real number; NaN is, a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Returns a value with NumPy and JAX scalars as Python ones, also inside tuples."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if getattr(value, "shape", None) == () else value


def one_of(choices: Sequence[Any]) -> Rule:
    """Returns a rule that allows some names or other constants, including their type."""
    shown = [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices]
    names = tuple(choice for choice in choices if isinstance(choice, str))

    def allows(value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in choices)

    return Rule(allows, _joined(shown), names)


def optional(rule: Rule) -> Rule:
    """Returns a rule that also allows None."""
    return Rule(lambda value: value is None or rule.allows(value), f"{rule.expected}, or None")


def at_least(least: int) -> Rule:
    """Returns a rule that allows integers of at least `least`."""
    return Rule(
        lambda value: is_integer(value) and value >= least, f"an integer of at least {least}"
    )


def between(least: int, most: int) -> Rule:
    """Returns a rule that allows integers from `least` to `most`."""
    return Rule(
        lambda value: is_integer(value) and least <= value <= most,
        f"an integer from {least} to {most}",
    )


def multiple_of(factor: int) -> Rule:
    """Returns a rule that allows positive multiples of an integer."""
    return Rule(
        lambda value: is_integer(value) and value >= factor and value % factor == 0,
        f"a multiple of {factor}, at least {factor}",
    )


def above(limit: float) -> Rule:
    """Returns a rule that allows finite numbers above a limit."""
    return Rule(lambda value: _is_finite(value) and value > limit, f"a finite number above {limit}")


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


FINITE = Rule(_is_finite, "a finite number")
POSITIVE = Rule(lambda value: _is_finite(value) and value > 0, "a positive, finite number")
NOT_NEGATIVE = Rule(lambda value: _is_finite(value) and value >= 0, "a finite number of at least 0")
PROBABILITY = Rule(lambda value: _is_finite(value) and 0 <= value <= 1, "a number from 0 to 1")
FRACTION = Rule(lambda value: _is_finite(value) and 0 < value < 1, "a number between 0 and 1")
RATE = Rule(lambda value: _is_finite(value) and 0 <= value < 1, "a number from 0 to below 1")
SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")


@cache
def rules_of(kind: type) -> dict[str, Rule]:
    """Returns the rule of each field of a dataclass, from its annotation."""
    try:
        annotations = typing.get_type_hints(kind)
    except NameError:  # a name that is not in the module's scope
        return {}
    return {field.name: rule_of(annotations[field.name]) for field in dataclasses.fields(kind)}


_SCALARS = {
    bool: SWITCH,
    int: Rule(is_integer, "an integer"),
    float: Rule(is_number, "a number"),
    str: Rule(lambda value: isinstance(value, str), "a string"),
    type(None): Rule(lambda value: value is None, "None"),
}


def rule_of(annotation: Any) -> Rule:
    """Returns the rule for an annotation; annotations not handled here allow any value."""
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
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
            f"a tuple whose items are each {each.expected}",
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
    """Joins names as in a sentence."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _hashable(value: Any) -> Any:
    """Converts NumPy and JAX scalars to Python scalars and lists to tuples."""
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else plain(value)
