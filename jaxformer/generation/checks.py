"""What a setting of generation may be: the rules that processors and options share."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

from jaxformer.errors import check_field


class Rule(NamedTuple):
    """Which values are allowed, and the words that follow "must be" for any other."""

    allows: Callable[[Any], bool]
    expected: str


def check(owner: object, **rules: Rule) -> None:
    """Raises ConfigError for the first field of `owner` that its rule does not allow."""
    for field, rule in rules.items():
        check_field(owner, field, rule.allows(getattr(owner, field)), rule.expected)


def optional(rule: Rule) -> Rule:
    """The same rule for a field that may be None."""
    return Rule(lambda value: value is None or rule.allows(value), f"{rule.expected}, or None")


def at_least(least: int) -> Rule:
    """The integers from `least` on."""
    return Rule(
        lambda value: _is_integer(value) and value >= least, f"an integer, at least {least}"
    )


def _is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_token(value) -> bool:
    return _is_integer(value) and value >= 0


def _are_tokens(value) -> bool:
    return isinstance(value, tuple) and all(map(_is_token, value))


NUMBER = Rule(_is_number, "a finite number")
POSITIVE = Rule(lambda value: _is_number(value) and value > 0, "a positive, finite number")
NOT_NEGATIVE = Rule(lambda value: _is_number(value) and value >= 0, "a finite number, at least 0")
PROBABILITY = Rule(lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1")
SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
TOKEN = Rule(_is_token, "the number of a token, at least 0")
TOKENS = Rule(_are_tokens, "a tuple of numbers of tokens, such as (0, 5)")
TOKEN_OR_TOKENS = Rule(
    lambda value: _is_token(value) or _are_tokens(value),
    "the number of a token or a tuple of several, such as (0, 5)",
)
SEQUENCES = Rule(
    lambda value: isinstance(value, tuple) and all(map(_are_tokens, value)) and all(value),
    "a tuple of tuples of numbers of tokens, such as ((7,), (3, 5)), none of them empty",
)
STRINGS = Rule(
    lambda value: isinstance(value, tuple) and all(isinstance(s, str) and s for s in value),
    'a tuple of strings, such as ("###",), none of them empty',
)
EARLY_STOPPING = Rule(
    lambda value: isinstance(value, bool) or value == "never", 'True, False or "never"'
)
