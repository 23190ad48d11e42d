"""The interface of all model families: a configuration that describes batches, and losses."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import numpy as np
from flax import nnx

from jaxformer.checks import check_field
from jaxformer.functional.dropout import split
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.io.components import moved_fields, with_values
from jaxformer.io.notices import warn_once
from jaxformer.models.flops import TokenFlops
from jaxformer.models.heads.base import (
    DEFAULT_OPTIONS,
    Batch,
    Head,
    LossOptions,
    ModelOutput,
    Predictions,
    Shapes,
)
from jaxformer.nn import TokenEmbeddings, Transformer
from jaxformer.nn.attention import DotProductAttention
from jaxformer.nn.block import BlockConfig, TransformerBlock
from jaxformer.nn.config import TextConfig, TransformerConfig
from jaxformer.nn.feedforward import MLP
from jaxformer.nn.sublayer import FeedForwardConfig, SelfAttentionConfig, SublayerConfig


@dataclass(frozen=True)
class ModelConfig(abc.ABC):
    """Base class of model configurations, which are frozen dataclasses."""

    required: ClassVar[tuple[str, ...]] = ("inputs",)
    """The required arrays of a batch."""
    causal: ClassVar[bool] = False
    """Whether attention over the inputs is causal."""
    is_encoder_decoder: ClassVar[bool] = False
    """Whether the model has an encoder and a decoder."""
    input_fields: ClassVar[tuple[str, ...]] = ("vocab_size",)
    """Fields that must be equal for two models to read the same batches."""

    @property
    @abc.abstractmethod
    def heads(self) -> tuple[Head, ...]:
        """The heads on the hidden states."""

    @property
    @abc.abstractmethod
    def stacks(self) -> tuple[TransformerConfig, ...]:
        """The configurations of the stacks of blocks, from the inputs to the outputs."""

    @property
    def parts(self) -> Mapping[str, "ModelConfig"]:
        """The submodels by field; empty for a model that is not composed of others."""
        return {}

    def each_part(self, function: "Callable[[ModelConfig], ModelConfig]") -> Self:
        """Applies a function to each submodel; a model without submodels is its only part.

        Args:
            function: Maps the configuration of a submodel to a new one.

        Returns:
            The model.
        """
        if not self.parts:
            return function(self)
        changed = {name: part.each_part(function) for name, part in self.parts.items()}
        return replace(self, **changed)

    def with_fields(self, **changes: Any) -> Self:
        """Returns a copy with some fields replaced, such as `compute_dtype` and `heads`.

        Args:
            **changes: Field, or a path such as "self_attention.dropout" -> value.

        Returns:
            The copy.

        Raises:
            ConfigError: There is no such field, or the value is invalid.
        """
        return with_values(self, changes)

    @abc.abstractmethod
    def build(self, key: jax.Array) -> "Model":
        """Builds a model with newly initialized parameters."""

    @abc.abstractmethod
    def input_spec(self, rows: int, lengths: Mapping[str, int]) -> Shapes:
        """Returns the arrays of a batch that the model reads, see `batch_spec`."""

    @abc.abstractmethod
    def flops(self, lengths: Mapping[str, int]) -> TokenFlops:
        """Returns the FLOPs per input token on rows of these lengths, see `row_lengths`."""

    @abc.abstractmethod
    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Raises ConfigError if rows of these lengths exceed a table of positions."""

    def batch_spec(self, rows: int, lengths: Mapping[str, int]) -> Shapes:
        """Returns the arrays of a training batch for the model and its heads.

        Encoders and encoder-decoders also read segments, since their rows may be padded.

        Args:
            rows: Number of rows of the batch.
            lengths: The lengths of "inputs", and of "decoder_inputs" for an encoder-decoder.

        Returns:
            The shape and dtype of each array, by its name.
        """
        spec = self.input_spec(rows, lengths)
        for head in self.heads:
            spec |= head.reads(rows, self.head_length(head, lengths))
        return spec

    def head_length(self, head: Head, lengths: Mapping[str, int]) -> int:
        """Returns the length of a head's targets in rows of these lengths."""
        return lengths["decoder_inputs" if "decoder_inputs" in lengths else "inputs"]

    def batch_lengths(self, batch: Batch) -> dict[str, int]:
        """Returns the lengths for `batch_spec` of a batch."""
        sides = [name for name in self.required if name != "images"]
        return {name: batch[name].shape[1] for name in sides} or {"inputs": 1}

    def row_lengths(self, lengths: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the row lengths in tokens, from the data or from the image size."""
        return lengths

    def adapted(self, name: str, value: np.ndarray, source: "ModelConfig") -> np.ndarray:
        """Adapts a parameter of another model to initialize this one.

        Args:
            name: The parameter's path.
            value: Its value in the other model.
            source: The configuration of the other model.

        Returns:
            `value` unchanged, or the adapted array.
        """
        part, _, rest = name.partition(".")
        if part not in self.parts or part not in source.parts:
            return value
        return self.parts[part].adapted(rest, value, source.parts[part])

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Further sizes of `stacks` that the tensor axis must divide."""
        return {}

    @property
    def predicts_next_token(self) -> bool:
        """Whether the model has a language-model head."""
        return "language_model" in [head.name for head in self.heads]


class _AcceptsMovedFields(abc.ABCMeta):
    """Accepts fields of older versions that have moved into components."""

    def __call__(cls, *args, **values):
        if not values.keys() & cls.moved_fields:
            return super().__call__(*args, **values)
        moved = {name: path for name, path in moved_fields(cls).items() if name in values}
        for name, path in moved.items():
            warn_once(f"{cls.__name__}.{name} is now {path}")
        settings = {path: values.pop(name) for name, path in moved.items()}
        return with_values(super().__call__(*args, **values), settings)


@dataclass(frozen=True)
class TransformerModelConfig(TransformerConfig, ModelConfig, metaclass=_AcceptsMovedFields):
    """Configuration of a model with one kind of block: sizes, sublayers and heads."""

    moved_fields: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "attention_bias": "self_attention.bias",
            "attention_key_bias": "self_attention.key_bias",
            "attention_output_bias": "self_attention.output_bias",
            "attention_scale": "self_attention.scale",
            "attention_scale_by_depth": "self_attention.scale_by_depth",
            "attention_clip": "self_attention.clip",
            "attention_softcap": "self_attention.softcap",
            "attention_dropout": "self_attention.dropout",
            "query_key_norm": "self_attention.query_key_norm",
            "query_key_norm_over": "self_attention.query_key_norm_over",
            "activation": "feed_forward.activation",
            "gated": "feed_forward.gated",
            "mlp_bias": "feed_forward.bias",
            "residual_scale": "residual.output_scale",
            "layer_scale": "residual.layer_scale",
            "first_norm": "residual.first_norm",
            "embedding_norm": "embeddings.norm",
            "embedding_scale": "embeddings.scale",
            "embedding_dropout": "embeddings.dropout",
            "zero_padding": "embeddings.zero_padding",
            "project_before_norm": "embeddings.project_before_norm",
        }
    )
    """Fields of older versions -> their current paths."""
    self_attention: SelfAttentionConfig = DotProductAttention()
    """The token-mixing sublayer: DotProductAttention, DisentangledAttention (DeBERTa),
    BlockSparseAttention (BigBird), TransientGlobalAttention (LongT5), LatentAttention (DeepSeek),
    or a user-defined one.
    """
    feed_forward: FeedForwardConfig = MLP()
    """The position-wise sublayer: MLP or a user-defined one."""
    block: BlockConfig = TransformerBlock()
    """The block, which orders its sublayers: TransformerBlock or a user-defined one."""
    heads: tuple[Head, ...] = ()
    """The heads on the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        self.self_attention.check(self)
        first = len(self.feed_forward.first_layers)
        apart = not first or first <= len(self.windows) == self.num_layers
        rule = f"a tuple with an entry for each layer: the first {first} have another feed_forward"
        check_field(self, "windows", apart, rule, "model")

    def __getattr__(self, name: str) -> Any:
        # User-defined classes, of which old runs have copies, may read the old names.
        if (path := moved_fields(type(self)).get(name)) is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        warn_once(f"{type(self).__name__}.{name} is now {path}")
        field, _, setting = path.partition(".")
        usual = type(self).__dataclass_fields__[field].default
        return getattr(getattr(self, field), setting, getattr(usual, setting))

    @property
    def stacks(self):
        return (self,)

    @property
    def sublayers(self) -> tuple[SublayerConfig, ...]:
        """The sublayers of a block, excluding cross-attention."""
        return self.self_attention, self.feed_forward

    def build_transformer(
        self,
        key: jax.Array,
        width: int,
        sublayers: tuple[SublayerConfig, ...] | None = None,
        first_block: BlockConfig | None = None,
        **options: Any,
    ) -> Transformer:
        """Returns new blocks that read embeddings of this width, by default of `sublayers`.

        The last of the sublayers is `feed_forward`; `first_block` is None if it is like the others.
        """
        *attention, feed_forward = self.sublayers if sublayers is None else sublayers
        firsts = feed_forward.first_layers or (feed_forward,) * (first_block is not None)
        blocks = chain([first_block or self.block], repeat(self.block))
        make_first = [
            partial(block.build, sublayers=(*attention, first))
            for block, first in zip(blocks, firsts, strict=False)
        ]
        make_block = partial(self.block.build, sublayers=(*attention, feed_forward))
        return Transformer(
            key,
            self,
            make_block=make_block,
            make_first=make_first,
            num_layers=self.num_layers,
            width=width,
            **({"position": self.position} | options),
        )

    def check_lengths(self, lengths):
        self.position.validate_length(lengths["inputs"])

    def output_length(self, length: int | jax.Array) -> int | jax.Array:
        """Returns the number of states after the blocks for this many tokens of a row."""
        return length


@dataclass(frozen=True)
class TextModelConfig(TextConfig, TransformerModelConfig, abc.ABC):
    """Configuration of a text model with one kind of block."""

    moved_fields: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            **TransformerModelConfig.moved_fields,
            "embedding_dim": "embeddings.dim",
            "embedding_projection": "embeddings.projection",
            "padding_id": "embeddings.padding_id",
            "token_types": "embeddings.token_types",
            "task_types": "embeddings.task_types",
            "head_bias": "logits.bias",
            "head_bias_learns": "logits.bias_learns",
            "logit_scale": "logits.scale",
            "logit_softcap": "logits.softcap",
        }
    )
    """Fields of older versions -> their current paths."""

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each type-embedding table, by the name of the ids in a batch."""
        names = ("token_types", "task_types")
        tables = {name: getattr(self.embeddings, name) for name in names}
        return {name: rows for name, rows in tables.items() if rows}


def check_default_embeddings(config: TextConfig, *names: str) -> None:
    """Raises ConfigError if settings of embeddings that a family lacks are not the defaults."""
    for name in names:
        usual = getattr(TokenEmbeddings, name)
        same = getattr(config.embeddings, name) == usual
        wanted = f"{usual!r} in {type(config).__name__}"
        check_field(config.embeddings, name, same, wanted, "model.embeddings")


def check_no_windows(config: TransformerConfig) -> None:
    """Raises ConfigError if a window would mask later tokens in an encoder."""
    plain = set(config.windows) == {None}
    check_field(
        config, "windows", plain, "(None,), since windows only look back, which suits decoders"
    )


class Model(nnx.Module):
    """Base class of models with heads; subclasses set `heads`, by name, and define `outputs`."""

    heads: nnx.Dict
    segments = "segments"
    """The array of a batch that is positive at the real tokens that the heads read."""

    def outputs(self, batch: Batch, key: jax.Array | None = None) -> ModelOutput:
        """Returns the hidden states of a batch and other inputs of the heads.

        Args:
            batch: Arrays by name; unknown ones are ignored.
            key: The dropout key; None in evaluation.

        Returns:
            The outputs.
        """
        raise NotImplementedError

    def valid(self, batch: Batch) -> jax.Array | None:
        """Returns the real tokens that the heads read, bool `[B, T]`, or None for all."""
        return batch[self.segments] > 0 if self.segments in batch else None

    def scores(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the float32 scores of every head, without dropout."""
        outputs = self.outputs(batch)
        return {name: head.scores(head.read(outputs)) for name, head in self.heads.items()}

    def loss(
        self, batch: Batch, options: LossOptions = DEFAULT_OPTIONS, key: jax.Array | None = None
    ) -> tuple[ModelOutput, dict[str, LossSums]]:
        """Returns the model's outputs and the summed losses of every head.

        Args:
            batch: Arrays by name.
            options: The options of token losses.
            key: The dropout key; None in evaluation.

        Returns:
            The outputs, and the sums by head name.
        """
        outputs_key, head_keys = self.dropout_keys(key)
        outputs = self.outputs(batch, outputs_key)
        return outputs, {
            name: head.loss(head.read(outputs), batch, options, head_keys[name])
            for name, head in self.heads.items()
        }

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the total weight of every head in `loss`, from only the batch."""
        return {name: head.loss_weight(batch) for name, head in self.heads.items()}

    def predictions(self, outputs: ModelOutput, batch: Batch) -> dict[str, Predictions]:
        """Returns the predictions of all heads that make any, without dropout."""
        found = {
            name: head.predictions(head.read(outputs), batch) for name, head in self.heads.items()
        }
        return {name: made for name, made in found.items() if made is not None}

    def dropout_keys(
        self, key: jax.Array | None
    ) -> tuple[jax.Array | None, dict[str, jax.Array | None]]:
        """Returns dropout keys for the blocks and each head; all are None without `key`."""
        outputs_key, *head_keys = split(key, 1 + len(self.heads))
        return outputs_key, dict(zip(self.heads, head_keys, strict=True))
