"""What a step sends between devices, from its trace: each resharding that moves data."""

from collections import Counter
from math import prod

from jaxformer.plan.collectives import Collective
from jaxformer.plan.program import Operation, Value, each_operation
from jaxformer.plan.shardings import axes_of, cut, unreduced
from jaxformer.plan.trace import TracedStep


def collectives(step: TracedStep) -> list[Collective]:
    """The collectives of one training step, as the program asks for them.

    A parameter of fully sharded data parallelism is gathered before a product and its gradient
    scattered after it; a product over a cut axis ends with a sum over its devices.

    Args:
        step: The step.

    Returns:
        One for each kind and set of axes, the largest first.
    """
    mesh = {name: size for name, size in step.mesh_sizes.items() if size > 1}
    total: Counter[tuple[str, tuple[str, ...]]] = Counter()
    count: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def visit(op: Operation, times: int) -> None:
        for kind, axes, size in _moves(op, mesh):
            total[kind, axes] += times * size
            count[kind, axes] += times

    each_operation(step.program, visit)
    ordered = sorted(total, key=lambda key: -total[key])
    return [Collective(*key, total[key], count[key]) for key in ordered]


def _moves(op: Operation, mesh: dict[str, int]) -> list[tuple[str, tuple[str, ...], int]]:
    """What an operation sends: kind, axes and bytes."""
    if not mesh or not op.results or not op.operands or op.operands[0] is None:
        return []
    result = op.results[0]
    if op.name == "reshard":
        return _resharded(op.operands[0], result, mesh)
    if op.name == "scatter-add" and result.automatic:
        # Each device adds up its own rows; the sum over devices comes with the next sharding.
        rows = tuple(axis for axis in mesh if axis != "tensor")
        return [("reduce-scatter", rows, result.bytes)] if rows else []
    if op.name == "dot_general":
        (contracted, _), _ = op.equation.params["dimension_numbers"]
        return _summed(axes_of(op.operands[0], contracted), result, mesh)
    if op.name.startswith("reduce_"):
        axes = axes_of(op.operands[0], op.equation.params.get("axes", ()))
        return _summed(axes, result, mesh)
    return []


def _resharded(given: Value, made: Value, mesh) -> list[tuple[str, tuple[str, ...], int]]:
    if given.automatic or made.automatic:
        return []
    waiting = [axis for axis in mesh if axis in unreduced(given) - unreduced(made)]
    if waiting:
        return _summed(waiting, made, mesh)
    gathered = [axis for axis in mesh if axis in cut(given) - cut(made)]
    if not gathered:
        return []
    return [("all-gather", tuple(gathered), made.bytes)]


def _summed(axes, result: Value, mesh) -> list[tuple[str, tuple[str, ...], int]]:
    """A sum over devices: scattered where the result is cut over them, else on all of them."""
    pending = [axis for axis in axes if axis in mesh and axis not in unreduced(result)]
    scattered = tuple(axis for axis in mesh if axis in pending and axis in cut(result))
    whole = tuple(axis for axis in mesh if axis in pending and axis not in cut(result))
    moves = []
    if scattered:
        size = result.bytes * prod(mesh[axis] for axis in scattered)
        moves.append(("reduce-scatter", scattered, size))
    if whole:
        moves.append(("all-reduce", whole, result.bytes))
    return moves
