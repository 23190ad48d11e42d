"""What all model families share: a configuration that describes the batch, and the losses."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import jax
import numpy as np
from flax import nnx

from jaxformer.checks import check_argument, check_field
from jaxformer.functional.arrays import assert_axes, assert_ids, assert_integers
from jaxformer.functional.dropout import split
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.masks import Mask
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
from jaxformer.nn.attention import DotProductAttention
from jaxformer.nn.block import BlockConfig, TransformerBlock
from jaxformer.nn.config import TextConfig, TransformerConfig
from jaxformer.nn.feedforward import MLP
from jaxformer.nn.sublayer import FeedForwardConfig, SelfAttentionConfig, SublayerConfig


def assert_tokens(
    vocab_size: int,
    inputs: jax.Array,
    *,
    positions: jax.Array | None = None,
    mask: Mask | None = None,
    **per_token: jax.Array | None,
) -> None:
    """Asserts that tokens and the arrays that belong to them fit together.

    Args:
        vocab_size: V.
        inputs: int `[B, T]`.
        positions: int `[B or 1, T]` or None.
        mask: A mask or None.
        **per_token: Other int arrays `[B, T]`, by their names, or None.

    Raises:
        AssertionError: Names the array, its shape or dtype, and what is right.
        ArgumentError: Names the argument, its value and what is right.
    """
    sizes = assert_axes(inputs=(inputs, "B T"))
    assert_ids(vocab_size, inputs=inputs)
    wanted = "a mask such as KeyPadding(valid), for an array DenseMask(array), or None"
    check_argument("mask", mask, mask is None or isinstance(mask, Mask), wanted)
    if positions is not None:
        assert_axes(sizes, positions=(positions, "B/1 T"))
        assert_integers(positions=positions)
    for name, array in per_token.items():
        if array is not None:
            assert_axes(sizes, **{name: (array, "B T")})
            assert_integers(**{name: array})


@dataclass(frozen=True)
class ModelConfig(abc.ABC):
    """The configuration of a model, a frozen dataclass: what it reads, and what it predicts."""

    required: ClassVar[tuple[str, ...]] = ("inputs",)
    """The arrays of a batch without which the model cannot run."""
    causal: ClassVar[bool] = False
    """Whether tokens of the inputs see only those before them."""
    is_encoder_decoder: ClassVar[bool] = False
    """Whether a decoder continues from the outputs of an encoder."""
    input_fields: ClassVar[tuple[str, ...]] = ("vocab_size",)
    """The fields in which two models must agree to read the same batches."""

    @property
    @abc.abstractmethod
    def heads(self) -> tuple[Head, ...]:
        """What is predicted from the hidden states."""

    @property
    @abc.abstractmethod
    def stacks(self) -> tuple[TransformerConfig, ...]:
        """The configurations of the stacks of blocks, from the inputs to the outputs."""

    @property
    def parts(self) -> Mapping[str, "ModelConfig"]:
        """The models that it is made of, by their fields; none in a model of its own."""
        return {}

    def each_part(self, function: "Callable[[ModelConfig], ModelConfig]") -> Self:
        """The model with each of its parts changed; a model without parts is its only one.

        Args:
            function: From the configuration of a part to another one.

        Returns:
            The model.
        """
        if not self.parts:
            return function(self)
        changed = {name: part.each_part(function) for name, part in self.parts.items()}
        return replace(self, **changed)

    def with_fields(self, **changes: Any) -> Self:
        """A copy with other values of some fields, such as `compute_dtype` and `heads`.

        Args:
            **changes: Field, or a path such as "self_attention.dropout" -> value.

        Returns:
            The copy.

        Raises:
            ConfigError: There is no such field, or it cannot have that value.
        """
        return with_values(self, changes)

    @abc.abstractmethod
    def build(self, key: jax.Array) -> "Model":
        """A model with fresh parameters."""

    @abc.abstractmethod
    def input_spec(self, rows: int, lengths: Mapping[str, int]) -> Shapes:
        """The arrays of a batch that the model reads, see `batch_spec`."""

    @abc.abstractmethod
    def flops(self, lengths: Mapping[str, int]) -> TokenFlops:
        """The FLOPs per input token on rows of these lengths, see `row_lengths`."""

    @abc.abstractmethod
    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Raises ConfigError where a row of these lengths exceeds a table of positions."""

    def batch_spec(self, rows: int, lengths: Mapping[str, int]) -> Shapes:
        """The arrays of a training batch: those that the model reads and those of its heads.

        Encoders and encoder-decoders also read segments, since their rows may end in padding.

        Args:
            rows: Rows of the batch.
            lengths: Tokens of "inputs", and of "decoder_inputs" for an encoder-decoder.

        Returns:
            The shape and dtype of each array, by its name.
        """
        predicted = lengths["decoder_inputs" if "decoder_inputs" in lengths else "inputs"]
        spec = self.input_spec(rows, lengths)
        for head in self.heads:
            spec |= head.reads(rows, predicted)
        return spec

    def row_lengths(self, lengths: Mapping[str, int]) -> Mapping[str, int]:
        """The tokens of a row: those of the data, or those that an image becomes."""
        return lengths

    def adapted(self, name: str, value: np.ndarray, source: "ModelConfig") -> np.ndarray:
        """Adapts a parameter of another model to initialise this one.

        Args:
            name: The parameter's path.
            value: Its value in the other model.
            source: The configuration of the other model.

        Returns:
            `value` itself, or the adapted array.
        """
        del name, source
        return value

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """Sizes of `stacks` that have fields of their own, which the tensor axis must divide."""
        return {}

    @property
    def predicts_next_token(self) -> bool:
        """Whether the model has the head that continues a text."""
        return "language_model" in [head.name for head in self.heads]


class _AcceptsMovedFields(abc.ABCMeta):
    """Makes a configuration also of the fields of older versions, which sublayers have now."""

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
    """A model of one kind of blocks: their configuration, their sublayers and the heads."""

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
        }
    )
    """Fields of older versions -> where they are now."""
    self_attention: SelfAttentionConfig = DotProductAttention()
    """The sublayer that moves information between tokens: DotProductAttention,
    DisentangledAttention (DeBERTa), BlockSparseAttention (BigBird), TransientGlobalAttention
    (LongT5), or your own."""
    feed_forward: FeedForwardConfig = MLP()
    """The sublayer that treats each token by itself: MLP, or your own."""
    block: BlockConfig = TransformerBlock()
    """Which sublayers a block has, and in which order: TransformerBlock, or your own."""
    heads: tuple[Head, ...] = ()
    """What is predicted from the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        self.self_attention.check(self)

    def __getattr__(self, name: str) -> Any:
        # Classes of a user's own, of which old runs have copies, may read the old names.
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
        """The sublayers of a block without cross-attention."""
        return self.self_attention, self.feed_forward

    def check_lengths(self, lengths):
        self.position.validate_length(lengths["inputs"])


@dataclass(frozen=True)
class TypedTextConfig(TextConfig, TransformerModelConfig, abc.ABC):
    """A model of text whose tokens may have types, besides their ids and positions."""

    token_types: int = 0
    """Rows of the table of token types: 2 in BERT (first and second sentence); 0: no table."""
    task_types: int = 0
    """Rows of the table of tasks (ERNIE); 0: no table."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("token_types", "task_types"):
            check_field(self, name, getattr(self, name) >= 0, "0 or more")

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each table of type embeddings, by the batch's name of the ids."""
        tables = {"token_types": self.token_types, "task_types": self.task_types}
        return {name: rows for name, rows in tables.items() if rows}


def check_no_windows(config: TransformerConfig) -> None:
    """Raises ConfigError where a window would hide the tokens ahead from an encoder."""
    plain = set(config.windows) == {None}
    check_field(config, "windows", plain, "(None,): windows look back, which is for decoders")


class Model(nnx.Module):
    """A model with heads. A subclass sets `heads`, by name, and defines `outputs`."""

    heads: nnx.Dict
    segments = "segments"
    """The array of a batch that is above 0 at real tokens, among those that the heads read."""

    def outputs(self, batch: Batch, key: jax.Array | None = None) -> ModelOutput:
        """The hidden states of a batch, and what else the heads need.

        Args:
            batch: Arrays by name; unknown ones are ignored.
            key: The dropout key; None in evaluation.

        Returns:
            The outputs.
        """
        raise NotImplementedError

    def valid(self, batch: Batch) -> jax.Array | None:
        """The real tokens among those that the heads read: bool `[B, T]`, or None for all."""
        return batch[self.segments] > 0 if self.segments in batch else None

    def scores(self, batch: Batch) -> dict[str, jax.Array]:
        """Every head's float32 scores, without dropout."""
        outputs = self.outputs(batch)
        return {name: head.scores(outputs) for name, head in self.heads.items()}

    def loss(
        self, batch: Batch, options: LossOptions = DEFAULT_OPTIONS, key: jax.Array | None = None
    ) -> tuple[ModelOutput, dict[str, LossSums]]:
        """The model's outputs and every head's summed losses.

        Args:
            batch: Arrays by name.
            options: How token losses are computed.
            key: The dropout key; None in evaluation.

        Returns:
            The outputs, and the sums by the name of the head.
        """
        outputs_key, head_keys = self.dropout_keys(key)
        outputs = self.outputs(batch, outputs_key)
        return outputs, {
            name: head.loss(outputs, batch, options, head_keys[name])
            for name, head in self.heads.items()
        }

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every head's total weight in `loss`, from the batch alone."""
        return {name: head.loss_weight(batch) for name, head in self.heads.items()}

    def predictions(self, outputs: ModelOutput, batch: Batch) -> dict[str, Predictions]:
        """The predictions of the heads that make any, without dropout."""
        found = {name: head.predictions(outputs, batch) for name, head in self.heads.items()}
        return {name: made for name, made in found.items() if made is not None}

    def dropout_keys(
        self, key: jax.Array | None
    ) -> tuple[jax.Array | None, dict[str, jax.Array | None]]:
        """The dropout keys of the blocks and of each head; all are None where `key` is."""
        outputs_key, *head_keys = split(key, 1 + len(self.heads))
        return outputs_key, dict(zip(self.heads, head_keys, strict=True))
