"""The parameters of a model as the nested dictionary that a Flax class of transformers 4 had."""

from typing import Any

import jax.numpy as jnp

from jaxformer.hub.weights.flax_tree import flax_arrays
from jaxformer.pretrained.model import Pretrained, check_pretrained


def flax_params(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the tree of parameters that the Flax class of transformers 4 had as its `params`.

    Args:
        pretrained: The model.

    Returns:
        Nested dictionaries of JAX arrays, with the keys, shapes and dtypes of the old `params`.

    Raises:
        ArgumentError: The argument is not a model.
        ConfigError: Transformers never had a Flax class for it.
    """
    check_pretrained("pretrained", pretrained)
    dtype = next(iter(pretrained.parameters.values())).dtype
    tree: dict[str, Any] = {}
    for array in flax_arrays(pretrained.checkpoint, pretrained.placements):
        inner = tree
        for key in array.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[array.path[-1]] = jnp.asarray(array.read(pretrained.parameters, dtype))
    return tree
