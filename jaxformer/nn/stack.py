"""Blocks of sublayers, and stacks of blocks: scanned or unrolled, with or without remat."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.errors import ConfigError
from jaxformer.functional.activations import is_active, saveable, scope, tap
from jaxformer.functional.arrays import assert_axes, assert_floating, check_result
from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.linear import PRODUCT
from jaxformer.functional.losses.terms import add_terms, pass_terms
from jaxformer.functional.norms import NoNorm, scaled
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.config import Remat, RematNames, TransformerConfig
from jaxformer.nn.layers import NormLayer, constant, parameter
from jaxformer.nn.residual import Branch
from jaxformer.nn.sublayer import Context, Sublayer, SublayerCache


@contextlib.contextmanager
def explained(sublayer: nnx.Module) -> Iterator[None]:
    """Raises ConfigError with advice where JAX cannot shard an operation of a sublayer."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "ShardingTypeError":  # JAX does not export it
            raise
        sizes = {k: n for k, n in jax.sharding.get_abstract_mesh().shape.items() if n > 1}
        raise ConfigError(
            f"{type(sublayer).__name__} cannot run on a mesh of {sizes}: {error} Apply what fails "
            "to each device's own rows and heads, with jaxformer.functional.per_device(function, "
            "*arrays), or choose a mesh that does not cut this axis, such as --mesh.tensor 1"
        ) from error


class Block(nnx.Module):
    """Sublayers around the residual stream, arranged by `config.residual`.

    Encoders and decoders have blocks of (self-attention, feed-forward); the decoder of an
    encoder-decoder has blocks of (self-attention, cross-attention, feed-forward).
    """

    def __init__(self, key: jax.Array, config: TransformerConfig, sublayers: Sequence[Sublayer]):
        """Declares the norms, and the scales of the sublayers' outputs."""
        self.sublayers = nnx.List(sublayers)
        self.residual = config.residual
        count = self.residual.num_norms(len(sublayers))
        keys = jax.random.split(key, count)
        norms = [config.norm if self.residual.first_norm or i else NoNorm() for i in range(count)]
        self.norms = nnx.List(
            [NormLayer(k, norm, config.model_dim) for k, norm in zip(keys, norms, strict=True)]
        )
        initial = self.residual.layer_scale
        shape = (config.model_dim,)
        self.scales = nnx.List(
            []
            if initial is None
            else [parameter(key, shape, ("norm",), constant(initial)) for _ in sublayers]
        )
        self.dropout = config.dropout

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        assert_axes(x=(x, "B T D"))
        assert_floating(x=x)
        return self._arranged(x, self._on_rows(context), key)

    @property
    def names(self) -> list[str]:
        """The names of the sublayers; a second one of a name is "attn_2"."""
        names = [sublayer.name for sublayer in self.sublayers]
        counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
        pairs = zip(names, counts, strict=True)
        return [f"{name}_{count}" if count > 1 else name for name, count in pairs]

    def init_cache(
        self, shape: CacheShape, encoder_outputs: jax.Array | None
    ) -> list[SublayerCache]:
        """The sublayers' caches before the first token, see `Sublayer.init_cache`."""
        caches = []
        for name, sublayer in zip(self.names, self.sublayers, strict=True):
            with scope(name):
                caches.append(sublayer.init_cache(shape, encoder_outputs))
        return caches

    def step(
        self, x: jax.Array, context: Context, caches: list[SublayerCache]
    ) -> tuple[jax.Array, list[SublayerCache]]:
        """`[B, T, D]` of the tokens of `context.chunk`, and the updated caches."""
        caches = list(caches)

        def run(i, x, key):
            # `residual` calls each branch once, with only the residual stream.
            y, caches[i] = self.sublayers[i].step(x, context, caches[i])
            return y

        return self._arranged(x, run), caches

    def _on_rows(self, context):
        """Returns the function `(i, x, key)` that applies the i-th sublayer to whole rows."""
        return lambda i, x, key: self.sublayers[i](x, context, key)

    def _arranged(self, x, run, key=None, last=None):
        """Returns the arrangement of the sublayers, of which `run(i, x, key)` applies the i-th.

        `last` maps the output of the last norm.
        """
        names, keys = self.names, split(key, len(self.sublayers))
        # The stream is named after what it comes from: mid, mid_cross, post.
        streams = ["mid", *(f"mid_{name.removesuffix('_attn')}" for name in names[1:-1])]
        streams = [*streams[: len(names) - 1], "post"]

        def branch(x, i):
            inner, outer = split(keys[i], 2)
            with scope(names[i]), explained(self.sublayers[i]):
                y = run(i, x, inner)
                check_result(self.sublayers[i], y, x)
            return dropout(self._scaled(y, i), self.dropout, outer)

        branches = [
            Branch(partial(branch, i=i), f"hook_{name}_out", f"hook_resid_{stream}")
            for i, (name, stream) in enumerate(zip(names, streams, strict=True))
        ]
        norms = zip(self.residual.norm_names(len(names)), self.norms, strict=True)
        named = [partial(norm.named, name) for name, norm in norms]
        if last is not None:
            final = named[-1]
            named[-1] = lambda x: last(final(x))
        y = self.residual(tap("hook_resid_pre", x), branches, named)
        check_result(self.residual, y, x)
        return y

    def _scaled(self, y, i):
        """A sublayer's output times its learned factors, if it has some, and the fixed one."""
        y = scaled(y, self.scales[i][...]) if self.scales else y
        fixed = self.residual.output_scale
        return y if fixed == 1 else y * jnp.asarray(fixed, y.dtype)


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
        if is_active():
            return self._unrolled(x, context, key)
        apply = rematerialised(pass_terms(_apply_group), remat)
        groups = list(self.group)
        count = jax.tree.leaves(groups)[0].shape[0]
        keys = None if key is None else jax.random.split(key, (count, self.repeats))
        numbers = jnp.arange(count * self.repeats).reshape(count, self.repeats)

        def apply_repeatedly(x, group, rows):
            return _loop(lambda x, row: apply(x, group, *row, context), x, rows, self.repeats, scan)

        layers = (groups, (keys, numbers))
        x, terms = _loop(lambda x, layer: apply_repeatedly(x, *layer), x, layers, count, scan)
        add_terms(terms)
        return x

    def unstack(self) -> None:
        """Stores the parameters of each layer as separate arrays, as a group of all blocks.

        A program that reads all of them for a few tokens would otherwise first copy each layer out
        of the stacked arrays. Layers that are applied repeatedly are unchanged.
        """
        if self.repeats == 1:
            blocks = [jax.tree.map(lambda x: x[None], block) for block in self.layers()]
            self.group = nnx.List(blocks)

    def layers(self) -> list[Block]:
        """The blocks in the order in which they are applied, each with its own parameters."""
        groups = list(self.group)
        rows = _unstacked(groups, jax.tree.leaves(groups)[0].shape[0])
        return [block for row in rows for block in row * self.repeats]

    def _unrolled(self, x, context, key):
        """Applies the blocks one by one, each in the scope of its number."""
        blocks = self.layers()
        keys = [None] * len(blocks)
        if key is not None:  # As where the layers are scanned.
            groups = jax.random.split(key, len(blocks) // len(self.group))
            keys = [each for group in groups for each in split(group, len(self.group))]
        for layer, (block, block_key) in enumerate(zip(blocks, keys, strict=True)):
            with scope(f"blocks.{layer}"):
                x = block(x, replace(context, layer=layer), block_key)
        return x

    def init_cache(
        self, shape: CacheShape, encoder_outputs: jax.Array | None
    ) -> list[list[SublayerCache]]:
        """The blocks' caches before the first token, see `Sublayer.init_cache`."""
        caches = []
        for layer, block in enumerate(self.layers()):
            with scope(f"blocks.{layer}"):
                caches.append(block.init_cache(shape, encoder_outputs))
        return caches

    def step(
        self, x: jax.Array, context: Context, caches: list[list[SublayerCache]]
    ) -> tuple[jax.Array, list[list[SublayerCache]]]:
        """`[B, T, D]` of the tokens of `context.chunk`, and the updated caches; unrolled."""
        updated = []
        for layer, (block, cache) in enumerate(zip(self.layers(), caches, strict=True)):
            with scope(f"blocks.{layer}"):
                x, cache = block.step(x, replace(context, layer=layer), cache)
            updated.append(cache)
        return x, updated


def _loop(step, x, rows, count: int, scan: bool):
    """`step(x, row)` for each of the `count` rows of a stacked tree, and the sum of their terms."""
    if count == 1:
        return step(x, jax.tree.map(lambda row: row.squeeze(0), rows))
    if scan:
        x, terms = jax.lax.scan(step, x, rows, length=count)
        return x, jax.tree.map(lambda each: jnp.sum(each, axis=0), terms)
    total = None
    for row in _unstacked(rows, count):
        x, terms = step(x, row)
        total = terms if total is None else jax.tree.map(jnp.add, total, terms)
    return x, total


def _apply_group(x, blocks, key, number, context):
    for place, (block, block_key) in enumerate(zip(blocks, split(key, len(blocks)), strict=True)):
        layer = number * len(blocks) + place
        y = block(saveable("block_input", x), replace(context, layer=layer), block_key)
        check_result(block, y, x)
        x = y
    return x


def _unstacked(tree, count: int) -> list:
    """The slices of a stacked tree, by `split`: its transpose is a single concatenation."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return [tree] * count
    # An array that is several leaves (a joined kernel) is sliced once.
    slices = {id(leaf): [x.squeeze(0) for x in jax.lax.split(leaf, [1] * count)] for leaf in leaves}
    columns = [slices[id(leaf)] for leaf in leaves]
    return [jax.tree.unflatten(structure, row) for row in zip(*columns, strict=True)]


def _name_layers(block: nnx.Module):
    """Prepends "layers" to the axes of parameters that `vmap` has stacked."""
    for _, variable in nnx.iter_graph(block):
        if isinstance(variable, nnx.Param):
            variable.set_metadata(axes=("layers", *variable.get_metadata()["axes"]))


def rematerialised(function: Callable, remat: Remat) -> Callable:
    """`function` with the backward pass of `remat`; the values and gradients are the same."""
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=_policy(remat))


def _policy(remat: Remat) -> Callable:
    policies = jax.checkpoint_policies
    if isinstance(remat, RematNames):
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=remat.save,
            names_which_can_be_offloaded=remat.offload,
            offload_src="device",
            offload_dst="pinned_host",
        )
    if remat == "dots":
        return policies.save_only_these_names(PRODUCT)
    return policies.nothing_saveable
