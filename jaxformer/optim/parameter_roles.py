"""The role of a parameter in optimisation, from its logical axes.

Attention projections keep their axes apart (`("embed", "heads", "head_dim")`) and layers may be
stacked (`("layers", ...)`), so the number of dimensions alone does not tell a matrix.
"""

import fnmatch
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxformer.errors import ConfigError
from jaxformer.models.lora import AbstractLoraModel
from jaxformer.models.parameters import AbstractModel

TABLE_ROWS = frozenset({"vocab", "positions", "buckets", "kinds"})
"""Axes that index the rows of a lookup table, when they come first."""
EMBEDDING_ROWS = TABLE_ROWS - {"buckets"}
"""Those of tables that are added to the stream, and not to attention's scores."""


_ONE_SIDE = frozenset({"embed", "rank"})


class Matrix(NamedTuple):
    """The dimensions of an array that is a matrix, or a stack of matrices."""

    inputs: tuple[int, ...]
    """Dimensions that the product with an activation contracts."""
    outputs: tuple[int, ...]
    """Dimensions that the product leaves."""


def map_axes(function: Callable[[str, tuple[str, ...]], Any], axes: Any) -> Any:
    """Maps `function(path, names)` over a tree with a tuple of axis names for each parameter."""

    def is_names(node):
        return isinstance(node, tuple) and all(isinstance(name, str) for name in node)

    def at(path, names):
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), names)

    return jax.tree_util.tree_map_with_path(at, axes, is_leaf=is_names)


def own_dimensions(names: tuple[str, ...]) -> tuple[int, ...]:
    """The dimensions of one layer's parameter: all that are not a stack of layers."""
    return tuple(i for i, name in enumerate(names) if name != "layers")


def matrix(path: str, names: tuple[str, ...]) -> Matrix | None:
    """How a parameter is a matrix, if it is one; every axis but "layers" is part of it.

    The model dimension "embed", or the "rank" of a low-rank factor, is one side and all other axes
    the other; without them there must be two axes. Norms have one axis. Biases, which may have
    several (`("heads", "head_dim")`), are known by a path that ends in "bias".
    """
    own = own_dimensions(names)
    if len(own) < 2 or path.endswith("bias"):
        return None
    if len(own) == 2 or names[own[0]] in _ONE_SIDE:
        return Matrix(own[:1], own[1:])
    if names[own[-1]] in _ONE_SIDE:
        return Matrix(own[:-1], own[-1:])
    return None


def is_decayed(path: str, names: tuple[str, ...], embeddings: bool = False) -> bool:
    """Whether weight decay applies: to matrices, except those that are lookup tables.

    A table's rows are its first axis (`("vocab", "embed")`); an output head of its own is
    `("embed", "vocab")` and decays.
    """
    rows = next((name for name in names if name != "layers"), None)
    spared = TABLE_ROWS - EMBEDDING_ROWS if embeddings else TABLE_ROWS
    return matrix(path, names) is not None and rows not in spared


def decay_mask(axes: Any, embeddings: bool = False) -> Any:
    """`is_decayed` for each parameter of a tree of axis names."""
    return map_axes(partial(is_decayed, embeddings=embeddings), axes)


def hidden_matrix(path: str, names: tuple[str, ...]) -> Matrix | None:
    """`matrix`, for those between two hidden activations only: no lookup tables, no output head."""
    return matrix(path, names) if is_decayed(path, names) and "vocab" not in names else None


def trained_names(
    abstract_model: AbstractModel | AbstractLoraModel, frozen: tuple[str, ...]
) -> tuple[str, ...]:
    """The names of the parameters that are trained."""
    names = tuple(abstract_model.shapes)
    for pattern in frozen:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"train.frozen: {pattern!r} matches no parameter; there are {', '.join(names[:5])}"
                f"{' ...' if len(names) > 5 else ''}"
            )
    learning = frozenset(abstract_model.learning)
    kept = [
        name
        for name in names
        if name in learning and not any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen)
    ]
    if not kept:
        raise ConfigError(f"train.frozen = {frozen}: every parameter is frozen, nothing can learn")
    return tuple(kept)
