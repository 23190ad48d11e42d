"""A model's weights with the hooks that its passes run with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxformer.errors import ArgumentError
from jaxformer.functional.activations import Hook, Hooks, with_hooks
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.parameters import Arranged
from jaxformer.nn.cache import Cache, CacheShape


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    """The parameters and hooks that the programs of a model read."""

    parameters: Arranged
    """The parameters, as the engine has arranged them."""
    hooks: Hooks = Hooks()
    """The hooks; a program serves all that differ only in their arrays."""


class HookedModel:
    """A model whose passes with a cache run with hooks; otherwise the model itself."""

    def __init__(self, model: GenerativeModel, hooks: Hooks):
        """Wraps the model; each pass may have the activations of some of the hooks only."""
        self._model, self._hooks = model, hooks.by_pattern()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def init_cache(self, shape: CacheShape, *encoder_outputs: Any) -> Cache:
        """The cache before the first token, see the model's method."""
        run = with_hooks(self._model.init_cache, self._hooks, required=False)
        return run(shape, *encoder_outputs)

    def step(self, inputs: jax.Array, cache: Cache, **options: Any) -> tuple[jax.Array, Cache]:
        """The hidden states of the next tokens, see the model's method."""
        run = with_hooks(self._model.step, self._hooks, required=False)
        return run(inputs, cache, **options)


def check_per_token(hooks: Mapping[str, Hook]) -> None:
    """Raises ArgumentError if a hook needs whole rows: a pass reads only a few tokens."""
    for name, hook in hooks.items():
        if not getattr(hook, "per_token", True):
            raise ArgumentError(
                f"hooks[{name!r}]: must change each token alike, such as add_vector, because a "
                "cached generation reads a few tokens of a row at a time; or generate with a loop "
                "over jaxformer.run_with_hooks"
            )
