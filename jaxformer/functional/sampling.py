"""Choosing the next token: filters from logits to logits, and the draw itself."""

import math
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.errors import ConfigError
from jaxformer.functional.placement import place, spec_of


def greedy(logits: jax.Array) -> jax.Array:
    r"""The most probable token, the first of several.

    .. math:: y = \arg\max_v x_v

    Args:
      logits: `[..., V]`.

    Returns:
      `[...]` int32.
    """
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def scale_temperature(logits: jax.Array, temperature: float) -> jax.Array:
    r"""Flattens (above 1) or sharpens (below 1) the distribution.

    .. math:: x'_v = x_v / \tau

    Args:
      logits: `[..., V]`.
      temperature: τ > 0.

    Returns:
      `[..., V]`.

    Raises:
      ConfigError: `temperature` is not positive, or infinite.
    """
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature is {temperature}, expected a positive, finite number")
    return logits / temperature


def top_k_filter(logits: jax.Array, top_k: int) -> jax.Array:
    """Keeps the `top_k` largest logits, and every logit equal to the smallest of them.

    Args:
      logits: `[..., V]`.
      top_k: how many to keep, at least 1; above V nothing is excluded.

    Returns:
      `[..., V]`, -inf where excluded.

    Raises:
      ConfigError: `top_k` is below 1.

    References:
      Fan et al., Hierarchical Neural Story Generation (https://arxiv.org/abs/1805.04833).
    """
    if top_k < 1:
        raise ConfigError(f"top_k is {top_k}, expected at least 1")
    largest, _ = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    return _keep(logits, logits >= largest[..., -1:])


def top_p_filter(logits: jax.Array, top_p: float) -> jax.Array:
    """Keeps the smallest set of the most probable tokens whose probability reaches `top_p`.

    At least one token is kept, and with the least probable one that is kept, every token of the
    same logit (a sort would have to choose among them by their place in the vocabulary).

    Args:
      logits: `[..., V]`.
      top_p: a probability, 0 to 1.

    Returns:
      `[..., V]`, -inf where excluded.

    Raises:
      ConfigError: `top_p` is not a probability.

    References:
      Holtzman et al., The Curious Case of Neural Text Degeneration
      (https://arxiv.org/abs/1904.09751).
    """
    _assert_probability("top_p", top_p)
    ascending = jnp.sort(logits.astype(jnp.float32), axis=-1)
    excluded = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1) <= 1 - top_p
    # The last is the most probable token, which a sum rounded down must not exclude.
    smallest_kept = jnp.min(
        jnp.where(excluded.at[..., -1].set(False), jnp.inf, ascending), axis=-1, keepdims=True
    )
    return _keep(logits, logits >= smallest_kept)


def min_p_filter(logits: jax.Array, min_p: float) -> jax.Array:
    r"""Keeps the tokens at least `min_p` times as probable as the most probable one.

    .. math:: p_v \ge p_{min} \max_u p_u

    Args:
      logits: `[..., V]`.
      min_p: a fraction, 0 to 1.

    Returns:
      `[..., V]`, -inf where excluded.

    Raises:
      ConfigError: `min_p` is not a fraction.

    References:
      Nguyen et al., Min-p Sampling (https://arxiv.org/abs/2407.01082).
    """
    _assert_probability("min_p", min_p)
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    largest = jnp.max(probabilities, axis=-1, keepdims=True)
    return _keep(logits, probabilities >= min_p * largest)


def typical_filter(logits: jax.Array, typical_p: float) -> jax.Array:
    r"""Keeps the tokens whose surprise is nearest to the expected one, up to a probability.

    The smallest such set whose probability reaches `typical_p` is kept, and with the farthest
    token of it every other one as far.

    .. math:: d_v = \left| -\log p_v - H(p) \right|, \qquad H(p) = -\sum_u p_u \log p_u

    Args:
      logits: `[..., V]`.
      typical_p: a probability, 0 to 1; 0 keeps the most typical token alone.

    Returns:
      `[..., V]`, -inf where excluded.

    Raises:
      ConfigError: `typical_p` is not a probability.

    References:
      Meister et al., Locally Typical Sampling (https://arxiv.org/abs/2202.00666).
    """
    _assert_probability("typical_p", typical_p)
    surprise = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    probabilities = jnp.exp(-surprise)
    information = jnp.where(probabilities > 0, probabilities * surprise, 0)
    distance = jnp.abs(surprise - jnp.sum(information, axis=-1, keepdims=True))
    ascending, sorted_probabilities = jax.lax.sort((distance, probabilities), num_keys=1)
    short = jnp.cumsum(sorted_probabilities, axis=-1) < typical_p
    farthest = jnp.minimum(jnp.sum(short, axis=-1, keepdims=True), logits.shape[-1] - 1)
    return _keep(logits, distance <= jnp.take_along_axis(ascending, farthest, axis=-1))


def ban_tokens(logits: jax.Array, tokens: Sequence[int]) -> jax.Array:
    """Excludes tokens that are known beforehand.

    Args:
      logits: `[..., V]`.
      tokens: the tokens to exclude.

    Returns:
      `[..., V]`, -inf where excluded.

    Raises:
      ConfigError: a token is not in the vocabulary.
    """
    return _keep(logits, ~_is_one_of(logits, tokens))


def force_token(logits: jax.Array, token: int) -> jax.Array:
    """Leaves one choice, whatever its logit was: 0 for `token` and -inf for all others.

    Args:
      logits: `[..., V]`, of which only the shape and the type count.
      token: the only choice.

    Returns:
      `[..., V]`.

    Raises:
      ConfigError: `token` is not in the vocabulary.
    """
    return _keep(jnp.zeros_like(logits), _is_one_of(logits, (token,)))


def sample(keys: jax.Array, logits: jax.Array) -> jax.Array:
    r"""Draws a token from each distribution, with a key of its own.

    .. math:: y \sim \operatorname{softmax}(x)

    A draw is a function of its key and its logits alone, so a row's token does not depend on the
    rows beside it (with threefry keys, JAX's default; the others draw a batch from one key).

    Args:
      keys: `[...]` random keys, each used once.
      logits: `[..., V]`.

    Returns:
      `[...]` int32.
    """
    chex.assert_shape(keys, logits.shape[:-1])
    spec = spec_of(logits)
    keys = place(keys, None if spec is None else PartitionSpec(*spec[:-1]))
    draw = jax.random.categorical
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys, logits.astype(jnp.float32)).astype(jnp.int32)


def token_log_probabilities(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    r"""The log-probability of each token under its distribution.

    .. math:: \log p_y = x_y - \log \sum_v e^{x_v}

    The logit is picked by comparison, not by a gather, so the vocabulary may be sharded.

    Args:
      logits: `[..., V]`.
      tokens: `[...]` integers in `[0, V)`.

    Returns:
      `[...]` float32, -inf for an excluded token.
    """
    chex.assert_shape(tokens, logits.shape[:-1])
    logits = logits.astype(jnp.float32)
    vocabulary = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    chosen = jnp.where(vocabulary == tokens[..., None], logits, 0)
    return jnp.sum(chosen, axis=-1) - jax.nn.logsumexp(logits, axis=-1)


def assert_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raises ConfigError naming the tokens that are not in `[0, vocab_size)`."""
    if unknown := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ConfigError(
            f"tokens {unknown} are not in the vocabulary, expected 0 to {vocab_size - 1}"
        )


def _is_one_of(logits, tokens):
    """Bool of the shape of the logits."""
    vocab_size = logits.shape[-1]
    assert_tokens(tokens, vocab_size)
    found = np.isin(np.arange(vocab_size), np.asarray(tokens, int))
    return jnp.broadcast_to(found, logits.shape)


def _keep(logits, kept):
    return jnp.where(kept, logits, -jnp.inf)


def _assert_probability(name, value):
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}, expected a number from 0 to 1")
