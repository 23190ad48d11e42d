"""Next-token selection: logit filters, greedy decoding and sampling."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import (
    PROBABILITY,
    Rule,
    at_least,
    check_argument,
    is_integer,
    is_number,
    plain,
)
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_ids,
    check_numbers,
    place,
    spec_of,
    static,
)

_TEMPERATURE = Rule(
    lambda value: is_number(value) and 1e-30 <= value < math.inf,
    "a finite number of at least 1e-30, so that logits do not overflow; use greedy() for "
    "temperature 0",
)


def greedy(logits: jax.Array) -> jax.Array:
    r"""Returns the most probable token, the first in case of ties.

    .. math:: y = \arg\max_v x_v

    Args:
        logits: `[..., V]`.

    Returns:
        `[...]` int32.
    """
    _assert_logits(logits)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def scale_temperature(logits: jax.Array, temperature: float) -> jax.Array:
    r"""Flattens (above 1) or sharpens (below 1) the distribution.

    .. math:: x'_v = x_v / \tau

    Args:
        logits: `[..., V]`.
        temperature: The divisor τ, at least 1e-30.

    Returns:
        `[..., V]`.

    Raises:
        ArgumentError: `temperature` is not positive, so small that logits overflow, or infinite.
    """
    _assert_logits(logits)
    check_numbers(temperature=(temperature, _TEMPERATURE))
    return logits / temperature


def top_k_filter(logits: jax.Array, top_k: int) -> jax.Array:
    """Keeps the `top_k` largest logits, including ties with the smallest of them.

    Args:
        logits: `[..., V]`.
        top_k: The number to keep, at least 1; V or more excludes nothing.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `top_k` is below 1.

    References:
        Fan et al., Hierarchical Neural Story Generation (https://arxiv.org/abs/1805.04833).
    """
    _assert_logits(logits)
    top_k = static("top_k", top_k, at_least(1))
    largest, _ = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    return _keep(logits, logits >= largest[..., -1:])


def top_p_filter(logits: jax.Array, top_p: float) -> jax.Array:
    """Keeps the smallest set of the most probable tokens whose probability reaches `top_p`.

    At least one token is kept. Ties with the least probable kept token are also kept, because a
    choice among them would depend on their order in the vocabulary.

    Args:
        logits: `[..., V]`.
        top_p: A probability, 0 to 1.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `top_p` is not a probability.

    References:
        Holtzman et al., The Curious Case of Neural Text Degeneration
        (https://arxiv.org/abs/1904.09751).
    """
    _assert_logits(logits)
    check_numbers(top_p=(top_p, PROBABILITY))
    rounded = logits.astype(jnp.float32)
    ascending = jnp.sort(rounded, axis=-1)
    excluded = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1) <= 1 - top_p
    # The last one is the most probable token, which rounding must not exclude.
    smallest_kept = jnp.min(
        jnp.where(excluded.at[..., -1].set(False), jnp.inf, ascending), axis=-1, keepdims=True
    )
    return _keep(logits, rounded >= smallest_kept)


def min_p_filter(logits: jax.Array, min_p: float) -> jax.Array:
    r"""Keeps tokens that are at least `min_p` times as probable as the most probable one.

    .. math:: p_v \ge p_{min} \max_u p_u

    Args:
        logits: `[..., V]`.
        min_p: A fraction, 0 to 1.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `min_p` is not a fraction.

    References:
        Nguyen et al., Min-p Sampling (https://arxiv.org/abs/2407.01082).
    """
    _assert_logits(logits)
    check_numbers(min_p=(min_p, PROBABILITY))
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    largest = jnp.max(probabilities, axis=-1, keepdims=True)
    return _keep(logits, probabilities >= min_p * largest)


def typical_filter(logits: jax.Array, typical_p: float) -> jax.Array:
    r"""Keeps the most typical tokens, whose surprise is closest to the entropy, up to a
    probability.

    The smallest such set whose probability reaches `typical_p` is kept, including ties with its
    least typical token.

    .. math:: d_v = \left| -\log p_v - H(p) \right|, \qquad H(p) = -\sum_u p_u \log p_u

    Args:
        logits: `[..., V]`.
        typical_p: A probability, 0 to 1; 0 keeps only the most typical token.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `typical_p` is not a probability.

    References:
        Meister et al., Locally Typical Sampling (https://arxiv.org/abs/2202.00666).
    """
    _assert_logits(logits)
    check_numbers(typical_p=(typical_p, PROBABILITY))
    surprise = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    probabilities = jnp.exp(-surprise)
    information = jnp.where(probabilities > 0, probabilities * surprise, 0)
    distance = jnp.abs(surprise - jnp.sum(information, axis=-1, keepdims=True))
    ascending, sorted_probabilities = jax.lax.sort((distance, probabilities), num_keys=1)
    short = jnp.cumsum(sorted_probabilities, axis=-1) < typical_p
    farthest = jnp.minimum(jnp.sum(short, axis=-1, keepdims=True), logits.shape[-1] - 1)
    return _keep(logits, distance <= jnp.take_along_axis(ascending, farthest, axis=-1))


def epsilon_filter(logits: jax.Array, epsilon: float) -> jax.Array:
    """Keeps the tokens whose probability is at least `epsilon`, and the most probable one.

    Args:
        logits: `[..., V]`.
        epsilon: A probability, 0 to 1.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `epsilon` is not a probability.

    References:
        Hewitt et al., Truncation Sampling as Language Model Desmoothing
        (https://arxiv.org/abs/2210.15191).
    """
    _assert_logits(logits)
    check_numbers(epsilon=(epsilon, PROBABILITY))
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    return _keep_probable(logits, probabilities, epsilon)


def eta_filter(logits: jax.Array, epsilon: float) -> jax.Array:
    r"""Keeps tokens whose probability reaches a threshold that decreases with the entropy.

    .. math:: p_v \ge \min(\epsilon, \sqrt{\epsilon} e^{-H(p)}), \qquad H(p) = -\sum_u p_u \log p_u

    The most probable token is always kept.

    Args:
        logits: `[..., V]`.
        epsilon: A probability, 0 to 1.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: `epsilon` is not a probability.

    References:
        Hewitt et al., Truncation Sampling as Language Model Desmoothing
        (https://arxiv.org/abs/2210.15191).
    """
    _assert_logits(logits)
    check_numbers(epsilon=(epsilon, PROBABILITY))
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    p = jnp.exp(log_p)
    negative_entropy = jnp.sum(jnp.where(p > 0, p * log_p, 0), axis=-1, keepdims=True)
    limit = jnp.minimum(epsilon, jnp.sqrt(jnp.float32(epsilon)) * jnp.exp(negative_entropy))
    return _keep_probable(logits, p, limit)


def ban_tokens(logits: jax.Array, tokens: Sequence[int]) -> jax.Array:
    """Excludes given tokens.

    Args:
        logits: `[..., V]`.
        tokens: The tokens to exclude.

    Returns:
        `[..., V]`, -inf where excluded.

    Raises:
        ArgumentError: A token is not in the vocabulary.
    """
    return _keep(logits, ~_is_one_of(logits, "tokens", tokens))


def force_token(logits: jax.Array, token: int) -> jax.Array:
    """Excludes all tokens but one, whose logit becomes 0.

    Args:
        logits: `[..., V]`; only the shape and dtype are used.
        token: The token to keep.

    Returns:
        `[..., V]`.

    Raises:
        ArgumentError: `token` is not in the vocabulary.
    """
    kept = _is_one_of(logits, "token", (token,))
    return _keep(jnp.zeros_like(logits), kept)


def sample(keys: jax.Array, logits: jax.Array) -> jax.Array:
    r"""Samples a token from each distribution with a separate key.

    .. math:: y \sim \operatorname{softmax}(x)

    A sample depends only on its key and its logits, not on the rest of the batch (with threefry
    keys, JAX's default; other implementations sample a batch from one key).

    Args:
        keys: `[...]` PRNG keys, each used once.
        logits: `[..., V]`.

    Returns:
        `[...]` int32.

    Raises:
        AssertionError: `keys` are not keys of `jax.random.key`.
    """
    _assert_logits(logits)
    assert_axes(keys=(keys, " ".join(map(str, logits.shape[:-1]))))
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise AssertionError(f"keys has dtype {keys.dtype}: must be keys of jax.random.key")
    spec = spec_of(logits)
    keys = place(keys, None if spec is None else PartitionSpec(*spec[:-1]))
    draw = jax.random.categorical
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys, logits.astype(jnp.float32)).astype(jnp.int32)


def token_log_probabilities(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    r"""Returns the log-probability of each token under its distribution.

    .. math:: \log p_y = x_y - \log \sum_v e^{x_v}

    The logit is picked by comparison, not by a gather, so the vocabulary may be sharded.

    Args:
        logits: `[..., V]`.
        tokens: `[...]` integers in `[0, V)`.

    Returns:
        `[...]` float32, -inf for an excluded token.
    """
    _assert_logits(logits)
    assert_axes(tokens=(tokens, " ".join(map(str, logits.shape[:-1]))))
    assert_ids(logits.shape[-1], tokens=tokens)
    logits = logits.astype(jnp.float32)
    vocabulary = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    chosen = jnp.where(vocabulary == tokens[..., None], logits, 0)
    return jnp.sum(chosen, axis=-1) - jax.nn.logsumexp(logits, axis=-1)


def assert_tokens(name: str, tokens: Sequence[int], vocab_size: int) -> list[int]:
    """Returns tokens as Python integers, which must be in `[0, vocab_size)`."""
    tokens = [plain(token) for token in tokens]
    known = [is_integer(token) and 0 <= token < vocab_size for token in tokens]
    if unknown := [token for token, fits in zip(tokens, known, strict=True) if not fits]:
        raise ArgumentError(
            f"{name}: {unknown} are not in the vocabulary: must be integers from 0 to "
            f"{vocab_size - 1}"
        )
    return tokens


def _assert_logits(logits):
    assert_axes(logits=(logits, "... V"))
    assert_floating(logits=logits)
    if not logits.shape[-1]:
        raise AssertionError(f"logits has shape {logits.shape}: there must be at least one token")


def _is_one_of(logits, name, tokens):
    """Returns where logits belong to the tokens, bool of the shape of the logits."""
    _assert_logits(logits)
    vocab_size = logits.shape[-1]
    listed = isinstance(tokens, Sequence | np.ndarray) and not isinstance(tokens, str)
    check_argument(name, tokens, listed, "a sequence of tokens, such as (0, 5)")
    tokens = assert_tokens(name, tokens, vocab_size)
    found = np.isin(np.arange(vocab_size), np.asarray(tokens, int))
    return jnp.broadcast_to(found, logits.shape)


def _keep_probable(logits, probabilities, limit):
    """Excludes tokens whose probability is below a limit, except the most probable one."""
    probable = probabilities >= limit
    return _keep(logits, probable | (logits >= jnp.max(logits, axis=-1, keepdims=True)))


def _keep(logits, kept):
    return jnp.where(kept, logits, -jnp.inf)
