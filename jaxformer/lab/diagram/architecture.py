"""The graph of a model: inputs, one block of each stack, outputs and heads, with their shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import jax
from flax import nnx

from jaxformer.lab.diagram.graph import Box, Node, arrange, walk
from jaxformer.lab.diagram.parts import (
    bias_notes,
    count,
    input_boxes,
    kernel_lines,
    norm_box,
    part_box,
    sublayer_box,
)
from jaxformer.models.heads.base import HeadModule, ModelOutput
from jaxformer.models.model import ModelConfig
from jaxformer.nn import Transformer
from jaxformer.nn.attention import CrossAttention
from jaxformer.nn.stack import Block

_LENGTH = 2


@dataclass
class Column:
    """A stack of blocks with its inputs below and its outputs above."""

    name: str
    """The title: "encoder", "decoder"; "" if there is only one stack."""
    ends: list[Node]
    """The final nodes: the stack's output, or the heads."""
    output: Node
    """The output that the next column reads."""
    block: set[Node]
    """The nodes of the repeated block."""
    repeats: str
    """The number of repetitions: "12 x"."""
    notes: tuple[str, ...]
    """Notes about details that are not drawn: shared tables, layers that differ."""
    cross: list[Node]
    """The nodes that read the outputs of the previous column."""
    shapes: dict[Node, str]
    """The output shapes of some nodes: "[B, T, 768]"."""


@dataclass
class Architecture:
    """A model as columns of nodes."""

    columns: list[Column]
    parameters: int
    summary: str
    """The sizes, in one line."""


def describe(config: ModelConfig) -> Architecture:
    """Describes the architecture of a model of any family without allocating it."""
    model, names = _abstract(config)
    if not config.parts:
        columns = _columns(model, names[""], config)
    elif config.is_encoder_decoder:
        columns = _encoder_and_decoder(model, names, config)
    else:
        columns = _two_encoders(model, names, config)
    return Architecture(columns, count(model), _summary(config))


def _abstract(config: ModelConfig) -> tuple[nnx.Module, dict[str, list[str]]]:
    """Returns the model with shapes instead of arrays, and the names of each part's attributes."""
    names: dict[str, list[str]] = {}

    def build(key: jax.Array) -> nnx.Module:
        model = config.build(key)
        owners = {"": model} | {name: getattr(model, name) for name in config.parts}
        names.update({name: list(vars(owner)) for name, owner in owners.items()})
        return model

    return jax.eval_shape(build, jax.random.key(0)), names


def _columns(
    model: nnx.Module,
    names: list[str],
    config: ModelConfig,
    whole: tuple[nnx.Module, ModelConfig] | None = None,
    letter: str = "T",
) -> list[Column]:
    """Builds the columns of a model that is not a composite.

    `whole` is the model whose outputs the heads read, if different. `letter` denotes the row
    length.
    """
    parts = {name: getattr(model, name) for name in names if _is_part(getattr(model, name))}
    stacks = [name for name, part in parts.items() if isinstance(part, Transformer)]
    before = list(parts)[: list(parts).index(stacks[0])]
    after = list(parts)[list(parts).index(stacks[-1]) + 1 :]
    columns = []
    for place, name in enumerate(stacks):
        sources = _sources(parts, before, place, len(stacks))
        masked = config.causal or (config.is_encoder_decoder and place == len(stacks) - 1)
        own = "S" if config.is_encoder_decoder and not masked else letter
        columns.append(_column(parts[name], sources, config.required[place], masked, config, own))
        columns[-1].name = name if len(stacks) > 1 else ""
    model, config = whole or (model, config)
    _add_heads(columns[-1], model, {name: parts[name] for name in after}, config)
    return columns


def _encoder_and_decoder(
    model: nnx.Module, names: Mapping[str, list[str]], config: ModelConfig
) -> list[Column]:
    """Builds the columns of an encoder model and a decoder model that reads its outputs."""
    (encoder,) = _columns(model.encoder, names["encoder"], config.encoder, letter="S")
    (decoder,) = _columns(model.decoder, names["decoder"], config.decoder, (model, config))
    if model.projection is not None:
        projected = Node(part_box(model.projection, "projection"), (encoder.output,))
        others = [end for end in encoder.ends if end is not encoder.output]
        width = config.decoder.encoder_width
        encoder.shapes[projected] = f"[B, S, {width:,}]"
        encoder.output, encoder.ends = projected, [projected, *others]
    encoder.name, decoder.name = "encoder", "decoder"
    return [encoder, decoder]


def _two_encoders(
    model: nnx.Module, names: Mapping[str, list[str]], config: ModelConfig
) -> list[Column]:
    """Builds the columns of two encoders, and the comparison of their embeddings."""
    (first,), (second,) = (
        _columns(getattr(model, name), names[name], part) for name, part in config.parts.items()
    )
    first.name, second.name = config.parts
    own = [part for name in names[""] if _is_part(part := getattr(model, name))]
    learned = [part for part in own if isinstance(part, nnx.Param)]
    lines = (f"of {first.name} and {second.name}", "cosines, scaled")
    box = Box("head", "Similarities", lines, sum(count(part) for part in learned))
    first.output, second.ends = first.ends[0], [Node(box, (second.ends[0],))]
    second.cross = list(second.ends)
    return [first, second]


def _is_part(part: Any) -> bool:
    return isinstance(part, nnx.Module | nnx.Param)


def _sources(parts: Mapping[str, Any], before: list[str], place: int, stacks: int) -> list[Box]:
    """Returns the boxes between the inputs and a stack: all parts before it, or its embedding."""
    if stacks == 1:
        return [part_box(parts[name], name) for name in before]
    if place < len(before):
        return [part_box(parts[before[place]], before[place])]
    box = part_box(parts[before[-1]], before[-1])
    return [replace(box, title=f"{box.title}, shared", parameters=0)]


def _column(
    stack: Transformer,
    sources: list[Box],
    reads: str,
    masked: bool,
    config: ModelConfig,
    letter: str,
) -> Column:
    """Builds the column of one stack, from its inputs to its normalized outputs."""
    node = Node(Box("input", reads.replace("_", " ").capitalize()))
    shapes = {node: _input_shape(config, reads, letter)}
    for box in (*sources, *input_boxes(stack.inputs)):
        node = Node(box, (node,))
    blocks = list(stack.stack.group)
    layers = stack.stack.repeats
    rows = jax.tree.leaves(blocks)[0].shape[0]
    entry, drawn = node, blocks[-1]
    # The width of the residual stream is that of the block's norms, if any.
    width = next((norm.dim for norm in drawn.norms), config.model_dim)
    shapes[entry] = f"[B, {letter}, {width:,}]"
    boxes, norms = _block_boxes(drawn, rows, masked)
    output = arrange(drawn.residual, entry, boxes, norms)
    block = set(walk(output)) - set(walk(entry))
    crossing = {
        box
        for box, part in zip(boxes, drawn.sublayers, strict=True)
        if isinstance(part, CrossAttention)
    }
    node = output
    for part, name in ((stack.final_norm, "final_norm"), (stack.projection, "projection")):
        if part is not None:
            node = Node(part_box(part, name), (node,))
    width = width if stack.projection is None else config.output_width
    shapes[node] = f"[B, {letter}, {width:,}]"
    return Column(
        name="",
        ends=[node],
        output=node,
        block=block,
        repeats=f"{rows * len(blocks) * layers} x",
        notes=(*bias_notes(stack.inputs), *_notes(blocks, rows, layers, masked)),
        cross=[each for each in block if each.box in crossing],
        shapes=shapes,
    )


def _block_boxes(block: Block, rows: int, masked: bool) -> tuple[list[Box], list[Box | None]]:
    """Returns the boxes of a block's sublayers and norms; None for an identity norm."""
    pairs = zip_longest(block.sublayers, block.scales)
    boxes = [sublayer_box(part, rows, masked, scale) for part, scale in pairs]
    return boxes, [norm_box(norm, rows) for norm in block.norms]


def _notes(blocks: list[Block], rows: int, repeats: int, masked: bool) -> tuple[str, ...]:
    """Describes how the layers of a group differ from the last one, which is drawn."""
    notes = []
    if repeats > 1:
        notes.append(f"{repeats} successive layers share their parameters.")
    described = []
    for block in blocks:
        boxes, norms = _block_boxes(block, rows, masked)
        lines = {line for box in boxes for line in (box.title, *box.lines)}
        described.append((lines, sum(norm is not None for norm in norms)))
    drawn, drawn_norms = described[-1]
    runs: list[tuple[str, int]] = []
    for lines, norms in described:
        words = sorted(lines - drawn)
        words += [f"without {line}" for line in sorted(drawn - lines)]
        words += ["one fewer norm"] if norms < drawn_norms else []
        text = ", ".join(words) or "as drawn"
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    if len(runs) > 1:
        listed = "; ".join(f"{number} x {text}" for text, number in runs)
        notes.append(f"Layers from the first, repeating: {listed}.")
    return tuple(notes)


def _input_shape(config: ModelConfig, name: str, letter: str) -> str:
    shape = _batch(config)[name].shape
    return f"[B, {letter}]" if len(shape) == 2 else _shape(shape, letters="B")


def _shape(sizes: tuple[int, ...], letters: str = "BT") -> str:
    """Formats a shape with letters for the leading axes."""
    named = letters[: max(len(sizes) - 1, 1)]
    return f"[{', '.join([*named, *(f'{size:,}' for size in sizes[len(named) :])])}]"


def _batch(config: ModelConfig) -> Mapping[str, jax.ShapeDtypeStruct]:
    length = _LENGTH
    while _tokens(config, length) < 1:  # a waveform shorter than one frame
        length *= 2
    return config.input_spec(1, {"inputs": length, "decoder_inputs": _LENGTH})


def _tokens(config: ModelConfig, length: int) -> int:
    """Returns the number of tokens or frames of a row of this length, ignored for an image."""
    return config.row_lengths({"inputs": length})["inputs"]


def _add_heads(
    column: Column, model: nnx.Module, parts: Mapping[str, nnx.Module], config: ModelConfig
) -> None:
    """Adds the parts after the last stack to a column: a pooler, and the heads."""
    definition, state = nnx.split(model)
    outputs = jax.eval_shape(
        lambda state, batch: nnx.merge(definition, state).outputs(batch), state, _batch(config)
    )
    pooled = column.output
    for name, part in parts.items():
        if name != "heads":
            pooled = Node(part_box(part, name), (pooled,))
            column.shapes[pooled] = f"[B, {outputs.pooled.shape[-1]:,}]"
    ends = []
    for name in (head.name for head in config.heads):
        head = model.heads[name]
        title = name.replace("_", " ").capitalize()
        if type(head).scores is HeadModule.scores:  # only has a loss, as in pre-training
            box = Box("head", title, kernel_lines(head), count(head))
            ends.append(Node(box, (column.output,)))
            continue

        def scores(state, outputs, name=name):
            return nnx.merge(definition, state).heads[name].scores(outputs)

        read, shape = _reads(scores, state, outputs)
        lines = kernel_lines(head)
        lines += ("kernel tied to the embedding",) if "tied" in read else ()
        box = Box("head", title, lines, count(head))
        node = Node(box, (pooled if "pooled" in read else column.output,))
        column.shapes[node] = _shape(shape)
        ends.append(node)
    column.ends = ends or [pooled]


def _reads(function: Any, state: Any, outputs: ModelOutput) -> tuple[set[str], tuple[int, ...]]:
    """Returns the fields of a model's outputs that a head reads, and the shape of its scores."""
    traced = jax.make_jaxpr(function)(state, outputs).jaxpr
    used = {id(var) for equation in traced.eqns for var in equation.invars}
    first = len(jax.tree.leaves(state))
    fields = [name for name in outputs._fields for _ in jax.tree.leaves(getattr(outputs, name))]
    variables = zip(fields, traced.invars[first:], strict=True)
    read = {name for name, variable in variables if id(variable) in used}
    return read, traced.outvars[0].aval.shape


def _summary(config: ModelConfig) -> str:
    if config.parts:
        return "; ".join(f"{name} {_summary(part)}" for name, part in config.parts.items())
    sizes = [f"D = {config.model_dim:,}", f"F = {config.mlp_dim:,}"]
    vocabulary = getattr(config, "vocab_size", None)
    sizes += [] if vocabulary is None else [f"V = {vocabulary:,}"]
    tokens = [_tokens(config, length) for length in (1 << 20, 1 << 21)]
    sizes += [f"T = {tokens[0]:,}"] if tokens[0] == tokens[1] else []
    return ", ".join(sizes)
