"""Many blocks in a row over stacked parameters: scanned or unrolled, with or without remat."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.dropout import split
from jaxformer.functional.linear import PRODUCT
from jaxformer.nn.block import Block
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.context import Context
from jaxformer.nn.sublayer import Cache

Remat = Literal["none", "dots", "full"]

_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Stack(nnx.Module):
    """`num_layers` blocks. Blocks that differ repeat as a group: (windowed, global), ...

    The parameters of the i-th block of every group are one tree whose leaves have a leading
    "layers" axis, `[num_layers / (group size x repeats), ...]`, whether the stack is scanned or
    unrolled. Each group is applied `repeats` times before the next.
    """

    def __init__(
        self,
        key: jax.Array,
        num_layers: int,
        group: tuple[Callable[[jax.Array], Block], ...],
        repeats: int = 1,
    ):
        """Builds the blocks; `group` holds one constructor for each block of a group."""
        self.repeats = repeats
        keys = jax.random.split(key, (len(group), num_layers // (len(group) * repeats)))
        self.group = nnx.List([jax.vmap(make)(row) for make, row in zip(group, keys, strict=True)])
        for block in self.group:
            _name_layers(block)

    def __call__(
        self,
        x: jax.Array,
        context: Context,
        key: jax.Array | None,
        *,
        scan: bool = True,
        remat: Remat = "none",
    ) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        apply = _apply_group if remat == "none" else _rematerialised(_POLICIES[remat])
        groups = list(self.group)
        count = jax.tree.leaves(groups)[0].shape[0]
        keys = None if key is None else jax.random.split(key, (count, self.repeats))
        numbers = jnp.arange(count * self.repeats).reshape(count, self.repeats)

        def apply_repeatedly(x, group, rows):
            return _loop(lambda x, row: apply(x, group, *row, context), x, rows, self.repeats, scan)

        layers = (groups, (keys, numbers))
        return _loop(lambda x, layer: apply_repeatedly(x, *layer), x, layers, count, scan)

    def set_apart(self) -> None:
        """Makes the blocks one group, so that each layer's parameters are arrays of their own.

        What reads all of them for a few tokens would otherwise copy each layer out of the stacked
        arrays first. Layers that are applied repeatedly stay as they are.
        """
        if self.repeats == 1:
            self.group = nnx.List([jax.tree.map(_stacked, block) for block in self.layers()])

    def layers(self) -> list[Block]:
        """The blocks in the order in which they are applied, each with its own parameters."""
        groups = list(self.group)
        rows = _unstacked(groups, jax.tree.leaves(groups)[0].shape[0])
        return [block for row in rows for block in row * self.repeats]

    def states(self, x: jax.Array, context: Context) -> Iterator[jax.Array]:
        """Yields the state `[B, T, D]` after each block, unrolled and without dropout."""
        for layer, block in enumerate(self.layers()):
            x = block(x, replace(context, layer=layer), None)
            yield x

    def start(self, shape: CacheShape, memory: jax.Array | None) -> list[list[Cache]]:
        """What each block keeps before the first token, see `Sublayer.start`."""
        return [block.start(shape, memory) for block in self.layers()]

    def extend(
        self, x: jax.Array, context: Context, caches: list[list[Cache]]
    ) -> tuple[jax.Array, list[list[Cache]]]:
        """`[B, T, D]` of the tokens of `context.span`, and what is kept after them; unrolled."""
        kept = []
        for layer, (block, cache) in enumerate(zip(self.layers(), caches, strict=True)):
            x, cache = block.extend(x, replace(context, layer=layer), cache)
            kept.append(cache)
        return x, kept


def _loop(step, x, rows, count: int, scan: bool):
    """`step(x, row)` for each of the `count` rows of a stacked tree."""
    if count == 1:
        return step(x, jax.tree.map(lambda row: row.squeeze(0), rows))
    if scan:
        return jax.lax.scan(lambda x, row: (step(x, row), None), x, rows, length=count)[0]
    for row in _unstacked(rows, count):
        x = step(x, row)
    return x


def _apply_group(x, blocks, key, number, context):
    for place, (block, block_key) in enumerate(zip(blocks, split(key, len(blocks)), strict=True)):
        x = block(x, replace(context, layer=number * len(blocks) + place), block_key)
    return x


def _rematerialised(policy):
    return jax.checkpoint(_apply_group, policy=policy)


def _unstacked(tree, count: int) -> list:
    """The slices of a stacked tree, by `split`: its transpose is a single concatenation."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return [tree] * count
    columns = [[x.squeeze(0) for x in jax.lax.split(leaf, [1] * count)] for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def _stacked(x: jax.Array) -> jax.Array:
    """An array as that of a stack of one."""
    return x[None]


def _name_layers(block: nnx.Module):
    """Prepends "layers" to the axes of parameters that `vmap` has stacked."""
    for _, variable in nnx.iter_graph(block):
        if isinstance(variable, nnx.Param):
            variable.set_metadata(axes=("layers", *variable.get_metadata()["axes"]))
