"""Terms that a part of a model adds to the loss, and numbers that it adds to the log.

A part calls `add_loss` or `add_metric` in its forward pass. Training runs the model under
`collect_terms`, which returns what was added; elsewhere the calls do nothing, and where nobody
makes them the program is the same as without this module.

`flax.nnx.Module.sow` stores values in the module. Here layers are pytrees inside a plain
`jax.lax.scan` and `jax.checkpoint`, out of which only results come; so loops over layers collect
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
from jaxformer.functional.arrays import static

Kind = Literal["loss", "weighted", "metric", "count"]
Terms = dict[tuple[Kind, str], jax.Array]
"""Float32 sums over layers, by kind and name: of the values of each loss and of their products with
its weight, and of the values of each metric and their number."""

# Whether terms are collected is a part of the key of JAX's caches; where they go is not.
_ACTIVE = jax.make_user_context(False)
_FRAME: ContextVar["_Frame | None"] = ContextVar("frame", default=None)


def add_loss(name: str, value: jax.Array, *, weight: float) -> None:
    r"""Adds a term to the loss that training minimises.

    .. math:: \mathcal{L} = \mathcal{L}_{\mathrm{heads}} + \sum_k w_k \sum_{\ell} v_{k \ell}

    over the names k and the layers :math:`\ell` that add them. The log has the sum over layers
    under `name`, and the whole as "total_loss". A batch that is computed in parts or by several
    copies of the model has the mean of their values, in proportion to their rows: so let the value
    be a mean over rows. Outside of training the call does nothing.

    Args:
        name: The name in the log, the same in all layers.
        value: A scalar; call this where it is computed, outside of any `jit` or loop of your own.
        weight: w, with which the value is multiplied.

    Raises:
        ArgumentError: An argument has a wrong value.
    """
    weight = static("weight", weight, FINITE)
    value = _checked("add_loss", name, value)
    if value is not None:
        add_terms({("loss", name): value, ("weighted", name): weight * value})


def add_metric(name: str, value: jax.Array) -> None:
    """Adds a number to the log of training: the mean over the layers that add it.

    Args:
        name: The name in the log, the same in all layers.
        value: A scalar, as for `add_loss`; it has no gradient.

    Raises:
        ArgumentError: An argument has a wrong value.
    """
    value = _checked("add_metric", name, value)
    if value is not None:
        value = jax.lax.stop_gradient(value)
        add_terms({("metric", name): value, ("count", name): jnp.ones(())})


def collect_terms(function: Callable) -> Callable:
    """Makes a function also return the terms that are added while it runs.

    Args:
        function: A function.

    Returns:
        A function of the same arguments that returns (result, terms).
    """

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
    """`collect_terms` of a function that JAX transforms; nothing is collected if no one asks.

    Whoever transforms it gives the terms to `add_terms` outside of the transformation.

    Args:
        function: A function.

    Returns:
        A function of the same arguments that returns (result, terms).
    """
    collecting = collect_terms(function)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> tuple[Any, Terms]:
        if _ACTIVE.value:
            return collecting(*arguments, **options)
        return function(*arguments, **options), {}

    return wrapped


def without_terms() -> AbstractContextManager:
    """Drops what is added inside: that of a model which does not learn."""
    return _ACTIVE(False)


def add_terms(terms: Terms) -> None:
    """Adds terms that were collected, to those with the same name.

    Args:
        terms: Those that a transformed function returned.
    """
    if _ACTIVE.value:
        frame = _FRAME.get()
        for key, value in terms.items():
            frame.terms[key] = frame.terms[key] + value if key in frame.terms else value


class _Frame:
    """The terms of one function, and the trace it runs in."""

    def __init__(self):
        self.terms: Terms = {}
        self.trace = get_opaque_trace_state()


def _checked(function: str, name: str, value: Any) -> jax.Array | None:
    """The value in float32 at least; None where nobody asks for it."""
    check_argument("name", name, isinstance(name, str) and name != "", "a string")
    shape = jnp.shape(value)
    if shape != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ArgumentError(
            f"{function}({name!r}): the value has shape {shape} and dtype "
            f"{jnp.result_type(value)}: must be a floating-point scalar, such as a mean"
        )
    if not _ACTIVE.value:
        return None
    if _FRAME.get().trace != get_opaque_trace_state():
        raise ArgumentError(
            f"{function}({name!r}): the value is computed inside a scan, checkpoint, jit, vmap or "
            "grad of your own: return it from there, and add it outside"
        )
    return jnp.asarray(value, jnp.promote_types(jnp.result_type(value), jnp.float32))
