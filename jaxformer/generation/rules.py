"""The rules of the options of generation."""

from jaxformer.checks import (
    PROBABILITY,
    SWITCH,
    Rule,
    at_least,
    between,
    is_integer,
    is_number,
    optional,
)

_LEAST, _MOST = 1e-30, 1e30
"""The range of factors and terms in which float32 logits neither overflow nor underflow."""
_LARGEST_TOKEN = 2**31 - 1


def _is_number(value) -> bool:
    return is_number(value) and abs(value) <= _MOST


def _is_token(value) -> bool:
    return is_integer(value) and 0 <= value <= _LARGEST_TOKEN


def _are_tokens(value) -> bool:
    return isinstance(value, tuple) and all(map(_is_token, value))


def _is_pair(value) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_bias(value) -> bool:
    return _is_pair(value) and bool(value[0]) and _are_tokens(value[0]) and _is_number(value[1])


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
BIASES = Rule(
    lambda value: isinstance(value, tuple) and all(map(_is_bias, value)),
    "a tuple of pairs, each of token ids and a finite number, such as (((3, 5), -1.5),)",
)
DECAY = Rule(
    lambda value: _is_pair(value) and at_least(0).allows(value[0]) and POSITIVE.allows(value[1]),
    "a number of tokens and a positive factor, such as (20, 1.05)",
)
STRINGS = Rule(
    lambda value: isinstance(value, tuple) and all(isinstance(s, str) and s for s in value),
    'a tuple of strings, such as ("###",), none of them empty',
)
EARLY_STOPPING = Rule(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "never"),
    'True, False or "never"',
)

RULES = {
    "max_new_tokens": at_least(1),
    "max_length": optional(at_least(1)),
    "min_new_tokens": at_least(0),
    "min_length": at_least(0),
    "eos_token_id": optional(TOKEN_OR_TOKENS),
    "pad_token_id": optional(TOKEN),
    "stop_strings": STRINGS,
    "do_sample": SWITCH,
    "num_return_sequences": at_least(1),
    "seed": between(0, 2**32 - 1),
    "temperature": POSITIVE_OR_ZERO,
    "top_k": at_least(0),
    "top_p": PROBABILITY,
    "min_p": PROBABILITY,
    "typical_p": PROBABILITY,
    "epsilon_cutoff": PROBABILITY,
    "eta_cutoff": PROBABILITY,
    "num_beams": at_least(1),
    "length_penalty": NUMBER,
    "early_stopping": EARLY_STOPPING,
    "repetition_penalty": POSITIVE,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "encoder_repetition_penalty": POSITIVE,
    "no_repeat_ngram_size": at_least(0),
    "encoder_no_repeat_ngram_size": at_least(0),
    "exponential_decay_length_penalty": optional(DECAY),
    "sequence_bias": BIASES,
    "bad_words_ids": SEQUENCES,
    "suppress_tokens": TOKENS,
    "begin_suppress_tokens": TOKENS,
    "forced_bos_token_id": optional(TOKEN),
    "forced_eos_token_id": optional(TOKEN_OR_TOKENS),
    "remove_invalid_values": SWITCH,
    "renormalize_logits": SWITCH,
}
"""The rule of each field of `GenerationConfig`."""
