"""What a step sends and keeps, from sizes alone: rough, but fast enough to rank every mesh."""

from collections.abc import Mapping

from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.feedforward import mlp_settings
from jaxformer.plan.collectives import Collective

_NARROW = 2
"""Bytes of a number in bfloat16."""


def layer_products(config: TransformerConfig) -> dict[str, int]:
    """Multiply-adds of a layer for a token, by part.

    Args:
        config: The sizes.

    Returns:
        The parts of attention, those of the feed-forward layer but the last ("mlp"), and the last.
    """
    dim, wide = config.model_dim, config.num_heads * config.head_width
    narrow = config.kv_heads * config.head_width
    return {
        "query": dim * wide,
        "key": dim * narrow,
        "value": dim * narrow,
        "attention": 0,
        "output": dim * wide,
        "mlp": dim * config.mlp_dim * (2 if mlp_settings(config).gated else 1),
        "down": dim * config.mlp_dim,
    }


def sent(
    config: TransformerConfig,
    mesh: Mapping[str, int],
    *,
    parameters: int,
    tokens: int,
    parts: int = 1,
    gradient_bytes: int = 4,
    again: bool = True,
) -> tuple[Collective, ...]:
    """The collectives of a step that is cut over a mesh.

    Every part of the batch gathers the parameters in both passes and scatters their gradients; a
    layer that is cut over the tensor axis sums its activations twice in each pass.

    Args:
        config: The sizes of the blocks.
        mesh: The devices along each axis.
        parameters: Of the whole model.
        tokens: Of the whole batch.
        parts: Parts of the batch that are computed one after the other.
        gradient_bytes: Of one number of a gradient.
        again: Whether the forward pass runs again in the backward pass.

    Returns:
        The collectives.
    """
    data, fsdp, tensor = (mesh[axis] for axis in ("data", "fsdp", "tensor"))
    own, layers, found = parameters // tensor, config.num_layers, []
    if fsdp > 1:
        found.append(Collective("all-gather", ("fsdp",), 2 * parts * _NARROW * own, 2 * layers))
        scattered = parts * gradient_bytes * own
        found.append(Collective("reduce-scatter", ("fsdp",), scattered, layers))
    if data > 1:
        summed = parts * gradient_bytes * own // fsdp
        found.append(Collective("all-reduce", ("data",), summed, layers))
    if tensor > 1:
        count = (6 if again else 4) * layers
        size = _NARROW * tokens * config.model_dim // (data * fsdp)
        found.append(Collective("all-reduce", ("tensor",), count * size, count))
    return tuple(found)


def made_again(config: TransformerConfig) -> int:
    """FLOPs of a token in products that the backward pass computes again."""
    if config.remat in ("none", "dots"):
        return 0
    products = layer_products(config)
    return 2 * config.num_layers * (sum(products.values()) - products["down"])


def kept_bytes(config: TransformerConfig, tokens: int, tensor: int = 1) -> int:
    """Bytes of the activations that the forward pass of all layers keeps on a device.

    Args:
        config: The sizes, and `remat`: "full" keeps the input of a layer, "dots" also the results
            of products, "none" all that the backward pass reads. Another policy counts as "full",
            which keeps least.
        tokens: Those of one device.
        tensor: Devices over which heads and hidden units are cut.

    Returns:
        Bytes.
    """
    dim = config.model_dim
    heads = (config.num_heads + 2 * config.kv_heads) * config.head_width // tensor
    hidden = config.mlp_dim * (2 if mlp_settings(config).gated else 1) // tensor
    width = dim
    if config.remat in ("dots", "none"):
        width += heads + hidden + 2 * dim
    if config.remat == "none":
        width += heads + 2 * dim
    return config.num_layers * tokens * width * config.dtype.itemsize
