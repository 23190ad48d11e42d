"""Modules as flat dictionaries of arrays, in their own layout and in that of generation."""

import fnmatch
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxformer.errors import ConfigError, closest
from jaxformer.functional.linear import Kernel, Part, Quantized, quantized, transposed
from jaxformer.nn.layers import Embedding, num_layer_axes, num_stacking_axes
from jaxformer.nn.sublayer import Sublayer

Parameters = dict[str, jax.Array]
"""The arrays of a model by path."""
EXPERT_AXES = {"expert", "experts"}
"""The axes of the kernels of experts, and of their routers."""
_STACK_PATH = re.compile(r"(.*stack\.group)\.(\d+)\.(.*)")


class StackPath(NamedTuple):
    """The path of a parameter in a stack of layers, which may consist of repeated groups.

    The parameter has one row per repetition. Layer i of a stack whose groups have g blocks is row i
    // g of the parameters of block i % g.
    """

    stack: str
    """The stack: "transformer.stack.group"."""
    block: int
    """The index of the block in the group, from 0."""
    rest: str
    """The path within the block: "sublayers.0.attention.query.kernel"."""

    def __str__(self) -> str:
        return f"{self.stack}.{self.block}.{self.rest}"


def stack_path(name: str) -> StackPath | None:
    """Parses a parameter's path; returns None for parameters that are not in a stack."""
    found = _STACK_PATH.fullmatch(name)
    return found and StackPath(found[1], int(found[2]), found[3])


def without_part_prefix(name: str) -> str:
    """Removes a composite's part from a path: "heads.tags.bias" of "decoder.heads.tags.bias"."""
    return re.sub(r"^(encoder|decoder|text|image)\.", "", name)


def matching(
    names: Collection[str], patterns: Iterable[str], field: str, kind: str = "parameter"
) -> dict[str, None]:
    """Returns the names that match the patterns of a field, in order; each must match one."""
    found: dict[str, None] = {}
    for pattern in patterns:
        own = fnmatch.filter(names, pattern)
        if not own:
            nearest = ", ".join(closest(pattern, names, 3) or list(names)[:5]) or "none"
            raise ConfigError(f"{field}: {pattern!r} matches no {kind}; there are {nearest}, ...")
        found |= dict.fromkeys(own)
    return found


def group_sizes(names: Iterable[str]) -> dict[str, int]:
    """Returns the number of blocks per group for each stack among parameter paths."""
    sizes: dict[str, int] = {}
    for path in filter(None, map(stack_path, names)):
        sizes[path.stack] = max(sizes.get(path.stack, 0), path.block + 1)
    return sizes


class AbstractModel:
    """The structure of a module without its arrays: names, shapes, axes and tree structure.

    The training state, checkpoints and weight tables all see parameters as one flat dictionary from
    dotted paths (`stack.group.0.sublayers.0.attention.query.kernel`) to arrays.
    """

    def __init__(self, build: Callable[[jax.Array], nnx.Module]):
        """Traces `build(key)` abstractly; nothing is allocated."""
        self._build = build
        self._definition, state = nnx.split(jax.eval_shape(build, jax.random.key(0)))
        self._variables = dict(nnx.to_flat_state(state))
        self._paths = {".".join(map(str, path)): path for path in self._variables}
        variables = {name: self._variables[path] for name, path in self._paths.items()}
        self.shapes = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in variables.items()}
        self._metadata = {name: variable.get_metadata() for name, variable in variables.items()}
        self.axes: dict[str, tuple[str, ...]] = {n: x["axes"] for n, x in self._metadata.items()}
        inputs = {name: each["contract"] for name, each in self._metadata.items()}
        self.kernels: dict[str, int] = {name: count for name, count in inputs.items() if count}

    @property
    def learning(self) -> tuple[str, ...]:
        """The names of the trainable parameters, excluding fixed ones."""
        return tuple(name for name, each in self._metadata.items() if each["learns"])

    @property
    def largest(self) -> dict[str, float]:
        """The maximum values of parameters that have one."""
        limits = {name: each["largest"] for name, each in self._metadata.items()}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def init(self, key: jax.Array) -> Parameters:
        """Initializes the parameters."""
        return self.parameters(self._build(key))

    def parameters(self, module: nnx.Module) -> Parameters:
        """Returns the arrays of a module with this structure."""
        variables = dict(nnx.to_flat_state(nnx.state(module)))
        return {name: variables[path][...] for name, path in self._paths.items()}

    def module(self, parameters: Parameters, key: jax.Array | None = None) -> nnx.Module:
        """Builds the module with these arrays (or tracers, or shapes).

        Args:
            parameters: By name; a kernel may have any form of `functional.linear`.
            key: The dropout key of low-rank factors, unused here.

        Returns:
            The module.
        """
        variables = [
            (path, self._variables[path].replace(parameters[name]))
            for name, path in self._paths.items()
        ]
        return nnx.merge(self._definition, nnx.from_flat_state(variables))

    def merged(self, parameters: Parameters) -> Parameters:
        """Returns the parameters unchanged, since the model is plain."""
        return parameters


@lru_cache(maxsize=8)
def abstract_model_of(config: Any) -> AbstractModel:
    """Returns the structure of a model, traced once for equal configs; it must not be changed."""
    return AbstractModel(config.build)


Arranged = dict[str, Kernel]
"""The arrays of a model by their paths; joined kernels have the path of the first of them."""


class ArrangedModel:
    """A model whose layers are separate, and whose kernels are joined and transposed.

    The kernels that a sublayer `joins` are one array, so that a pass computes one product with
    them. For few rows `Transposed` kernels are read up to three times as fast on a CPU, and a fifth
    faster for one row on a GPU.
    """

    def __init__(
        self,
        build: Callable[[jax.Array], nnx.Module],
        dtype: DTypeLike,
        *,
        joined: bool,
        transposed: bool,
        int8: bool = False,
    ):
        """Traces `build(key)` abstractly; nothing is allocated."""

        def apart(key: jax.Array) -> nnx.Module:
            return _apart(build(key), transposed)

        self.plain = AbstractModel(build)
        self._apart = AbstractModel(apart)
        self._dtype = dtype
        self._transposed = transposed
        self._int8 = int8
        kernels = self._apart.kernels
        axes = self._apart.axes
        # The grouped product of experts reads their kernels as they are stored.
        kernels = {
            name: count
            for name, count in kernels.items()
            if num_stacking_axes(axes[name]) == num_layer_axes(axes[name])
        }
        joins = list(_joins(jax.eval_shape(apart, jax.random.key(0)), kernels)) if joined else []
        parts = {name for names in joins for name in names}
        self._products = [*joins, *((name,) for name in kernels if name not in parts)]

    def arrange(self, parameters: Parameters) -> Arranged:
        """The arrays of the model, from those of the plain one."""
        model = _apart(self.plain.module(parameters), self._transposed)
        arranged: Arranged = self._apart.parameters(model)
        for names in self._products:
            kernels = [arranged.pop(name) for name in names]
            arranged[names[0]] = self._arranged(names[0], kernels)
        return arranged

    def module(self, arranged: Arranged) -> nnx.Module:
        """The model with these arrays (or tracers)."""
        kernels = dict(arranged)
        for names in self._products:
            start = 0
            for name in names if len(names) > 1 else ():
                outputs = self._sizes(name)[2]
                kernels[name] = Part(arranged[names[0]], start, outputs)
                start += math.prod(outputs)
        return self._apart.module(kernels)

    def _arranged(self, first: str, kernels: list[jax.Array]) -> Kernel:
        """Joins kernels with the same inputs into one; `first` is the name of the first."""
        layers, inputs, outputs = self._sizes(first)
        if len(kernels) > 1:
            # A later cast of each part would be hoisted out of loops as several casts of the whole.
            dtype = kernels[0].dtype if self._int8 else self._dtype
            flat = [kernel.reshape(*layers, *inputs, -1).astype(dtype) for kernel in kernels]
            kernels = [jnp.concatenate(flat, axis=-1)]
            outputs = kernels[0].shape[-1:]
        (kernel,), scales = kernels, None
        if self._int8:
            rounded = quantized(kernel, len(inputs), len(layers))
            kernel, scales = rounded.values, rounded.scales
        if self._transposed:
            matrix = kernel.reshape(*layers, math.prod(inputs), math.prod(outputs))
            kernel = transposed(matrix, outputs)
        return kernel if scales is None else Quantized(kernel, scales)

    def _sizes(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The sizes of a kernel's axes: of layers, of inputs, of outputs."""
        shape = self._apart.shapes[name].shape
        stacked = num_layer_axes(self._apart.axes[name])
        inputs = stacked + self._apart.kernels[name]
        return shape[:stacked], shape[stacked:inputs], shape[inputs:]


def _apart(model: nnx.Module, transposed: bool) -> nnx.Module:
    """A model with separate layers, whose tied heads read the embedding as it is stored."""
    model.decoder_transformer.stack.unstack()
    for _, node in nnx.iter_graph(model):
        if isinstance(node, Embedding):
            node.reads_transposed = transposed
    return model


def _joins(model: nnx.Module, kernels: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """The names of kernels that are joined; the model may lack some that a sublayer names."""
    for path, node in nnx.iter_graph(model):
        if isinstance(node, Sublayer):
            prefix = ".".join(map(str, path))
            names = tuple(f"{prefix}.{join}.kernel" for join in node.joins)
            names = tuple(name for name in names if name in kernels)
            if len(names) > 1:
                yield names
