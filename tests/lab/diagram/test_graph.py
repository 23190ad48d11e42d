"""Residual arrangements as graphs, which compute what the arrangements do with arrays."""

from dataclasses import dataclass

import jax.numpy as jnp
import pytest

from jaxformer.errors import ConfigError
from jaxformer.lab.diagram.graph import Box, Node, arrange, levels, walk
from jaxformer.nn import BranchNorm, Parallel, PostNorm, PreNorm, Residual, SandwichNorm

SUBLAYERS = {"f": lambda x: 3 * x + 1, "g": lambda x: x * x, "h": lambda x: 2 - x}


@dataclass(frozen=True)
class Half(Residual):
    """`x / 2 + 0.5 f(norm(x))` for each sublayer."""

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = x / 2 + sublayer(norm(x)) * 0.5
        return x


@dataclass(frozen=True)
class Squared(Residual):
    """Not linear in its branches."""

    def __call__(self, x, sublayers, norms):
        return x + sublayers[0](norms[0](x)) ** 2


RESIDUALS = [
    PreNorm(),
    PostNorm(),
    BranchNorm(),
    SandwichNorm(),
    Parallel(shared_norm=True),
    Parallel(shared_norm=False),
    Half(),
]


def norm_map(number):
    return lambda x: x / (2 + number)


def graph_of(residual, names):
    stream = Node(Box("input", "x"))
    count = residual.num_norms(len(names))
    boxes = [Box("mlp", name) for name in names]
    norms = [Box("norm", str(number)) for number in range(count)]
    return stream, arrange(residual, stream, boxes, norms), count


def value(node, stream, x, names):
    """Evaluates a graph with numbers."""
    if node is stream:
        return x
    inputs = [value(source, stream, x, names) for source in node.inputs]
    if node.box.kind == "sum":
        return sum(inputs)
    (only,) = inputs
    if node.box.kind == "norm":
        return norm_map(int(node.box.title))(only)
    if node.box.kind == "mlp":
        return SUBLAYERS[node.box.title](only)
    return only * float(node.box.title.removeprefix("x "))


@pytest.mark.parametrize("residual", RESIDUALS, ids=repr)
@pytest.mark.parametrize("names", ["fg", "fgh"])
def test_the_graph_computes_what_the_arrangement_does(residual, names):
    stream, end, count = graph_of(residual, names)
    maps = [SUBLAYERS[name] for name in names]
    norms = [norm_map(number) for number in range(count)]
    expected = residual(jnp.asarray(0.7), maps, norms)
    assert value(end, stream, 0.7, names) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("residual", RESIDUALS, ids=repr)
def test_nodes_are_above_what_they_read(residual):
    stream, end, _ = graph_of(residual, "fgh")
    found = levels(end)
    assert found[stream] == 0
    assert all(found[n] > found[source] for n in walk(end) for source in n.inputs)
    assert len(list(walk(end))) == len(found)


def test_branches_in_parallel_meet_in_one_sum():
    _, end, _ = graph_of(Parallel(shared_norm=True), "fgh")
    assert end.box.kind == "sum"
    assert len(end.inputs) == 4
    sums = [node for node in walk(end) if node.box.kind == "sum"]
    assert sums == [end]


def test_a_norm_that_does_nothing_is_not_drawn():
    stream = Node(Box("input", "x"))
    end = arrange(PreNorm(), stream, [Box("mlp", "f"), Box("mlp", "g")], [None, Box("norm", "0")])
    assert [node.box.kind for node in walk(end)].count("norm") == 1


def test_an_arrangement_that_cannot_be_drawn_is_named():
    with pytest.raises(ConfigError, match=r"model.residual = Squared\(\)"):
        graph_of(Squared(), "f")
