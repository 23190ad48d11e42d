"""A module as a flat dictionary of arrays, and back."""

from collections.abc import Callable

import jax
from flax import nnx

Parameters = dict[str, jax.Array]


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

    def init(self, key: jax.Array) -> Parameters:
        """Fresh parameters."""
        return self.parameters(self._build(key))

    def parameters(self, module: nnx.Module) -> Parameters:
        """The arrays of a module of this structure."""
        variables = dict(nnx.to_flat_state(nnx.state(module)))
        return {name: variables[path][...] for name, path in self._paths.items()}

    def module(self, parameters: Parameters) -> nnx.Module:
        """The module with these arrays (or tracers, or shapes)."""
        variables = [
            (path, self._variables[path].replace(parameters[name]))
            for name, path in self._paths.items()
        ]
        return nnx.merge(self._definition, nnx.from_flat_state(variables))
