"""Rules about values that the options of generation and the logits processors share."""

from jaxformer.checks import Rule, is_integer, is_number

_LEAST, _MOST = 1e-30, 1e30
"""The range of factors and terms in which float32 logits neither overflow nor underflow."""
_LARGEST_TOKEN = 2**31 - 1


def _is_number(value) -> bool:
    return is_number(value) and abs(value) <= _MOST


def _is_token(value) -> bool:
    return is_integer(value) and 0 <= value <= _LARGEST_TOKEN


def _are_tokens(value) -> bool:
    return isinstance(value, tuple) and all(map(_is_token, value))


NUMBER = Rule(_is_number, f"a finite number, from {-_MOST} to {_MOST}")
POSITIVE = Rule(
    lambda value: _is_number(value) and value >= _LEAST,
    f"a positive, finite number, from {_LEAST} to {_MOST}",
)
POSITIVE_OR_ZERO = Rule(
    lambda value: _is_number(value) and (value == 0 or value >= _LEAST),
    f"a finite number, at least 0: 0, or from {_LEAST} to {_MOST}",
)
TOKEN = Rule(_is_token, f"a token id from 0 to {_LARGEST_TOKEN}")
TOKENS = Rule(_are_tokens, "a tuple of token ids, such as (0, 5)")
TOKEN_OR_TOKENS = Rule(
    lambda value: _is_token(value) or _are_tokens(value),
    "a token id or a tuple of several, such as (0, 5)",
)
SEQUENCES = Rule(
    lambda value: isinstance(value, tuple) and all(map(_are_tokens, value)) and all(value),
    "a tuple of tuples of token ids, such as ((7,), (3, 5)), none of them empty",
)
STRINGS = Rule(
    lambda value: isinstance(value, tuple) and all(isinstance(s, str) and s for s in value),
    'a tuple of strings, such as ("###",), none of them empty',
)
EARLY_STOPPING = Rule(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "never"),
    'True, False or "never"',
)
