"""Choosing the next token: filters from logits to logits, and the draw itself."""

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError


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
      ConfigError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}, expected a positive number")
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


def sample(
    key: jax.Array,
    logits: jax.Array,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> jax.Array:
    """Draws a token from each distribution, after the temperature and then the filters in order.

    Args:
      key: a random key, used once.
      logits: `[..., V]`.
      temperature: 0 takes the most probable token and ignores the filters.
      top_k: see `top_k_filter`; None to leave it out, as for the other two.
      top_p: see `top_p_filter`.
      min_p: see `min_p_filter`.

    Returns:
      `[...]` int32.

    Raises:
      ConfigError: an argument is out of its range.
    """
    if temperature == 0:
        return greedy(logits)
    logits = scale_temperature(logits.astype(jnp.float32), temperature)
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    if min_p is not None:
        logits = min_p_filter(logits, min_p)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def _keep(logits, kept):
    return jnp.where(kept, logits, -jnp.inf)


def _assert_probability(name, value):
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}, expected a number from 0 to 1")
