"""Hooks for `with_hooks`: ablate, patch and steer activations by name.

Each function returns a hook, a callable pytree: hooks of the same kind share compiled programs, and
gradients flow to their arrays. Hooks compose::

    at_positions((3, 4), replace_with(cache["blocks.5.hook_resid_pre"]))
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import check_argument, is_integer
from jaxformer.errors import ArgumentError
from jaxformer.functional.activations import Hook, as_pytree

HEADS, POSITIONS = -2, 1
"""The axes of heads in `[B, T, N, H]` (queries, keys, values, z), and of positions."""


def zero() -> Hook:
    """Returns a hook that replaces an activation with zeros."""
    return jax.tree_util.Partial(jnp.zeros_like)


def zero_head(*heads: int) -> Hook:
    """Returns a hook that replaces heads with zeros (ablation), for hook_q, hook_k, hook_v and
    hook_z.

    Args:
        *heads: The head indices.

    Raises:
        ArgumentError: An index is not a non-negative integer. When called: there is no such head.

    References:
        Michel et al., Are Sixteen Heads Really Better than One? (https://arxiv.org/abs/1905.10650).
    """
    return at_heads(heads, zero())


def add_vector(vector: jax.Array, scale: float | jax.Array = 1.0) -> Hook:
    r"""Returns a hook that adds a vector to an activation at every position (steering).

    .. math:: x_{b t} \leftarrow x_{b t} + s\, v

    Args:
        vector: v, with the shape of the last axis of the activation, or of several trailing axes.
        scale: s.

    References:
        Turner et al., Activation Addition (https://arxiv.org/abs/2308.10248).
    """
    return _Add(jnp.asarray(vector), jnp.asarray(scale))


def replace_with(value: jax.Array) -> Hook:
    """Returns a hook that replaces an activation with a value (activation patching).

    Args:
        value: The activation of another run, or its mean over a data set (mean ablation), of any
            shape that broadcasts to the activation.

    References:
        Meng et al., Locating and Editing Factual Associations (https://arxiv.org/abs/2202.05262).
    """
    return _Replace(jnp.asarray(value))


def mean_ablation() -> Hook:
    """Returns a hook that replaces an activation `[B, T, ...]` with its mean over rows and
    positions.

    Padding counts; use `replace_with` for a mean that excludes it.
    """
    return _Mean()


def at_heads(heads: tuple[int, ...], hook: Hook, axis: int = HEADS) -> Hook:
    """Returns a hook that applies another hook to some heads only.

    Args:
        heads: The head indices.
        hook: The other hook.
        axis: The axis of heads: -2 in `[B, T, N, H]`, 1 in "hook_pattern" `[B, N, T, S]`.

    Raises:
        ArgumentError: An index is not a non-negative integer. When called: there is no such head.
    """
    return _At(as_pytree(hook), _numbers("heads", heads), axis, "heads")


def at_positions(positions: tuple[int, ...], hook: Hook) -> Hook:
    """Returns a hook that applies another hook to some positions of `[B, T, ...]` only.

    Args:
        positions: Indices into the rows, from 0. Not supported in cached generation, which reads a
            few tokens at a time.
        hook: The other hook.

    Raises:
        ArgumentError: A position is not a non-negative integer. When called: there is no such
            position.
    """
    return _At(as_pytree(hook), _numbers("positions", positions), POSITIONS, "positions")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Add:
    vector: jax.Array
    scale: jax.Array

    def __call__(self, x):
        if self.vector.shape != x.shape[x.ndim - self.vector.ndim :]:
            raise ArgumentError(
                f"vector has shape {self.vector.shape}: must be the last axes of an activation "
                f"{x.shape}"
            )
        added = jnp.expand_dims(self.vector, tuple(range(x.ndim - self.vector.ndim)))
        return x + (self.scale * added).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Replace:
    value: jax.Array

    def __call__(self, x):
        value = self.value
        padded = (1,) * (x.ndim - self.value.ndim) + self.value.shape
        pairs = zip(padded, x.shape, strict=False)
        if value.ndim > x.ndim or any(given not in (1, size) for given, size in pairs):
            raise ArgumentError(
                f"value has shape {value.shape}: must broadcast to the activation's {x.shape}"
            )
        return jnp.broadcast_to(value.reshape(padded).astype(x.dtype), x.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Mean:
    per_token: ClassVar[bool] = False

    def __call__(self, x):
        return jnp.broadcast_to(jnp.mean(x, axis=(0, 1), keepdims=True), x.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _At:
    hook: Hook
    indices: tuple[int, ...] = field(metadata={"static": True})
    axis: int = field(metadata={"static": True})
    name: str = field(metadata={"static": True})

    @property
    def per_token(self) -> bool:
        """Whether the hook treats every token alike, regardless of its position."""
        return self.name != "positions" and getattr(self.hook, "per_token", True)

    def __call__(self, x):
        size = x.shape[self.axis]
        if max(self.indices, default=0) >= size:
            raise ArgumentError(
                f"{self.name} = {self.indices}: must be below {size} for an activation {x.shape}"
            )
        chosen = jnp.isin(jnp.arange(size), jnp.asarray(self.indices, int))
        others = set(range(x.ndim)) - {self.axis % x.ndim}
        return jnp.where(jnp.expand_dims(chosen, tuple(others)), self.hook(x), x)


def _numbers(name: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    numbers = (numbers,) if is_integer(numbers) else tuple(numbers)
    valid = all(is_integer(number) and number >= 0 for number in numbers)
    check_argument(name, numbers, valid, "non-negative integers")
    return tuple(int(number) for number in numbers)
