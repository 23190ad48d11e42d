"""The boxes of a model's parts, with the shapes of their kernels and parameter counts."""

import math
import re
from functools import singledispatch
from typing import Any

from flax import nnx

from jaxformer.functional.norms import NoNorm
from jaxformer.functional.positions.base import Position
from jaxformer.lab.diagram.graph import Box
from jaxformer.nn import Embedding
from jaxformer.nn.attention import Attention, CrossAttention, SelfAttention
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.layers import NormLayer


def count(part: Any, layers: int = 1) -> int:
    """Returns the number of parameters of a module."""
    if part is None:
        return 0
    found = [part] if isinstance(part, nnx.Param) else [p for _, p in _parameters(part)]
    return sum(math.prod(parameter.shape) for parameter in found) // layers


def kernel_lines(module: nnx.Module) -> tuple[str, ...]:
    """Describes the shapes of a module's kernels, "query 512 x 8 x 64", one line per shape."""
    found = []
    for path, parameter in _parameters(module):
        if parameter.get_metadata()["contract"]:
            axes = parameter.get_metadata()["axes"]
            stacked = axes[0] == "layers"
            name = " ".join(str(step) for step in path if step not in ("kernel", "attention"))
            found.append((axes[stacked] != "embed", name, parameter.shape[stacked:]))
    shapes: dict[tuple[int, ...], list[str]] = {}
    for _, name, shape in sorted(found):  # kernels that read the residual stream first
        shapes.setdefault(shape, []).append(name.replace("_", " "))
    return tuple(f"{', '.join(filter(None, n))} {by(*s)}".strip() for s, n in shapes.items())


def by(*sizes: int) -> str:
    """Formats a shape: "30,522 x 768"."""
    return " x ".join(f"{size:,}" for size in sizes)


def scheme_name(position: Position) -> str:
    """Returns the name of a positional scheme with its base: "RoPE, base 10,000"."""
    theta = getattr(position, "theta", None)
    scaling = type(getattr(position, "scaling", None)).__name__
    words = [type(position).__name__]
    words += [] if theta is None else [f"base {theta:,.0f}"]
    return ", ".join(words + ([] if scaling in ("NoneType", "NoScaling") else [scaling]))


def acts(position: Position | None, method: str) -> bool:
    """Whether a scheme overrides "embed", "rotate" or "bias"."""
    return position is not None and getattr(type(position), method) is not getattr(Position, method)


def sublayer_box(
    sublayer: nnx.Module, layers: int, masked: bool, scale: nnx.Param | None = None
) -> Box:
    """Returns the box of a sublayer."""
    kind, title, lines = _described(sublayer, masked)
    lines = (*lines, *kernel_lines(sublayer))
    lines += () if scale is None else (f"learned scale {by(*scale.shape[1:])}",)
    return Box(kind, title, lines, count(sublayer, layers) + count(scale, layers))


def norm_box(norm: NormLayer, layers: int = 1) -> Box | None:
    """Returns the box of a norm, or None for an identity norm."""
    if isinstance(norm.norm, NoNorm):
        return None
    return Box("norm", type(norm.norm).__name__, (), count(norm, layers))


@singledispatch
def part_box(part: Any, name: str) -> Box:
    """Returns the box of a part of a model outside of the blocks."""
    return Box("other", _title(name), kernel_lines(part), count(part))


@part_box.register
def _(part: Embedding, name: str) -> Box:
    sizes = by(*part.table.shape)
    return Box("embedding", f"Token {_title(name).lower()}", (sizes,), count(part))


@part_box.register
def _(part: nnx.Param, name: str) -> Box:
    return Box("embedding", f"+ {_title(name).lower()}", (by(*part.shape),), count(part))


@part_box.register
def _(part: NormLayer, name: str) -> Box:
    return Box("norm", f"{_title(name)}: {type(part.norm).__name__}", (), count(part))


def input_boxes(inputs: InputLayer) -> list[Box]:
    """Returns the boxes of an input layer in the order of application."""
    position, scale = inputs.position, inputs.scale
    projection = [] if inputs.projection is None else [part_box(inputs.projection, "projection")]
    boxes = [Box("other", f"x {scale:.4g}")] if scale != 1 else []
    boxes += projection if inputs.project_first else []
    if acts(position, "embed"):
        table = inputs.position_table
        lines = () if getattr(position, "theta", None) is None else (f"base {position.theta:,.0f}",)
        lines += () if table is None else (by(*table.shape),)
        title = f"+ {_title(type(position).__name__).lower()} positions"
        boxes.append(Box("position", title, lines, count(table)))
    for name, kind in inputs.kinds.items():
        boxes.append(Box("embedding", f"+ {_title(name).lower()}", (by(*kind.shape),), count(kind)))
    if inputs.embedding_norm is not None:
        boxes.append(norm_box(inputs.embedding_norm))
    return boxes + ([] if inputs.project_first else projection)


def bias_notes(inputs: InputLayer) -> tuple[str, ...]:
    """Returns notes about bias tables that all layers share."""
    tables = [(inputs.relative_position, inputs.relative_table)]
    tables += [] if acts(inputs.position, "embed") else [(inputs.position, inputs.position_table)]
    return tuple(
        f"One table of {scheme_name(scheme)} for the scores of all layers: {by(*table.shape)}."
        for scheme, table in tables
        if table is not None
    )


@singledispatch
def _described(sublayer: Any, masked: bool) -> tuple[str, str, tuple[str, ...]]:
    """Returns the kind of a sublayer, its title and details beyond its kernels."""
    return "other", _title(type(sublayer).__name__), ()


@_described.register
def _(sublayer: SelfAttention, masked: bool) -> tuple[str, str, tuple[str, ...]]:
    attention = sublayer.attention
    position = sublayer.attention.position
    own = () if type(attention) is Attention else (_title(type(attention).__name__),)
    lines = [*own, _heads(attention)]
    if sublayer.window is not None:
        lines.append(f"window of {sublayer.window:,}")
    if acts(position, "rotate"):
        lines.append(f"rotates Q and K: {scheme_name(position)}")
    if acts(sublayer.scheme, "bias"):
        lines.append(f"adds a bias: {scheme_name(sublayer.scheme)}")
    if attention.query_norm is not None:
        lines.append(f"norm of Q and K: {type(attention.query_norm.norm).__name__}")
    return "attention", f"{'Masked self' if masked else 'Self'}-attention", tuple(lines)


@_described.register
def _(sublayer: CrossAttention, masked: bool) -> tuple[str, str, tuple[str, ...]]:
    return "attention", "Cross-attention", (_heads(sublayer.attention), "K, V from the encoder")


@_described.register
def _(sublayer: FeedForward, masked: bool) -> tuple[str, str, tuple[str, ...]]:
    gated = "" if sublayer.gate is None else ", gated"
    title = "Feed-forward" if type(sublayer) is FeedForward else _title(type(sublayer).__name__)
    return "mlp", title, (f"{sublayer.activation}{gated}",)


def _heads(attention: nnx.Module) -> str:
    fewer = attention.kv_heads < attention.num_heads
    shared = f", {attention.kv_heads} of K and V" if fewer else ""
    return f"{attention.num_heads} heads of {attention.head_dim}{shared}"


def _parameters(module: nnx.Module) -> list[tuple[tuple[Any, ...], nnx.Param]]:
    found = nnx.iter_graph(module)
    return [(path, node) for path, node in found if isinstance(node, nnx.Param)]


def _title(name: str) -> str:
    """Returns the title of an attribute or class: "patch_projection" -> "Patch projection"."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name).split()
    words = [part if part.isupper() else part.lower() for part in parts]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])
