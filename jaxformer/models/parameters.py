"""A module as a flat dictionary of arrays, and the paths by which its parameters are known."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
from flax import nnx

Parameters = dict[str, jax.Array]
"""The arrays of a model by their paths."""
_STACK_PATH = re.compile(r"(.*stack\.group)\.(\d+)\.(.*)")


class StackPath(NamedTuple):
    """The path of a parameter in a stack of layers, of which some may repeat as a group.

    The parameter holds one row for each repetition. Layer i of a stack whose groups have g blocks
    is row i // g of the parameters of block i % g.
    """

    stack: str
    """The stack: "transformer.stack.group"."""
    block: int
    """Which block of the group, from 0."""
    rest: str
    """The path within the block: "sublayers.0.attention.query.kernel"."""

    def __str__(self) -> str:
        return f"{self.stack}.{self.block}.{self.rest}"


def stack_path(name: str) -> StackPath | None:
    """The parts of a parameter's path; None for parameters that are not in a stack."""
    found = _STACK_PATH.fullmatch(name)
    return found and StackPath(found[1], int(found[2]), found[3])


def within_part(name: str) -> str:
    """A path without the name of the part of a composite model that it is in.

    Args:
        name: The path of a parameter or of a field: "decoder.heads.language_model.bias".

    Returns:
        The path in that part: "heads.language_model.bias".
    """
    return re.sub(r"^(encoder|decoder|text|image)\.", "", name)


def group_sizes(names: Iterable[str]) -> dict[str, int]:
    """How many blocks repeat as a group, for each stack among the paths of parameters."""
    sizes: dict[str, int] = {}
    for path in filter(None, map(stack_path, names)):
        sizes[path.stack] = max(sizes.get(path.stack, 0), path.block + 1)
    return sizes


class AbstractModel:
    """The structure of a module without its arrays: names, shapes, axes, how to put it together.

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
        """The names of the parameters that may learn: all but those that are given."""
        variables = ((name, self._variables[path]) for name, path in self._paths.items())
        return tuple(name for name, variable in variables if variable.get_metadata()["learns"])

    @property
    def largest(self) -> dict[str, float]:
        """The value at which updates of a parameter are cut off, for those that have one."""
        limits = {
            name: self._variables[path].get_metadata()["largest"]
            for name, path in self._paths.items()
        }
        return {name: limit for name, limit in limits.items() if limit is not None}

    def init(self, key: jax.Array) -> Parameters:
        """Fresh parameters."""
        return self.parameters(self._build(key))

    def parameters(self, module: nnx.Module) -> Parameters:
        """The arrays of a module of this structure."""
        variables = dict(nnx.to_flat_state(nnx.state(module)))
        return {name: variables[path][...] for name, path in self._paths.items()}

    def module(self, parameters: Parameters, key: jax.Array | None = None) -> nnx.Module:
        """The module with these arrays (or tracers, or shapes).

        Args:
            parameters: By name; a kernel may have any form of `functional.kernels`.
            key: The dropout key of low-rank factors, of which a plain model has none.

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
        """The parameters of an equivalent plain model: these."""
        return parameters
