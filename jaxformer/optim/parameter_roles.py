"""The role of a parameter in optimization, derived from its logical axes.

Attention projections have separate axes (`("embed", "heads", "head_dim")`), and layers and experts
may be stacked (`("layers", "expert", ...)`), so the number of dimensions alone does not identify a
matrix.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxformer.errors import ConfigError
from jaxformer.models.lora import AbstractLoraModel
from jaxformer.models.parameters import AbstractModel, matching
from jaxformer.nn.layers import num_stacking_axes

TABLE_ROWS = frozenset({"vocab", "positions", "buckets", "kinds"})
"""Axes that index the rows of a lookup table if they come first."""
EMBEDDING_ROWS = TABLE_ROWS - {"buckets"}
"""First axes of tables that are added to the residual stream, not to attention scores."""


_ONE_SIDE = frozenset({"embed", "rank"})


class Matrix(NamedTuple):
    """The dimensions of an array that is a matrix, or a stack of matrices."""

    inputs: tuple[int, ...]
    """Input dimensions, which the product with an activation contracts."""
    outputs: tuple[int, ...]
    """Output dimensions."""


def map_axes(function: Callable[[str, tuple[str, ...]], Any], axes: Any) -> Any:
    """Maps `function(path, names)` over a tree of axis-name tuples."""

    def is_names(node):
        return isinstance(node, tuple) and all(isinstance(name, str) for name in node)

    def at(path, names):
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), names)

    return jax.tree_util.tree_map_with_path(at, axes, is_leaf=is_names)


def layer_dimensions(names: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the dimensions of one layer's parameter, without the stacking axes."""
    return tuple(range(num_stacking_axes(names), len(names)))


def matrix(path: str, names: tuple[str, ...]) -> Matrix | None:
    """Returns a parameter's matrix dimensions (all but the stacking axes), or None if it is not a
    matrix.

    The model dimension "embed", or the "rank" of a low-rank factor, is one side and all other axes
    are the other; without them there must be two axes. Norms have one axis. Biases, which may have
    several (`("heads", "head_dim")`), are recognized by a path that ends in "bias".
    """
    own = layer_dimensions(names)
    if len(own) < 2 or path.endswith("bias"):
        return None
    if len(own) == 2 or names[own[0]] in _ONE_SIDE:
        return Matrix(own[:1], own[1:])
    if names[own[-1]] in _ONE_SIDE:
        return Matrix(own[:-1], own[-1:])
    return None


def is_decayed(path: str, names: tuple[str, ...], embeddings: bool = False) -> bool:
    """Whether weight decay applies, as it does to matrices except lookup tables.

    The rows of a table are its first axis (`("vocab", "embed")`); an untied output head is
    `("embed", "vocab")` and decays.
    """
    rows = next((names[i] for i in layer_dimensions(names)), None)
    spared = TABLE_ROWS - EMBEDDING_ROWS if embeddings else TABLE_ROWS
    return matrix(path, names) is not None and rows not in spared


def decay_mask(axes: Any, embeddings: bool = False) -> Any:
    """Applies `is_decayed` to each parameter of a tree of axis names."""
    return map_axes(partial(is_decayed, embeddings=embeddings), axes)


def hidden_matrix(path: str, names: tuple[str, ...]) -> Matrix | None:
    """Like `matrix`, but None for lookup tables and the output head."""
    return matrix(path, names) if is_decayed(path, names) and "vocab" not in names else None


def trained_names(
    abstract_model: AbstractModel | AbstractLoraModel, frozen: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the names of the trained parameters."""
    names, learning = abstract_model.shapes, frozenset(abstract_model.learning)
    left_out = matching(names, frozen, "train.frozen")
    kept = tuple(name for name in names if name in learning and name not in left_out)
    if not kept:
        raise ConfigError(
            f"train.frozen = {frozen}: every parameter is frozen, so nothing can be trained"
        )
    return kept
