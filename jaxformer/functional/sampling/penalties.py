"""Penalties and constraints on the next token, given the tokens before it.

The tokens of each row are `tokens` `[B, S]` up to its length in `lengths` `[B]`; later tokens are
ignored. Shapes are static, so all functions work inside a compiled loop.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import FINITE, POSITIVE, at_least, check_argument
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    assert_integers,
    check_numbers,
    static,
)
from jaxformer.functional.sampling.next_token import assert_tokens


def token_counts(tokens: jax.Array, counted: jax.Array, vocab_size: int) -> jax.Array:
    """Counts how often each token of the vocabulary occurs in each row.

    Args:
        tokens: `[B, S]` integers; ids outside the vocabulary are not counted.
        counted: `[B, S]` bool, the positions to count.
        vocab_size: V.

    Returns:
        `[B, V]` int32.
    """
    assert_axes(tokens=(tokens, "B S"), counted=(counted, "B S"))
    assert_integers(tokens=tokens)
    assert_bool(counted=counted)
    vocab_size = static("vocab_size", vocab_size, at_least(1))
    places = jnp.where(counted & (tokens >= 0), tokens, vocab_size)

    def count(places):
        return jnp.zeros(vocab_size, jnp.int32).at[places].add(1, mode="drop")

    return jax.vmap(count)(places)


def repetition_penalty(logits: jax.Array, seen: jax.Array, penalty: float) -> jax.Array:
    r"""Makes seen tokens less probable by a factor on their logits.

    .. math:: x'_v = x_v / \theta \text{ where } x_v \ge 0, \quad x_v \theta \text{ elsewhere}

    Args:
        logits: `[B, V]`.
        seen: `[B, V]` bool.
        penalty: The factor θ > 0; above 1 discourages repetition, below 1 encourages it.

    Returns:
        `[B, V]`.

    Raises:
        ArgumentError: `penalty` is not positive, or infinite.

    References:
        Keskar et al., CTRL (https://arxiv.org/abs/1909.05858).
    """
    _assert_seen(logits, seen)
    check_numbers(penalty=(penalty, POSITIVE))
    return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def presence_penalty(logits: jax.Array, seen: jax.Array, penalty: float) -> jax.Array:
    r"""Makes generated tokens less probable, regardless of their count.

    .. math:: x'_v = x_v - \alpha [c_v > 0]

    Args:
        logits: `[B, V]`.
        seen: `[B, V]` bool, whether the token has been generated.
        penalty: The term α; negative encourages repetition.

    Returns:
        `[B, V]`.

    Raises:
        ArgumentError: `penalty` is not finite.

    References:
        OpenAI, API reference (https://platform.openai.com/docs/api-reference/completions/create).
    """
    _assert_seen(logits, seen)
    check_numbers(penalty=(penalty, FINITE))
    return jnp.where(seen, logits - penalty, logits)


def frequency_penalty(logits: jax.Array, counts: jax.Array, penalty: float) -> jax.Array:
    r"""Makes generated tokens less probable, in proportion to their count.

    .. math:: x'_v = x_v - \alpha c_v

    Args:
        logits: `[B, V]`.
        counts: `[B, V]` int32, how often the token has been generated.
        penalty: The term α; negative encourages repetition.

    Returns:
        `[B, V]`.

    Raises:
        ArgumentError: `penalty` is not finite.

    References:
        OpenAI, API reference (https://platform.openai.com/docs/api-reference/completions/create).
    """
    assert_axes(logits=(logits, "B V"), counts=(counts, "B V"))
    assert_floating(logits=logits)
    assert_integers(counts=counts)
    check_numbers(penalty=(penalty, FINITE))
    return logits - penalty * counts.astype(logits.dtype)


def no_repeat_ngram(
    logits: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    ngram_size: int,
    source: jax.Array | None = None,
) -> jax.Array:
    """Excludes tokens that would repeat an n-gram of their row or of another text.

    Args:
        logits: `[B, V]`.
        tokens: `[B, S]` integers.
        lengths: `[B]` integers, the number of tokens of each row.
        ngram_size: n, at least 1; 1 excludes every token of the row.
        source: `[B, R]` integers, whose n-grams count instead of those of the row, such as the
            encoder input; negative beyond the end of a row. None uses the row itself.

    Returns:
        `[B, V]`, -inf where excluded.

    Raises:
        ArgumentError: `ngram_size` is below 1.

    References:
        Paulus et al., A Deep Reinforced Model for Abstractive Summarization
        (https://arxiv.org/abs/1705.04304).
    """
    _assert_history(logits, tokens, lengths)
    ngram_size = static("ngram_size", ngram_size, at_least(1))
    read = tokens
    if source is not None:
        assert_axes(tokens=(tokens, "B S"), source=(source, "B R"))
        assert_integers(source=source)
        read = source
    num_windows = read.shape[1] - ngram_size + 1
    if num_windows < 1:
        return logits
    prefix = _last_tokens(tokens, lengths, ngram_size - 1)
    # The window that starts at s contains the tokens s to s + n - 1. Its last token is excluded if
    # the tokens before it equal the last n - 1 of the row.
    ends = jnp.arange(ngram_size - 1, read.shape[1])
    inside = ends[None, :] < lengths[:, None] if source is None else read[:, ngram_size - 1 :] >= 0
    repeated = inside & (lengths[:, None] >= ngram_size - 1)
    for i in range(ngram_size - 1):
        repeated &= read[:, i : i + num_windows] == prefix[:, i : i + 1]
    completions = token_counts(read[:, ngram_size - 1 :], repeated, logits.shape[-1])
    return jnp.where(completions > 0, -jnp.inf, logits)


def ban_sequences(
    logits: jax.Array, tokens: jax.Array, lengths: jax.Array, sequences: Sequence[Sequence[int]]
) -> jax.Array:
    """Excludes the last token of each sequence if the row ends with the preceding tokens.

    Args:
        logits: `[B, V]`.
        tokens: `[B, S]` integers.
        lengths: `[B]` integers, the number of tokens of each row.
        sequences: The banned sequences; a single token is always excluded.

    Returns:
        `[B, V]`, -inf where excluded.

    Raises:
        ArgumentError: A sequence is empty, or a token is not in the vocabulary.
    """
    last, matched = _completable(logits, tokens, lengths, sequences)
    completions = token_counts(
        jnp.broadcast_to(last[None, :], matched.shape), matched, logits.shape[-1]
    )
    return jnp.where(completions > 0, -jnp.inf, logits)


def bias_sequences(
    logits: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    sequences: Sequence[Sequence[int]],
    biases: Sequence[float],
) -> jax.Array:
    r"""Adds a bias to the last token of each sequence if the row ends with the preceding tokens.

    .. math:: x'_v = x_v + \sum_i b_i [s_i \text{ ends with } v \text{ and the row with the rest}]

    Args:
        logits: `[B, V]`.
        tokens: `[B, S]` integers.
        lengths: `[B]` integers, the number of tokens of each row.
        sequences: The sequences s; the bias of a single token is always added.
        biases: The bias b of each sequence; negative makes it less probable.

    Returns:
        `[B, V]`.

    Raises:
        ArgumentError: A sequence is empty, a token is not in the vocabulary, or the biases are not
            one finite number per sequence.
    """
    last, matched = _completable(logits, tokens, lengths, sequences)
    paired = isinstance(biases, Sequence) and len(biases) == len(sequences)
    fits = paired and all(FINITE.allows(bias) for bias in biases)
    check_argument("biases", biases, fits, f"{len(sequences)} finite numbers, one per sequence")
    added = jnp.where(matched, jnp.array(biases, logits.dtype)[None, :], 0)
    is_last = last[:, None] == jnp.arange(logits.shape[-1])[None, :]
    return logits + jnp.sum(jnp.where(is_last[None], added[:, :, None], 0), axis=1)


def _completable(logits, tokens, lengths, sequences):
    """Returns the last tokens `[N]` of sequences, and which rows `[B, N]` end with those before."""
    _assert_history(logits, tokens, lengths)
    listed = isinstance(sequences, Sequence) and all(isinstance(s, Sequence) for s in sequences)
    wanted = "a sequence of sequences of tokens, such as ((7,), (3, 5)), none of them empty"
    check_argument("sequences", sequences, listed and all(sequences), wanted)
    sequences = [assert_tokens("sequences", each, logits.shape[-1]) for each in sequences]
    # The tokens before the last, right-aligned; -1 matches any token or none.
    width = max((len(sequence) - 1 for sequence in sequences), default=0)
    before = np.full((len(sequences), width), -1)
    for row, (*prefix, _) in zip(before, sequences, strict=True):
        row[width - len(prefix) :] = prefix
    written = _last_tokens(tokens, lengths, width)
    there = jnp.arange(width)[None, :] >= width - lengths[:, None]
    written = jnp.where(there, written, -2)[:, None, :]
    matched = jnp.all((written == before[None]) | (before[None] == -1), axis=-1)
    return jnp.array([sequence[-1] for sequence in sequences], jnp.int32), matched


def _assert_seen(logits, seen):
    assert_axes(logits=(logits, "B V"), seen=(seen, "B V"))
    assert_floating(logits=logits)
    assert_bool(seen=seen)


def _assert_history(logits, tokens, lengths):
    assert_axes(logits=(logits, "B V"), tokens=(tokens, "B S"), lengths=(lengths, "B"))
    assert_floating(logits=logits)
    assert_integers(tokens=tokens, lengths=lengths)


def _last_tokens(tokens, lengths, count: int):
    """Returns the last `count` tokens of every row `[B, count]`; unspecified for shorter rows."""
    places = lengths[:, None] - count + jnp.arange(count)[None, :]
    return jnp.take_along_axis(tokens, jnp.maximum(places, 0), axis=1)
