"""The work of a training step, computed from the sizes of the model and the mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from jaxformer.config import Config
from jaxformer.distributed.sharding import MESH_AXES, row_shards
from jaxformer.distributed.slices import Slice
from jaxformer.functional.attention.devices import heads_suffice
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import abstract_model_of
from jaxformer.nn.config import Remat, RematNames, TransformerConfig
from jaxformer.nn.experts import Experts
from jaxformer.nn.feedforward import mlp_settings
from jaxformer.plan.collectives import Collective
from jaxformer.plan.trace import teacher_of

_BFLOAT16_BYTES, _FLOAT32_BYTES = 2, 4
_STATE_TRAFFIC = 32
"""Bytes that AdamW reads and writes in a step for each float32 parameter."""
_NAMES = {
    "query_key_value": ("query", "key", "value"),
    "attention_context": ("attention",),
    "attention_output": ("output",),
    "mlp_hidden": ("mlp",),
}
"""The products that `RematNames` can save."""


@dataclass(frozen=True)
class Work:
    """The amount of computation, memory traffic and communication of a step."""

    products: float
    """FLOPs of one device in products with parameters, including recomputed ones."""
    attention: float
    """FLOPs of one device in attention, counting the pairs that the mask allows."""
    state_bytes: float
    """Bytes that the optimizer reads and writes on one device."""
    collectives: tuple[Collective, ...]
    tokens: int
    """Tokens of the batch on all devices."""
    useful: float
    """Model FLOPs of the batch: without recomputation, and counting only unmasked attention."""


def work_of(config: Config, slice_: Slice) -> Work:
    """The work of a step of an experiment on a slice; the optimizer traffic assumes AdamW."""
    model = config.model
    parts = config.train.gradient_accumulation
    mesh = config.mesh.axis_sizes(slice_.num_devices)
    tokens = config.data.num_sequences * config.row_lengths["inputs"]
    per_device = tokens / prod(mesh.values())
    flops = model.flops(config.row_lengths)
    parameters, experts = parameter_count(model), expert_parameter_count(model)
    resident = parameters - experts + experts // mesh["expert"]
    recomputed = 2 * sum(
        stack.num_layers * sum(recomputed_products(stack).values()) for stack in model.stacks
    )
    # JAX's attention kernel for TPUs computes the scores for queries and for keys: its backward
    # pass has 7 products, the forward pass has 2.
    backward = 3.5 if slice_.chip.kind == "tpu" else 2.5
    again = any("attention" in recomputed_products(stack) for stack in model.stacks)
    products = 3 * flops.products + recomputed
    attention = flops.causal_attention * (1 + backward + again)
    teacher, _ = teacher_of(config.train)
    if teacher is not None:
        forward = teacher.flops(teacher.row_lengths(config.data.lengths))
        products += forward.products
        attention += forward.causal_attention
    return Work(
        products=products * per_device,
        attention=attention * per_device,
        state_bytes=_STATE_TRAFFIC * resident / (mesh["fsdp"] * mesh["tensor"]),
        collectives=sent(model, mesh, parameters=parameters, tokens=tokens, parts=parts),
        tokens=tokens,
        useful=flops.training(causal=True) * tokens,
    )


def layer_products(config: TransformerConfig) -> dict[str, int]:
    """Multiply-adds of a layer for each token."""
    dim = config.model_dim
    wide = config.num_heads * config.head_width
    narrow = config.kv_heads * config.head_width
    return {
        "query": dim * wide,
        "key": dim * narrow,
        "value": dim * narrow,
        "attention": 0,
        "output": dim * wide,
        "mlp": dim * hidden_units(config) * (2 if is_gated(config) else 1),
        "down": dim * hidden_units(config),
    }


def hidden_units(config: TransformerConfig) -> int:
    """Hidden units of the feed-forward layer that a token uses: those of its experts, if any."""
    own = getattr(config, "feed_forward", None)
    return own.used_width(config) if isinstance(own, Experts) else config.mlp_dim


def is_gated(config: TransformerConfig) -> bool:
    """Whether the feed-forward layer has a gate; experts always do."""
    own = getattr(config, "feed_forward", None)
    return isinstance(own, Experts) or mlp_settings(config).gated


def recomputed_products(config: TransformerConfig) -> dict[str, int]:
    """Returns the entries of `layer_products` that the backward pass recomputes."""
    products = layer_products(config)
    del products["down"]  # no gradient needs the result of a layer's last product
    if config.remat == "none":
        return {}
    if config.remat == "dots":
        return {"attention": 0}
    if isinstance(config.remat, RematNames):
        names = (*config.remat.save, *config.remat.offload)
        kept = {part for name in names for part in _NAMES.get(name, ())}
        return {part: size for part, size in products.items() if part not in kept}
    return products


def sent(
    model: ModelConfig,
    mesh: Mapping[str, int],
    *,
    parameters: int,
    tokens: int,
    parts: int = 1,
    gradient_bytes: int = 4,
) -> tuple[Collective, ...]:
    """The collectives of a step.

    For each micro-batch, a device gathers the parameters in both passes and scatters their
    gradients. A layer that is sharded over the tensor axis sums its activations twice in each pass.
    A mixture that is sharded over the expert axis gathers its tokens and scatters its results.
    `parts` is the number of micro-batches; parameters and tokens are those of all devices.
    """
    _, fsdp, tensor, sequence, expert = (mesh.get(axis, 1) for axis in MESH_AXES)
    read = tokens // (row_shards(mesh) * sequence)
    layers = sum(stack.num_layers for stack in model.stacks)
    # Layers that share parameters gather them every time.
    used = sum(stack.num_layers * sum(layer_products(stack).values()) for stack in model.stacks)
    experts = expert_parameter_count(model) if expert > 1 else 0
    resident = parameters - experts + experts // expert
    gathered = (max(parameters, used) - parameters + resident) // tensor
    found = []
    if fsdp > 1:
        both = 2 * parts * _BFLOAT16_BYTES * gathered
        found.append(Collective("all-gather", ("fsdp",), both, 2 * layers))
        scattered = parts * gradient_bytes * gathered
        found.append(Collective("reduce-scatter", ("fsdp",), scattered, layers))
    for axis, owned in (
        ("data", resident),
        ("sequence", resident),
        ("expert", parameters - experts),
    ):
        if mesh.get(axis, 1) > 1:
            summed = parts * gradient_bytes * (owned // tensor) // fsdp
            found.append(Collective("all-reduce", (axis,), summed, layers))
    if expert > 1:
        found += _exchanged(model, read * expert)
    if sequence > 1:
        found += _over_time(model, read, sequence, tensor)
    if tensor > 1:
        size, count = 0, 0
        for stack in model.stacks:
            sums = stack.num_layers * (6 if "output" in recomputed_products(stack) else 4)
            size += sums * _BFLOAT16_BYTES * read * stack.model_dim
            count += sums
        found.append(Collective("all-reduce", ("tensor",), size, count))
    return tuple(found)


def _over_time(model: ModelConfig, read: int, sequence: int, tensor: int) -> list[Collective]:
    """The collectives of attention over rows sharded along time, with `read` tokens per device."""
    gathers, gathered, exchanges, exchanged = 0, 0, 0, 0
    for stack in model.stacks:
        widths = _BFLOAT16_BYTES * read * (stack.head_width + stack.value_width) // tensor
        if (kv_heads := exchanged_heads(stack, sequence, tensor)) is not None:
            # Queries, keys, values and outputs, and their gradients.
            exchanges += 8 * stack.num_layers
            exchanged += 2 * stack.num_layers * widths * (stack.num_heads + kv_heads)
        else:
            # Keys and values, whose gradients are scattered.
            gathers += stack.num_layers
            gathered += stack.num_layers * widths * stack.kv_heads * sequence
    found = [
        Collective("all-gather", ("sequence",), gathered, gathers),
        Collective("reduce-scatter", ("sequence",), gathered, gathers),
        Collective("all-to-all", ("sequence",), exchanged, exchanges),
    ]
    return [each for each in found if each.count]


def exchanged_heads(stack: TransformerConfig, sequence: int, tensor: int) -> int | None:
    """The number of key/value heads, including copies, that devices along time exchange for tokens.

    None if there are too few heads: then each device gathers the keys and values of its rows.
    """
    kv_heads = max(1, stack.kv_heads // tensor)
    if not heads_suffice(stack.num_heads // tensor, kv_heads, sequence):
        return None
    return tensor * max(kv_heads, sequence)


def _exchanged(model: ModelConfig, tokens: int) -> list[Collective]:
    """The collectives of mixtures of experts for `tokens`, those of the devices that share them."""
    gathers, gathered, scatters, scattered = 0, 0, 0, 0
    for stack in model.stacks:
        layer = getattr(stack, "feed_forward", None)
        if isinstance(layer, Experts):
            count = stack.num_layers - layer.dense_layers
            # Tokens, again if the backward pass recomputes them, and the float32 gradients of the
            # results; float32 results, and the gradients of tokens.
            passes = 1 if stack.remat == "none" else 2
            size = count * tokens * stack.model_dim
            gathers += count * (passes + 1)
            gathered += size * (passes * _BFLOAT16_BYTES + _FLOAT32_BYTES)
            scatters += 2 * count
            scattered += size * (_FLOAT32_BYTES + _BFLOAT16_BYTES)
    return [
        Collective("all-gather", ("expert",), gathered, gathers),
        Collective("reduce-scatter", ("expert",), scattered, scatters),
    ]


def saved_bytes(config: TransformerConfig, tokens: int, tensor: int = 1) -> int:
    """Bytes of the activations that all layers save on a device for the backward pass."""
    dim = config.model_dim
    heads = (config.num_heads + 2 * config.kv_heads) * config.head_width // tensor
    hidden = hidden_units(config) * (2 if is_gated(config) else 1) // tensor
    width = dim
    if config.remat in ("dots", "none"):
        width += heads + hidden + 2 * dim
    if config.remat == "none":
        width += heads + 2 * dim
    return config.num_layers * tokens * width * config.dtype.itemsize


def with_remat(model: ModelConfig, remat: Remat) -> ModelConfig:
    """Returns a model with another rematerialization policy in all of its parts."""
    return model.each_part(lambda part: part.with_fields(remat=remat))


def parameter_count(model: ModelConfig) -> int:
    """Returns the number of parameters of a model."""
    shapes = abstract_model_of(with_remat(model, "none")).shapes
    return sum(prod(x.shape) for x in shapes.values())


def expert_parameter_count(model: ModelConfig) -> int:
    """Returns the number of parameters of the experts of a model."""
    found = abstract_model_of(with_remat(model, "none"))
    return sum(prod(x.shape) for name, x in found.shapes.items() if "expert" in found.axes[name])
