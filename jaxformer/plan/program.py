"""A traced program as a flat list of operations on per-device arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import summarize

from jaxformer.functional.arrays import mesh_axes

PACKAGE = Path(__file__).parents[1]
LOOPS = ("scan", "while", "cond")
"""Operations whose bodies are separate programs."""
_CALLS = {
    "jit",
    "closed_call",
    "call_with_derivatives",
    "remat2",
    "shard_map",
    "custom_jvp_call",
    "custom_vjp_call",
    "linear_with_transpose",
    "core_call",
    "run_state",
    "checkpoint",
}
"""Operations whose body is inlined."""


@dataclass(eq=False)
class Value:
    """The shard of an array on one device."""

    shape: tuple[int, ...]
    """The shape of the shard."""
    dtype: Any
    """The dtype, which may be a PRNG key type."""
    source: str = ""
    """Where it is computed: "nn/attention.py:180"."""
    automatic: bool = False
    """Whether the compiler chooses the sharding; then `shape` is the global shape."""
    sharding: Any = None
    """The sharding of the global array, if its type has one."""
    on_host: bool = False
    """Whether it is in host memory."""
    row_major: bool = False
    """Whether its layout must be row-major, as for operands of kernels."""

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def axes(self) -> set[str]:
        """The mesh axes over which it is sharded."""
        return self.axes_of(range(len(self.shape)))

    def axes_of(self, dimensions) -> set[str]:
        """The mesh axes over which these dimensions are sharded."""
        entries = getattr(getattr(self.sharding, "spec", None), "partitions", ())
        return {axis for d in dimensions if d < len(entries) for axis in mesh_axes(entries[d])}

    @property
    def unreduced(self) -> set[str]:
        """The mesh axes over which it has yet to be summed."""
        return set(getattr(getattr(self.sharding, "spec", None), "unreduced", ()) or ())


@dataclass(eq=False)
class Operation:
    """An equation of a jaxpr."""

    name: str
    """The name of the primitive."""
    operands: list[Value | None]
    """The operands without constants; in loops, a constant is None."""
    results: list[Value]
    equation: JaxprEqn
    bodies: "list[Program]" = field(default_factory=list)
    """The body of a loop, or the branches of a conditional."""


@dataclass(eq=False)
class Program:
    """Operations in the order of the trace."""

    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Value | None]
    """The results; None for a constant."""


def flattened(traced: ClosedJaxpr | Jaxpr) -> Program:
    """Flattens a traced program by inlining the functions that it calls."""
    jaxpr = traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced
    known = {var: value_of(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)}
    operations: list[Operation] = []
    outputs = _inline(jaxpr, known, operations)
    return Program([known[var] for var in jaxpr.invars], operations, outputs)


def value_of(aval: jax.core.ShapedArray, source: str = "") -> Value:
    """Returns one device's shard of an array in the jaxpr."""
    sharding = getattr(aval, "sharding", None)
    shape = tuple(getattr(aval, "shape", ()))
    automatic = False
    mesh = getattr(sharding, "mesh", None)
    if mesh is not None and not mesh.empty:
        automatic = bool(mesh.auto_axes) and mesh.size > 1
        entries = zip_longest(shape, sharding.spec.partitions)
        cuts = [math.prod(mesh.shape[axis] for axis in mesh_axes(entry)) for _, entry in entries]
        shape = tuple(-(-size // cut) for size, cut in zip(shape, cuts, strict=True))
    dtype = getattr(aval, "dtype", None) or jax.numpy.dtype("int32")
    on_host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    return Value(shape, dtype, source, automatic, sharding, on_host)


def _inline(
    jaxpr: Jaxpr, known: dict[Var, Value | None], operations: list[Operation]
) -> list[Value | None]:
    """Appends the operations of a program to `operations` and returns its outputs."""

    def read(atom):
        return None if isinstance(atom, Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in _CALLS:
            body = _programs(equation)[0]
            results = _inline(body, _bound(body, inputs), operations)
        else:
            results = [value_of(var.aval, _source(equation)) for var in equation.outvars]
            operations.append(_operation(equation, inputs, results, operations))
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _operation(
    equation: JaxprEqn,
    inputs: list[Value | None],
    results: list[Value],
    operations: list[Operation],
) -> Operation:
    name = equation.primitive.name
    if name in LOOPS:
        bodies = [flattened(each) for each in _programs(equation)]
        return Operation(name, inputs, results, equation, bodies)
    operands = [value for value in inputs if value is not None]
    if name == "reshard" and operands:
        _propagate_sharding(operands[0], results[0], operations)
    if name == "optimization_barrier":  # one result for each operand
        results = [v for v, x in zip(results, inputs, strict=True) if x is not None]
    return Operation(name, operands, results, equation)


def _bound(body: Jaxpr, inputs: list[Value | None]) -> dict[Var, Value | None]:
    """Returns the values of a function's arguments and constants."""
    inner = dict(zip(body.invars, inputs, strict=True)) | dict.fromkeys(body.constvars)
    return {var: value_of(var.aval) if x is None else x for var, x in inner.items()}


def _propagate_sharding(given: Value, made: Value, operations: list[Operation]) -> None:
    """Propagates known shardings to values whose sharding the compiler chooses, as XLA does."""
    if made.automatic and not given.automatic:
        made.shape = given.shape
    if made.automatic or not given.automatic:
        return
    whole = given.shape
    given.shape = made.shape
    pending = {given}
    for operation in reversed(operations):
        if not pending:
            return
        if found := pending.intersection(operation.results):
            pending -= found
            same = [x for x in operation.operands if x and x.automatic and x.shape == whole]
            for operand in same:
                operand.shape = made.shape
            pending.update(same)


def _source(equation: JaxprEqn) -> str:
    """Returns the source line in the package of an operation: "nn/attention.py:180"."""
    line = summarize(equation.source_info).partition(" ")[0]
    path, _, rest = line.partition(":")
    known = path.startswith(str(PACKAGE))
    name = Path(path).relative_to(PACKAGE).as_posix() if known else Path(path).name
    return f"{name}:{rest.partition(':')[0]}"


def _programs(equation: JaxprEqn) -> list[Jaxpr]:
    """Returns the programs in the parameters of an operation."""
    return [
        each.jaxpr if isinstance(each, ClosedJaxpr) else each
        for value in equation.params.values()
        for each in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(each, ClosedJaxpr | Jaxpr)
    ]


def each_operation(program: Program, visit: Callable[[Operation, int], None], times: int = 1):
    """Calls a function with every operation and the number of times that a step runs it.

    A loop of unknown length counts once, and all branches of a conditional count.
    """
    for operation in program.operations:
        visit(operation, times)
        inner = times * operation.equation.params.get("length", 1) if operation.bodies else times
        for body in operation.bodies:
            each_operation(body, visit, inner)
