"""Loss terms and metrics that parts of a model add.

A part calls `add_loss` or `add_metric` in its forward pass. Training runs the model under
`collect_terms`, which returns the added terms; elsewhere the calls do nothing.

`flax.nnx.Module.sow` stores values in the module. Here layers are pytrees inside a plain
`jax.lax.scan` and `jax.checkpoint`, from which only results escape, so loops over layers collect
the terms of each layer, return them, and add them up.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from jaxformer.checks import FINITE, check_argument
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import assert_axes, assert_floating, static

Kind = Literal["loss", "weighted", "metric", "count", "left", "right", "size", "weight"]
Terms = dict[tuple[Kind, str], jax.Array]
"""Float32 sums over layers, by kind and name: the values of each loss, their products with its
weight, the values of each metric, and their number; and the factors of `add_product_loss`.
"""

# Whether terms are collected is part of the key of JAX's caches; where they go is not.
_ACTIVE = jax.make_user_context(False)
_FRAME: ContextVar["_Frame | None"] = ContextVar("frame", default=None)


def add_loss(name: str, value: jax.Array, *, weight: float) -> None:
    r"""Adds a term to the training loss.

    .. math:: \mathcal{L} = \mathcal{L}_{\mathrm{heads}} + \sum_k w_k \sum_{\ell} v_{k \ell}

    over the names k and the layers :math:`\ell` that add them. The sum over layers is logged as
    `name`, and the total as "total_loss". With micro-batches or several model replicas, values are
    averaged in proportion to their rows, so the value should be a mean over rows. Outside of
    training the call does nothing.

    Args:
        name: The name in the log, the same in all layers.
        value: A scalar; add it where it is computed, outside of your own `jit` or loops.
        weight: w, the multiplier of the value.

    Raises:
        ArgumentError: An argument is invalid.
    """
    weight = static("weight", weight, FINITE)
    value = _checked("add_loss", name, value)
    if value is not None:
        add_terms({("loss", name): value, ("weighted", name): weight * value})


def add_metric(name: str, value: jax.Array) -> None:
    """Adds a metric to the training log, averaged over the layers that add it.

    Args:
        name: The name in the log, the same in all layers.
        value: A scalar, as for `add_loss`; it has no gradient.

    Raises:
        ArgumentError: An argument is invalid.
    """
    value = _checked("add_metric", name, value)
    if value is not None:
        value = jax.lax.stop_gradient(value)
        add_terms({("metric", name): value, ("count", name): jnp.ones(())})


def add_product_loss(
    name: str, left: jax.Array, right: jax.Array, size: jax.Array, *, weight: float
) -> None:
    r"""Adds the product of two means over the tokens of all layers to the training loss.

    .. math:: \mathcal{L} = \mathcal{L}_{\mathrm{heads}} + w \sum_i
              \frac{\sum_\ell a_{\ell i}}{\sum_\ell s_\ell}
              \frac{\sum_\ell b_{\ell i}}{\sum_\ell s_\ell}

    Unlike `add_loss`, it is not a sum of terms of the layers. The rest is as for `add_loss`.

    Args:
        name: The name in the log, the same in all layers.
        left: float32 `[N]`: a.
        right: float32 `[N]`: b.
        size: float32 scalar: s, the number of tokens that the sums are over.
        weight: w, the multiplier of the product; the same in all layers.

    Raises:
        ArgumentError: An argument is invalid.
    """
    weight = static("weight", weight, FINITE)
    assert_axes(left=(left, "N"), right=(right, "N"))
    assert_floating(left=left, right=right)
    size = _checked("add_product_loss", name, size, "size")
    if size is not None:
        own = {"left": left, "right": right, "size": size, "weight": weight * size}
        add_terms({(kind, name): value for kind, value in own.items()})


def with_products(terms: Terms) -> Terms:
    """Replaces the factors of each `add_product_loss`, summed over all layers, by their loss."""
    names = [name for kind, name in terms if kind == "size"]
    factors = ("left", "right", "size", "weight")
    found = {key: value for key, value in terms.items() if key[0] not in factors}
    for name in names:
        left, right, size, weight = (terms[kind, name] for kind in factors)
        size = jnp.maximum(size, 1.0)
        found["loss", name] = jnp.sum((left / size) * (right / size))
        found["weighted", name] = weight / size * found["loss", name]
    return found


def collect_terms(function: Callable) -> Callable:
    """Returns a function that also returns the terms that are added while `function` runs."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> tuple[Any, Terms]:
        frame = _Frame()
        token = _FRAME.set(frame)
        try:
            with _ACTIVE(True):
                result = function(*arguments, **options)
        finally:
            _FRAME.reset(token)
        return result, frame.terms

    return wrapped


def pass_terms(function: Callable) -> Callable:
    """Returns `collect_terms` of a function that JAX transforms; collects only inside another."""
    # The caller passes the terms to `add_terms` outside of the transformation.
    collecting = collect_terms(function)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> tuple[Any, Terms]:
        if _ACTIVE.value:
            return collecting(*arguments, **options)
        return function(*arguments, **options), {}

    return wrapped


def without_terms() -> AbstractContextManager:
    """Drops terms that are added inside, such as those of a frozen model."""
    return _ACTIVE(False)


def add_terms(terms: Terms) -> None:
    """Adds the terms that a transformed function returned to those with the same name."""
    if _ACTIVE.value:
        frame = _FRAME.get()
        for key, value in terms.items():
            frame.terms[key] = frame.terms[key] + value if key in frame.terms else value


class _Frame:
    """The terms of one function, and the trace that it runs in."""

    def __init__(self):
        self.terms: Terms = {}
        self.trace = get_opaque_trace_state()


def _checked(function: str, name: str, value: Any, argument: str = "value") -> jax.Array | None:
    """Returns the value in at least float32, or None if terms are not collected."""
    check_argument("name", name, isinstance(name, str) and name != "", "a string")
    shape = jnp.shape(value)
    if shape != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ArgumentError(
            f"{function}({name!r}): the {argument} has shape {shape} and dtype "
            f"{jnp.result_type(value)}: must be a floating-point scalar, such as a mean"
        )
    if not _ACTIVE.value:
        return None
    if _FRAME.get().trace != get_opaque_trace_state():
        raise ArgumentError(
            f"{function}({name!r}): the {argument} is computed inside a scan, checkpoint, jit, "
            "vmap or grad of your own: return it from there, and add it outside"
        )
    return jnp.asarray(value, jnp.promote_types(jnp.result_type(value), jnp.float32))
