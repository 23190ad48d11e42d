"""Modules as flat dictionaries of arrays, and the paths of their parameters."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
from flax import nnx

Parameters = dict[str, jax.Array]
"""The arrays of a model by path."""
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
    """Removes the name of a composite model's part from a path.

    Args:
        name: The path of a parameter or of a field: "decoder.heads.language_model.bias".

    Returns:
        The path in that part: "heads.language_model.bias".
    """
    return re.sub(r"^(encoder|decoder|text|image)\.", "", name)


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
        variables = dict(nnx.to_flat_state(state))
        self._paths = {".".join(map(str, path)): path for path in variables}
        self._variables = variables
        self.shapes = {
            name: jax.ShapeDtypeStruct(variables[path].shape, variables[path].dtype)
            for name, path in self._paths.items()
        }
        self.axes: dict[str, tuple[str, ...]] = {
            name: variables[path].get_metadata()["axes"] for name, path in self._paths.items()
        }
        inputs = {
            name: variables[path].get_metadata()["contract"] for name, path in self._paths.items()
        }
        self.kernels: dict[str, int] = {name: count for name, count in inputs.items() if count}

    @property
    def learning(self) -> tuple[str, ...]:
        """The names of the trainable parameters, excluding fixed ones."""
        variables = ((name, self._variables[path]) for name, path in self._paths.items())
        return tuple(name for name, variable in variables if variable.get_metadata()["learns"])

    @property
    def largest(self) -> dict[str, float]:
        """The maximum values of parameters that have one."""
        limits = {
            name: self._variables[path].get_metadata()["largest"]
            for name, path in self._paths.items()
        }
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
            parameters: By name; a kernel may have any form of `functional.kernels`.
            key: The dropout key of low-rank factors, unused here.

        Returns:
            The module.
        """
        del key
        variables = [
            (path, self._variables[path].replace(parameters[name]))
            for name, path in self._paths.items()
        ]
        return nnx.merge(self._definition, nnx.from_flat_state(variables))

    def merged(self, parameters: Parameters) -> Parameters:
        """Returns the parameters unchanged, since the model is plain."""
        return parameters
