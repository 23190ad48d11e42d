"""A traced program as a flat list of operations on arrays of one device."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import summarize

from jaxformer.functional.placement import mesh_axes

PACKAGE = Path(__file__).parents[1]
LOOPS = ("scan", "while", "cond")
"""Operations that hold other programs."""
SAME = {
    *("name", "reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "reshard"),
    *("stop_gradient", "pvary"),
}
"""Operations whose result is the same array under another name."""
FUSED = {
    *("abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil"),
    *("clamp", "clz", "concatenate", "convert_element_type", "copy", "cos", "div"),
    *("dynamic_slice", "eq", "erf", "erf_inv", "exp", "exp2", "expand_dims", "expm1", "floor"),
    *("ge", "gt", "imag", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic"),
    *("lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not", "or", "pad"),
    *("population_count", "pow", "pvary", "random_bits", "random_unwrap", "random_wrap", "real"),
    *("reduce_precision", "rem", "reshape", "rev", "round", "rsqrt", "select_n", "shift_left"),
    *("shift_right_arithmetic", "shift_right_logical", "sign", "sin", "slice", "split", "sqrt"),
    *("square", "squeeze", "stack", "stop_gradient", "sub", "tan", "tanh", "threefry2x32"),
    *("tile", "transpose", "xor"),
}
"""Operations that are computed where they are read, or by the one whose result they change."""
CLOSED = {"pallas_call", "gather", "scatter-add", "sort", "custom_call", "top_k"}
"""Operations of which nothing that follows can be a part."""
FUSING = {"dot_general", "conv_general_dilated", "dynamic_update_slice", "scatter-add"}
"""Operations that compute on the way what they read."""
# Their bodies are a part of the program around them.
_CALLS = {
    *("jit", "closed_call", "call_with_derivatives", "remat2", "shard_map", "custom_jvp_call"),
    *("custom_vjp_call", "linear_with_transpose", "core_call", "run_state", "checkpoint"),
}


@dataclass(eq=False)
class Value:
    """An array as one device holds it."""

    shape: tuple[int, ...]
    """Its part of the array."""
    dtype: Any
    """The dtype; PRNG keys have one of their own."""
    source: str = ""
    """Where it is computed: "nn/attention.py:180"."""
    automatic: bool = False
    """The compiler chooses how it is cut; `shape` is that of the whole array."""
    sharding: Any = None
    """How the whole array is cut over the mesh, where its type says so."""
    on_host: bool = False
    """It lies in the memory of the host."""
    in_rows: bool = False
    """It lies in memory as its shape says, as for a kernel; else the compiler orders its axes."""

    @property
    def bytes(self) -> int:
        """Bytes of memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(eq=False)
class Operation:
    """One operation. The operands that are constants are left out."""

    name: str
    """The name of the primitive."""
    operands: list[Value]
    """What it reads."""
    results: list[Value]
    """What it makes."""
    equation: JaxprEqn
    """The operation in JAX's own form."""
    bodies: "list[Program]" = field(default_factory=list)
    """The programs of a loop's body or of the branches of a condition."""


@dataclass(eq=False)
class Program:
    """Operations in the order in which they were traced."""

    inputs: list[Value]
    """What the caller gives."""
    operations: list[Operation]
    """What is computed, in order."""
    outputs: list[Value | None]
    """What the caller gets; None for a constant."""


def flattened(traced: ClosedJaxpr | Jaxpr) -> Program:
    """A traced program with the functions that it calls written out.

    Args:
        traced: The program; arrays of its mesh are sharded in their types.

    Returns:
        The same program, whose arrays are those of one device.
    """
    jaxpr = traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced
    known = {var: value_of(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)}
    operations: list[Operation] = []
    outputs = _write_out(jaxpr, known, operations)
    return Program([known[var] for var in jaxpr.invars], operations, outputs)


def value_of(aval: jax.core.ShapedArray, source: str = "") -> Value:
    """An array of the program as one device holds it."""
    sharding = getattr(aval, "sharding", None)
    shape, automatic = tuple(getattr(aval, "shape", ())), False
    mesh = getattr(sharding, "mesh", None)
    if mesh is not None and not mesh.empty:
        automatic = bool(mesh.auto_axes) and mesh.size > 1
        entries = zip_longest(shape, sharding.spec.partitions)
        cuts = [math.prod(mesh.shape[axis] for axis in mesh_axes(entry)) for _, entry in entries]
        shape = tuple(-(-size // cut) for size, cut in zip(shape, cuts, strict=True))
    dtype = getattr(aval, "dtype", None) or jax.numpy.dtype("int32")
    on_host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    return Value(shape, dtype, source, automatic, sharding, on_host)


def _write_out(jaxpr: Jaxpr, known: dict[Var, Value], operations: list[Operation], made=None):
    """Appends the operations of a program; returns its outputs. `made`: what need not run twice."""
    made = {} if made is None else made

    def read(atom):
        return None if isinstance(atom, Literal) else known.get(atom)

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in _CALLS:
            body = _only_program(equation)
            inner = dict(zip(body.invars, inputs, strict=True))
            inner |= {var: value_of(var.aval) for var in body.constvars}
            _fill(inner)
            results = _write_out(body, inner, operations, made)
        elif name == "scan" and equation.params["length"] == 1:
            results = _run_once(equation, inputs, operations, made)
        elif (repeated := _repeated(equation, inputs)) in made:
            results = made[repeated]
        else:
            results = [_result(var.aval, equation) for var in equation.outvars]
            bodies = [flattened(each) for each in _programs(equation)] if name in LOOPS else []
            operands = [value for value in inputs if value is not None]
            if name == "reshard" and operands:
                _meet(operands[0], results[0], operations)
            kept = inputs if name in LOOPS else operands
            changed = results
            if name == "optimization_barrier":  # of each operand; those of constants are constants
                changed = [v for v, x in zip(results, inputs, strict=True) if x is not None]
            operations.append(Operation(name, kept, changed, equation, bodies))
            if repeated is not None:
                made[repeated] = results
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run_once(equation: JaxprEqn, inputs: list, operations: list[Operation], made: dict):
    """A loop of one turn, which the compiler writes out."""
    body, params = _only_program(equation), equation.params
    whole = params["num_consts"] + params["num_carry"]
    inner = dict(zip(body.invars, inputs, strict=True))
    for var, stack in zip(body.invars[whole:], inputs[whole:], strict=True):
        if stack is not None:
            inner[var] = value_of(var.aval, _place(equation))
            operations.append(Operation("squeeze", [stack], [inner[var]], equation))
    inner |= {var: value_of(var.aval) for var in body.constvars}
    _fill(inner)
    outputs = _write_out(body, inner, operations, made)
    results = outputs[: params["num_carry"]]
    for var, part in zip(equation.outvars[len(results) :], outputs[len(results) :], strict=True):
        stack = value_of(var.aval, _place(equation))
        operations.append(Operation("expand_dims", [part] if part else [], [stack], equation))
        results.append(stack)
    return results


def _repeated(equation: JaxprEqn, inputs: list[Value | None]) -> tuple | None:
    """What tells a cast or a gather apart: the compiler makes the same one once."""
    name, params = equation.primitive.name, equation.params
    if name == "convert_element_type" and inputs[0] is not None:
        return name, inputs[0], params["new_dtype"]
    if name == "reshard" and inputs[0] is not None:
        return name, inputs[0], str(equation.outvars[0].aval)
    return None


def _fill(inner: dict[Var, Value | None]) -> None:
    """Gives the constants that a function is called with a value."""
    for var, value in inner.items():
        if value is None:
            inner[var] = value_of(var.aval)


def _meet(given: Value, made: Value, operations: list[Operation]) -> None:
    """Where the compiler's own choice meets a known sharding, the array is cut as that one."""
    if given.automatic and not made.automatic:
        _cut(given, made.shape, operations)
    elif made.automatic and not given.automatic:
        made.shape = given.shape


def _cut(value: Value, shape: tuple[int, ...], operations: list[Operation]) -> None:
    """Cuts an array, and those of the same shape from which the compiler computes it."""
    whole, value.shape, pending = value.shape, shape, {value}
    for operation in reversed(operations):
        if not pending:
            return
        if made := pending.intersection(operation.results):
            pending -= made
            same = [x for x in operation.operands if x and x.automatic and x.shape == whole]
            for operand in same:
                operand.shape = shape
            pending.update(same)


def _result(aval, equation: JaxprEqn) -> Value:
    return value_of(aval, _place(equation))


def _place(equation: JaxprEqn) -> str:
    """The line of the package that asked for an operation: "nn/attention.py:180"."""
    line = summarize(equation.source_info).partition(" ")[0]
    path, _, rest = line.partition(":")
    known = path.startswith(str(PACKAGE))
    name = Path(path).relative_to(PACKAGE).as_posix() if known else Path(path).name
    return f"{name}:{rest.partition(':')[0]}"


def _programs(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs in the parameters of an operation."""
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr | Jaxpr):
                found.append(each.jaxpr if isinstance(each, ClosedJaxpr) else each)
    return found


def _only_program(equation: JaxprEqn) -> Jaxpr:
    return _programs(equation)[0]


def each_operation(program: Program, visit: Callable[[Operation, int], None], times: int = 1):
    """Calls a function with every operation, and with how often a step runs it.

    A loop whose length is not known while tracing counts once; of a condition, every branch does.

    Args:
        program: The program.
        visit: From an operation and its count.
        times: How often the program itself runs.
    """
    for operation in program.operations:
        visit(operation, times)
        inner = times * operation.equation.params.get("length", 1) if operation.bodies else times
        for body in operation.bodies:
            each_operation(body, visit, inner)
