"""The interface of heads: a configuration and a module for each kind of output."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.assertions import (
    assert_axes,
    assert_bool,
    check_choice,
    check_result,
)
from jaxformer.functional.linear import Kernel
from jaxformer.functional.losses.cross_entropy import LossSums, cross_entropy
from jaxformer.nn.config import TransformerConfig

Batch = Mapping[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]


class ModelOutput(NamedTuple):
    """The outputs of a model's body, which its heads read."""

    hidden: jax.Array
    """`[B, T, D]`, in the compute dtype."""
    pooled: jax.Array | None = None
    """`[B, D]`: the first token's state, through the pooler if there is one; `[B, C, D]` where rows
    have several texts."""
    tied: Kernel | None = None
    """`[E, V]`: the kernel of the embedding, for outputs that are tied to it."""
    valid: jax.Array | None = None
    """bool `[B, T]`: real tokens; None: all are."""
    places: jax.Array | None = None
    """int `[B, K]`: the patches that were read, in the order of their states; None: all were."""
    similarities: jax.Array | None = None
    """float32 `[texts, images]`: how well each text fits each image, in a dual encoder."""


@dataclass(frozen=True)
class LossFunction(abc.ABC):
    """A loss in place of the cross-entropy, for all heads of a run that choose among classes.

    A subclass is a frozen dataclass. Its fields are the weights of its terms.
    """

    def __post_init__(self):
        check_types(self)

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
        """The loss of each prediction, before it is weighted.

        Args:
            logits: float32 `[..., V]`; `[B, T, V]` for a head over the vocabulary.
            targets: int `[...]`, in `[0, V)`.
            weights: float32 `[...]`: the mean loss is that over them; 0 where nothing is predicted.

        Returns:
            float32 `[...]`.
        """


class LossOptions(NamedTuple):
    """How losses over classes are computed, see `functional.losses`."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    chunk_size: int | None = None
    function: LossFunction | None = None
    """What is computed in place of the cross-entropy, with none of the other options."""


DEFAULT_OPTIONS = LossOptions()


class Predictions(NamedTuple):
    """What a head predicts for a batch, and the references to compare with."""

    predicted: jax.Array
    """A label or a number `[B]`, a label for each token `[B, T]`, a span's two ends `[B, 2]`."""
    references: jax.Array
    """The correct values, in the same shape."""
    weights: jax.Array
    """float32 `[B]` or `[B, T]`, 0 where nothing is to be predicted."""
    scores: jax.Array | None = None
    """float32 `[B, ...]`, how sure the head is, where rows compete for one answer."""


@dataclass(frozen=True)
class Head(abc.ABC):
    """Describes one output of a model; `build` makes the module that computes it."""

    num_labels: ClassVar[int | None] = None
    """How many labels the head chooses among; None for heads without labels of the data."""
    over_vocabulary: ClassVar[bool] = False
    """Whether the head predicts tokens: then it belongs to the model, else to a task."""
    compares_rows: ClassVar[bool] = False
    """Whether the loss of a row depends on the others of its part of the batch."""
    over_patches: ClassVar[bool] = False
    """Whether the head predicts something of the patches of an image that are hidden."""

    def __post_init__(self):
        check_types(self)

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the head's parameters, of its loss and of its metrics."""

    @abc.abstractmethod
    def build(self, key: jax.Array, config: TransformerConfig) -> "HeadModule":
        """Declares the head's parameters."""

    def reads(self, rows: int, length: int) -> Shapes:
        """The arrays of a batch that the loss reads: by default a target and a weight per token.

        Args:
            rows: Rows of the batch.
            length: Tokens of a row of hidden states; patches of an image for a head over patches.

        Returns:
            The shape and dtype of each array, by its name.
        """
        weights = array(rows, length, dtype=jnp.float32)
        return {"targets": array(rows, length), "weights": weights}

    def choices(self, config: TransformerConfig) -> int | None:
        """The number of classes of the scores; None for scores that are not over classes."""
        del config
        return None

    def products(self, config: TransformerConfig) -> int:
        """Multiply-adds per token with the head's parameters; 0 for the small heads over labels."""
        del config
        return 0


class HeadModule(nnx.Module):
    """Computes one output and its loss."""

    def scores(self, outputs: ModelOutput, key: jax.Array | None = None) -> jax.Array:
        """Unnormalised float32 predictions; `key` is the dropout key."""
        raise NotImplementedError

    def loss_weight(self, batch: Batch) -> jax.Array:
        """The total weight of the predictions: the loss is a mean over it."""
        raise NotImplementedError

    def loss(
        self, outputs: ModelOutput, batch: Batch, options: LossOptions, key: jax.Array | None
    ) -> LossSums:
        """The summed losses of a batch."""
        raise NotImplementedError

    def predictions(self, outputs: ModelOutput, batch: Batch) -> Predictions | None:
        """The predictions for a batch; None for heads whose sums suffice."""
        del outputs, batch
        return None

    def soft_weights(self, batch: Batch, valid: jax.Array) -> jax.Array:
        """The weights of the places where a teacher's scores are the targets.

        Args:
            batch: Arrays by name.
            valid: float32 `[B, T]`, 1 at real tokens.

        Returns:
            float32, the shape of `scores` without its last axis.
        """
        raise NotImplementedError


def class_loss(
    scores: jax.Array, targets: jax.Array, weights: jax.Array, options: LossOptions
) -> LossSums:
    """The summed loss of predictions among classes.

    Args:
        scores: float32 `[..., V]`.
        targets: int `[...]`; any value where the weight is 0.
        weights: float32 `[...]`.
        options: The cross-entropy's options, or the loss in its place.

    Returns:
        The sums.

    Raises:
        ConfigError: The loss function returns another shape or dtype.
    """
    terms = {"label_smoothing": options.label_smoothing, "z_loss": options.z_loss}
    sums = cross_entropy(scores, targets, weights, **terms)
    if options.function is None:
        return sums
    counts = weights != 0
    losses = options.function(scores, jnp.where(counts, targets, 0), weights)
    check_result(options.function, losses, array(*targets.shape, dtype=scores.dtype))
    total = jnp.sum(jnp.where(counts, losses, 0.0) * weights)
    # A target that is no class makes the loss NaN here too.
    return sums._replace(loss=jnp.where(jnp.isnan(sums.loss), jnp.nan, total))


def array(*shape: int, dtype: jnp.dtype = jnp.int32) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array of a batch."""
    return jax.ShapeDtypeStruct(shape, dtype)


def pool(
    hidden: jax.Array, valid: jax.Array | None, pooling: Literal["first", "last", "mean"]
) -> jax.Array:
    """One state per sequence: that of its first or last real token, or the mean over real tokens.

    Args:
        hidden: `[B, T, D]`.
        valid: bool `[B, T]`, the real tokens; None: all are.
        pooling: Which state.

    Returns:
        `[B, D]` in the dtype of `hidden`.
    """
    check_choice("pooling", pooling, ("first", "last", "mean"))
    assert_axes(hidden=(hidden, "B T D"))
    valid = jnp.ones(hidden.shape[:2], bool) if valid is None else valid
    assert_axes(hidden=(hidden, "B T D"), valid=(valid, "B T"))
    assert_bool(valid=valid)
    places = jnp.arange(hidden.shape[1])[None, :]
    if pooling == "first":
        chosen = places == jnp.argmax(valid, axis=1, keepdims=True)
    elif pooling == "last":
        chosen = places == jnp.max(jnp.where(valid, places, 0), axis=1, keepdims=True)
    else:
        chosen = valid
    total = jnp.einsum(
        "btd,bt->bd", hidden, chosen.astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    count = jnp.maximum(jnp.sum(chosen, axis=1, keepdims=True), 1)
    return (total / count).astype(hidden.dtype)


def build_heads(key: jax.Array, config: TransformerConfig, heads: tuple[Head, ...]) -> nnx.Dict:
    """The modules of a model's heads, by name.

    Args:
        key: The random key of the initial values.
        config: The model's configuration.
        heads: The heads' configurations.

    Returns:
        The modules.

    Raises:
        ConfigError: Two heads share a name, or one cannot serve the model.
    """
    given = [head.name for head in heads]
    if len(set(given)) < len(given):
        raise ConfigError(f"model.heads: {', '.join(given)}: each needs a name (label) of its own")
    keys = jax.random.split(key, max(len(heads), 1))
    return nnx.Dict({h.name: h.build(k, config) for h, k in zip(heads, keys, strict=False)})
