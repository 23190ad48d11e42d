"""The parameters of a model as the nested dictionary that a Flax class of transformers 4 had."""

from typing import Any

from jaxformer.hub.weights.flax_tree import FlaxTree, check_fixed
from jaxformer.pretrained.model import Pretrained, check_pretrained


def flax_params(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the tree of parameters that the Flax class of transformers 4 had as its `params`.

    Args:
        pretrained: The model.

    Returns:
        Nested dictionaries of JAX arrays, with the keys, shapes and dtypes of the old `params`.

    Raises:
        ArgumentError: The argument is not a model.
        ConfigError: Transformers never had a Flax class for it, or it computes another table.
    """
    check_pretrained("pretrained", pretrained)
    checkpoint = pretrained.checkpoint
    parameters = pretrained.parameters
    tree = FlaxTree(checkpoint, pretrained.placements, pretrained.abstract_model.shapes)
    check_fixed(checkpoint, parameters, pretrained.placements)
    return tree.of(parameters)
