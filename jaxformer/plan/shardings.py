"""How the arrays of a traced program are cut over the mesh, as their types say."""

from collections.abc import Iterable
from math import prod

from jaxformer.functional.placement import mesh_axes
from jaxformer.plan.program import Operation, Value


def scattered(op: Operation) -> int:
    """Into how many parts devices cut the result of a product that each computes whole.

    Args:
        op: A product whose contracted dimensions may be cut, as the gradient of a parameter.

    Returns:
        The parts; 1 where nothing is scattered.
    """
    (contracted, _), _ = op.equation.params["dimension_numbers"]
    if op.operands[0] is None or op.results[0].sharding is None:
        return 1
    result = op.results[0]
    axes = (axes_of(op.operands[0], contracted) - unreduced(result)) & cut(result)
    return prod(result.sharding.mesh.shape[axis] for axis in axes)


def axes_of(value: Value, dimensions: Iterable[int]) -> set[str]:
    """The mesh axes over which these dimensions of an array are cut."""
    entries = getattr(getattr(value.sharding, "spec", None), "partitions", ())
    return {axis for d in dimensions if d < len(entries) for axis in mesh_axes(entries[d])}


def cut(value: Value) -> set[str]:
    """The mesh axes over which an array is cut."""
    entries = getattr(getattr(value.sharding, "spec", None), "partitions", ())
    return {axis for entry in entries for axis in mesh_axes(entry)}


def unreduced(value: Value) -> set[str]:
    """The mesh axes over which an array is still to be summed."""
    return set(getattr(getattr(value.sharding, "spec", None), "unreduced", ()) or ())


def sums(op: Operation) -> bool:
    """Whether devices sum an array, which waits for its reader as a gradient for the optimizer."""
    return op.name == "reshard" and bool(op.operands) and bool(unreduced(op.operands[0]))


def cuts(op: Operation) -> bool:
    """Whether each device takes its part of what all have."""
    if op.name != "reshard" or not op.operands:
        return False
    (given,), (made,) = op.operands, op.results
    return cut(given) < cut(made) and not unreduced(given)


def leaves_in_place(op: Operation) -> bool:
    """Whether a change of sharding leaves every device what it has."""
    if not op.operands:
        return True
    (given,), (made,) = op.operands, op.results
    return given.automatic != made.automatic or given.shape == made.shape
