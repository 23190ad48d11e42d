"""Functions with custom derivative rules, for both modes and every order.

`jax.custom_vjp` provides a fast gradient but disables forward mode. Here a function has a rule for
each mode, `push` and `pull`, which JAX can differentiate again. The linear map is a single
primitive: evaluating it calls `push`, and transposing it calls `pull`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.dtypes import float0
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir


def differentiable(
    function: Callable, linearize: Callable, push: Callable, pull: Callable
) -> Callable:
    r"""Attaches derivative rules to a function.

    .. math:: \dot y = J(x)\, \dot x = \mathrm{push}(r, \dot x), \qquad
              \bar x = J(x)^\top \bar y = \mathrm{pull}(r, \bar y)

    Higher-order derivatives are those of `linearize`, `push` and `pull`, which must therefore be
    differentiable by JAX in both modes. `linearize` may call the result itself.

    Args:
        function: Maps pytrees of arrays and static keyword arguments to a pytree.
        linearize: Maps a tuple of flags for the leaves of the arguments that have a tangent, and
            the arguments, to the result and the residuals r, a pytree of arrays. Reverse mode
            stores only the residuals.
        push: Maps the residuals and the tuple of tangents to the tangents of the result. A leaf
            without a tangent has a `SymbolicZero`, see `is_zero`; in the results of `push` and
            `pull`, None stands for zeros of a leaf or of a whole subtree.
        pull: Maps the residuals and the cotangents of the result to the tuple of cotangents; those
            of leaves without a tangent are dropped.

    Returns:
        A function with the signature of `function`.
    """

    @lru_cache
    def in_leaves(tree, static):
        """The function of leaves; `jax.jit` traces it once for all calls with the same types."""
        return jax.jit(lambda *leaves: function(*tree.unflatten(leaves), **dict(static)))

    def call(*args, **static):
        leaves, tree = jax.tree.flatten(args)

        def rule(leaves, tangents):
            places = [i for i, tangent in enumerate(tangents) if not is_zero(tangent)]
            zeros = [zero_from_primal(x, symbolic_zeros=True) for x in leaves]
            moves = [i in places for i in range(len(leaves))]
            outputs, residuals = linearize(tree.unflatten(moves), *tree.unflatten(leaves), **static)
            kept, kept_tree = jax.tree.flatten(residuals)
            results, result_tree = jax.tree.flatten(outputs)

            def push_leaves(kept, given):
                given = _at(places, given, zeros)
                pushed = push(kept_tree.unflatten(kept), tree.unflatten(given), **static)
                pushed = zip(_leaves_up_to(result_tree, pushed), types, strict=True)
                return [_zeros(of) if is_zero(x) else x for x, of in pushed]

            def pull_leaves(kept, cotangents):
                cotangents = result_tree.unflatten(cotangents)
                pulled = pull(kept_tree.unflatten(kept), cotangents, **static)
                pulled = _leaves_up_to(tree, pulled)
                return [None if is_zero(pulled[i]) else pulled[i] for i in places]

            types = tuple(jax.typeof(x).strip_weak_type().to_tangent_aval() for x in results)
            given = [tangents[i] for i in places]
            results = _linear.bind(
                *kept, *given, push=push_leaves, pull=pull_leaves, types=types, kept=len(kept)
            )
            return jax.tree.leaves(outputs), results

        traced = in_leaves(tree, tuple(static.items())).trace(*leaves)
        results = _call.bind(*leaves, jaxpr=traced.jaxpr, rule=rule)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), results)

    return call


def reversed_by(plain: Callable, fast: Callable) -> Callable:
    """Returns `fast`, which has only a forward mode in JAX, with the reverse mode of `plain`.

    An example of `fast` is a loop of dynamic length. Results for which `plain` returns None have no
    derivative in reverse mode.
    """

    def linearize(_, *args):
        return call(*args), args

    def push(args, tangents):
        places, given = _given(args, tangents)
        tangents_at = partial(_pushed_at, places=places)
        tangents_of = reversed_by(partial(tangents_at, plain), partial(tangents_at, fast))
        return tangents_of(args, given)

    def pull(args, cotangents):
        return pulled(plain, args, cotangents)

    call = differentiable(fast, linearize, push, pull)
    return call


def with_gradient_of(fast: Callable, plain: Callable, named: Callable) -> Callable:
    """Returns `fast`, with the derivatives of `plain` other than its value and gradient.

    An example of `fast` is an accelerator kernel. `named` names its value and its other residuals,
    so that a checkpoint policy can save them: see `saveable`.
    """

    def gradient(args, _, cotangents):
        return _pulled_floats(plain, args, cotangents)

    # Both evaluate the kernel and have the derivatives of `plain`.
    value_and_rest = differentiable(
        lambda *args: _value_and_rest(fast, args),
        lambda _, *args: (value_and_rest(*args), args),
        lambda args, tangents: (pushed(plain, args, tangents), None),
        lambda args, cotangents: pulled(plain, args, cotangents[0]),
    )
    pull_floats = differentiable(
        lambda args, results, cotangents: list(results[1].pullback(args, results[0])(cotangents)),
        lambda _, *args: (pull_floats(*args), args),
        lambda args, tangents: pushed(gradient, args, tangents),
        lambda args, cotangents: pulled(gradient, args, cotangents),
    )

    def linearize(_, *args):
        value, rest = jax.tree.map(named, value_and_rest(*args))
        return value, (args, (value, rest))

    def push(residuals, tangents):
        return pushed(plain, residuals[0], tangents)

    def pull(residuals, cotangents):
        return _with_zeros(residuals[0], pull_floats(*residuals, cotangents))

    return differentiable(fast, linearize, push, pull)


@partial(jax.tree_util.register_dataclass, data_fields=("own",), meta_fields=("tree", "sources"))
@dataclass(frozen=True)
class _Rest:
    """The residuals of a function's pullback other than the arguments and the value."""

    own: list[jax.Array]
    tree: Any
    sources: tuple[int, ...]

    def pullback(self, args, value) -> Callable:
        """Returns the pullback."""
        held = jax.tree.leaves((args, value, self.own))
        return self.tree.unflatten([held[source] for source in self.sources])


def _value_and_rest(function, args) -> tuple[Any, _Rest]:
    """Returns `function(*args)`, and its pullback's residuals except arguments and value."""
    # The residuals of a kernel include its arguments and value, which are thereby stored only once.
    leaves, tree = jax.tree.flatten(args)
    jaxpr, shapes = jax.make_jaxpr(
        lambda *leaves: _vjp(function, tree.unflatten(leaves)), return_shape=True
    )(*leaves)
    value_tree, pullback_tree = map(jax.tree.structure, shapes)
    count = value_tree.num_leaves
    variables = jaxpr.jaxpr.outvars
    known = [*jaxpr.jaxpr.invars, *variables[:count]]
    # A literal cannot be hashed.
    places = {id(variable): place for place, variable in enumerate(known)}
    results = jaxpr_as_fun(jaxpr)(*leaves)
    own, sources = [], []
    for variable, result in zip(variables[count:], results[count:], strict=True):
        if id(variable) not in places:
            places[id(variable)] = len(known) + len(own)
            own.append(result)
        sources.append(places[id(variable)])
    return value_tree.unflatten(results[:count]), _Rest(own, pullback_tree, tuple(sources))


def is_zero(tangent) -> bool:
    """Whether a tangent or cotangent is symbolically zero."""
    known = tangent is None or isinstance(tangent, SymbolicZero | ad.Zero)
    return known or tangent.dtype == float0


def product_rule(product: Callable, factors: tuple, tangents: tuple):
    """Returns the tangent of a product of two factors, without the terms that are zero."""
    (x, y), (dx, dy) = factors, tangents
    terms = [] if is_zero(dx) else [product(dx, y)]
    terms += [] if is_zero(dy) else [product(x, dy)]
    return sum(terms[1:], terms[0])


def pushed(function: Callable, args: tuple, tangents: tuple):
    """Returns the tangents of a function's result, see `differentiable`."""
    places, given = _given(args, tangents)
    return _pushed_at(function, args, given, places=places)


def pulled(function: Callable, args: tuple, cotangents) -> tuple:
    """Computes the cotangents of a function's arguments from those of its result."""
    return _with_zeros(args, _pulled_floats(function, args, cotangents))


def _pulled_floats(function, args, cotangents) -> list[jax.Array]:
    result, pullback = _vjp(function, args)
    tree = jax.tree.structure(result)
    return list(pullback(tree.unflatten(_leaves_up_to(tree, cotangents))))


def _vjp(function, args):
    """Computes `jax.vjp` with respect to the floating-point leaves of the arguments."""
    leaves, places = jax.tree.leaves(args), _floats(args)
    return jax.vjp(_in_leaves(function, args, places), *[leaves[i] for i in places])


def _floats(args) -> list[int]:
    leaves = enumerate(jax.tree.leaves(args))
    return [i for i, x in leaves if jnp.issubdtype(jnp.result_type(x), jnp.floating)]


def _with_zeros(args, cotangents):
    """Returns the cotangents of the floating-point leaves, in the structure of the arguments."""
    leaves, tree = jax.tree.flatten(args)
    zeros = [zero_from_primal(x, symbolic_zeros=True) for x in leaves]
    return tree.unflatten(_at(_floats(args), cotangents, zeros))


def _given(args, tangents) -> tuple[list[int], list[jax.Array]]:
    """Returns the leaves of the arguments that have a tangent, by index, and the tangents."""
    tangents = enumerate(_leaves_up_to(jax.tree.structure(args), tangents))
    given = {i: tangent for i, tangent in tangents if not is_zero(tangent)}
    return list(given), list(given.values())


def _pushed_at(function, args, given, *, places):
    leaves = jax.tree.leaves(args)
    return jax.jvp(_in_leaves(function, args, places), [leaves[i] for i in places], given)[1]


def _in_leaves(function, args, places: list[int]):
    """Returns `function` as a function of some leaves of its arguments."""
    leaves, tree = jax.tree.flatten(args)
    return lambda *chosen: function(*tree.unflatten(_at(places, chosen, leaves)))


def _at(places, values, others) -> list[Any]:
    """Replaces the items of `others` at some indices."""
    given = dict(zip(places, values, strict=True))
    return [given.get(i, x) for i, x in enumerate(others)]


def _leaves_up_to(tree, prefix) -> list[Any]:
    """Returns the leaves of a tree of structure `tree`, in which None may replace a subtree."""
    leaves, prefix_tree = jax.tree.flatten(prefix, is_leaf=lambda x: x is None)
    subtrees = prefix_tree.flatten_up_to(tree.unflatten([object()] * tree.num_leaves))
    return [x for x, of in zip(leaves, subtrees, strict=True) for _ in jax.tree.leaves(of)]


def _zeros(aval):
    return ad.instantiate_zeros(ad.Zero(aval))


# The function -------------------------------------------------------------------------------------

# JAX drops the rule of a `jax.custom_jvp` when it partially evaluates a function, as in a scan; a
# primitive is kept. Parameters: the function as a `jaxpr`, and `rule`, on lists of arrays.
_call = Primitive("call_with_derivatives")
_call.multiple_results = True


@_call.def_impl
def _evaluate_call(*operands, jaxpr, **_):
    return jaxpr_as_fun(jaxpr)(*operands)


mlir.register_lowering(_call, mlir.lower_fun(_evaluate_call, multiple_results=True))
_call.def_abstract_eval(lambda *_, jaxpr, **__: list(jaxpr.out_avals))


def _differentiate_call(primals, tangents, *, rule, **_):
    return rule(primals, tangents)


def _batch_call(operands, axes, *, jaxpr, rule):
    axes = list(axes)

    def of_rows(*operands):
        return jax.vmap(jaxpr_as_fun(jaxpr), axes)(*operands)

    def rule_of_rows(operands, tangents):
        places = [i for i, tangent in enumerate(tangents) if not is_zero(tangent)]
        nothing = [None] * len(operands)

        def of_row(row, given):
            return rule(row, _at(places, given, nothing))

        given = [tangents[i] for i in places]
        return jax.vmap(of_row, (axes, [axes[i] for i in places]))(list(operands), given)

    outputs = _call.bind(*operands, jaxpr=jax.make_jaxpr(of_rows)(*operands), rule=rule_of_rows)
    return outputs, [0] * len(outputs)


ad.primitive_jvps[_call] = _differentiate_call
batching.primitive_batchers[_call] = _batch_call


# The linear map -----------------------------------------------------------------------------------

# Operands: `kept` residuals, then the tangents. Parameters: `push` and `pull` on lists of arrays,
# and the result types.
_linear = Primitive("linear_with_transpose")
_linear.multiple_results = True


@_linear.def_impl
def _evaluate(*operands, push, kept, **_):
    return push(operands[:kept], operands[kept:])


mlir.register_lowering(_linear, mlir.lower_fun(_evaluate, multiple_results=True))
_linear.def_abstract_eval(lambda *_, types, **__: list(types))


def _differentiate(primals, tangents, *, push, kept, **rest):
    """Differentiates the map, which is linear in its tangents and nonlinear in its residuals."""
    residuals, given = primals[:kept], primals[kept:]
    outputs = _linear.bind(*primals, push=push, kept=kept, **rest)
    parts = []
    if any(type(t) is not ad.Zero for t in tangents[kept:]):
        moved = map(ad.instantiate_zeros, tangents[kept:])
        parts.append(_linear.bind(*residuals, *moved, push=push, kept=kept, **rest))
    of_residuals = tuple(None if type(t) is ad.Zero else t for t in tangents[:kept])
    if not all(map(is_zero, of_residuals)):
        parts.append(pushed(lambda *kept: push(kept, given), tuple(residuals), of_residuals))
    return outputs, [sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True)]


def _transpose(cotangents, *operands, pull, kept, **_):
    cotangents = pull(operands[:kept], [ad.instantiate_zeros(c) for c in cotangents])
    return [None] * kept + cotangents


def _batch(operands, axes, *, push, pull, kept, **_):
    of_kept = tuple(axes[:kept])
    of_given = tuple(axes[kept:])

    def push_rows(residuals, tangents):
        return jax.vmap(push, (of_kept, of_given))(tuple(residuals), tuple(tangents))

    def pull_rows(residuals, cotangents):
        found = jax.vmap(pull, (of_kept, 0))(tuple(residuals), cotangents)
        # A tangent shared by all rows receives the sum of their cotangents.
        return [
            x if x is None else jnp.sum(x, 0) if axis is None else jnp.moveaxis(x, 0, axis)
            for x, axis in zip(found, of_given, strict=True)
        ]

    types = tuple(jax.make_jaxpr(push_rows)(operands[:kept], operands[kept:]).out_avals)
    outputs = _linear.bind(*operands, push=push_rows, pull=pull_rows, types=types, kept=kept)
    return outputs, [0] * len(outputs)


ad.primitive_jvps[_linear] = _differentiate
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
