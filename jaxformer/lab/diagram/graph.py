"""An architecture as a graph of boxes and sums, including residual arrangements."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxformer.errors import ConfigError
from jaxformer.io.serialization import summary
from jaxformer.nn.residual import Residual

Kind = Literal["input", "embedding", "position", "norm", "attention", "mlp", "head", "sum", "other"]


@dataclass(frozen=True)
class Box:
    """The label of a node."""

    kind: Kind
    """Determines the color."""
    title: str = ""
    lines: tuple[str, ...] = ()
    """Smaller text below the title: shapes and options."""
    parameters: int = 0


class Node:
    """A value in the graph: the output of a box, or a sum of values.

    A residual arrangement is an expression of sums and functions, `x + f(norm(x))`; evaluating it
    on nodes instead of arrays builds its graph. Multiplication by a number adds the number to a
    box.
    """

    def __init__(self, box: Box, inputs: Sequence["Node"] = ()):
        self.box, self.inputs = box, list(inputs)

    def __add__(self, other: Any) -> "Node":
        """Returns the sum with another node; adding the number 0, as in `sum`, has no effect."""
        if isinstance(other, Node):
            return Node(Box("sum", "+"), (self, other))
        return self if isinstance(other, int | float) and other == 0 else NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: Any) -> "Node":
        if isinstance(factor, int | float):
            return Node(Box("other", f"x {factor:g}"), (self,))
        return NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "Node":
        return self * (1 / divisor) if isinstance(divisor, int | float) else NotImplemented


def arrange(
    residual: Residual, stream: Node, sublayers: Sequence[Box], norms: Sequence[Box | None]
) -> Node:
    """Runs a residual arrangement on boxes."""

    def maps(boxes: Sequence[Box | None]) -> list[Any]:
        return [(lambda x, box=box: x if box is None else Node(box, (x,))) for box in boxes]

    try:
        result = residual(stream, maps(sublayers), maps(norms))
        nodes = list(walk(result))
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"model.residual = {summary(residual)}: can only be drawn if it consists of sums, "
            f"functions and numbers ({error})"
        ) from error
    _merge_sums(nodes)
    return result


def walk(*ends: Node) -> Iterator[Node]:
    """Yields the ancestors of some nodes, each once, in topological order."""
    seen: set[Node] = set()

    def visit(nodes: Sequence[Node]) -> Iterator[Node]:
        for node in nodes:
            if node not in seen:
                seen.add(node)
                yield from visit(node.inputs)
                yield node

    yield from visit(ends)


def levels(*ends: Node) -> dict[Node, int]:
    """Returns the level of each node: one above its highest input, from 0."""
    found: dict[Node, int] = {}
    for node in walk(*ends):
        found[node] = 1 + max((found[source] for source in node.inputs), default=-1)
    return found


def _merge_sums(nodes: Sequence[Node]) -> None:
    """Merges `x + (a + b)` into one sum of three unless the inner sum has other readers."""
    readers = Counter(source for node in nodes for source in node.inputs)
    for node in nodes:
        if node.box.kind == "sum":
            inner = [s.box.kind == "sum" and readers[s] == 1 for s in node.inputs]
            pairs = zip(node.inputs, inner, strict=True)
            node.inputs = [each for s, merge in pairs for each in (s.inputs if merge else [s])]
