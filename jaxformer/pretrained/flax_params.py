"""The parameters of a model as the nested dictionary of a Flax class in transformers 4."""

from typing import Any

from jaxformer.hub.weights.flax_tree import FlaxTree, check_fixed
from jaxformer.pretrained.model import Pretrained, check_pretrained


def flax_params(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the parameters as the tree `params` of the model's Flax class in transformers 4.

    Args:
        pretrained: The model.

    Returns:
        Nested dictionaries of JAX arrays, with the keys, shapes and dtypes of `params`.

    Raises:
        ArgumentError: The argument is not a model.
        ConfigError: Transformers never had a Flax class for it, or that class computes a different
            table.
    """
    check_pretrained("pretrained", pretrained)
    checkpoint = pretrained.checkpoint
    parameters = pretrained.parameters
    tree = FlaxTree(checkpoint, pretrained.placements, pretrained.abstract_model.shapes)
    check_fixed(checkpoint, parameters, pretrained.placements)
    return tree.of(parameters)
