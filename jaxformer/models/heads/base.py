"""The interface of heads: a configuration and a module for each kind of output."""

# long: the interface of heads: configuration, module, results and predictions belong together

import abc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    check_choice,
    check_result,
)
from jaxformer.functional.kernels import Kernel
from jaxformer.functional.losses.cross_entropy import LossSums, cross_entropy
from jaxformer.io.components import imported_types, is_library
from jaxformer.nn.config import TransformerConfig

Batch = Mapping[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]
Unit = Literal["row", "token", "span", "choice", "patch"]


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


class HeadResult(NamedTuple):
    """The results of one head on all validation rows, as numpy arrays and Python numbers."""

    sums: LossSums
    """Over all rows."""
    predictions: Predictions | None
    """The predictions for every row, if the head makes any."""
    rows: np.ndarray
    """int [rows], the index of each row of `predictions` among the examples."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.sums.loss / max(self.sums.weight, 1.0)

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return self.sums.correct / max(self.sums.weight, 1.0)


class ValidationData(Protocol):
    """What metrics may read of the data, see `data.base.Datasets`."""

    labels: tuple[str, ...]
    tokens_per_byte: float | None
    validation: Any


class PredictionOptions(NamedTuple):
    """What a prediction for a row contains."""

    labels: tuple[str, ...] = ()
    """The names of the labels, in the order of their numbers."""
    scores: bool = False
    """Whether to add the probabilities of all labels."""
    normalize: bool = False
    """Whether vectors are scaled to length 1."""


@dataclass(frozen=True)
class Head(abc.ABC):
    """Describes one output of a model; `build` makes the module that computes it.

    A head brings all that the rest of the library asks about its kind: what it reads of a batch,
    its metrics, its best constant prediction, and how its scores become a prediction for `predict`.
    """

    num_labels: ClassVar[int | None] = None
    """How many labels the head chooses among; None for heads without labels of the data."""
    named_labels: ClassVar[bool] = False
    """Whether the data decide how many labels there are, and name them."""
    problem_type: ClassVar[str | None] = None
    """The "problem_type" of a config.json with this head."""
    unit: ClassVar[Unit] = "row"
    """What has a label and a prediction: a row, each token, a span of tokens, one of several texts
    in a row, or each hidden patch."""
    predicts: ClassVar[bool] = False
    """Whether `predict` has columns for what the head computes, see `prediction`."""
    over_vocabulary: ClassVar[bool] = False
    """Whether the head predicts tokens: then it belongs to the model, else to a task."""
    compares_rows: ClassVar[bool] = False
    """Whether the loss of a row depends on the others of its part of the batch."""

    def __post_init__(self):
        check_types(self)

    @classmethod
    def kind(cls) -> str:
        """The name by which data ask for such a head, see `Data.head`: "multiple_choice"."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def for_model(cls, model: Any, num_labels: int | None) -> Self:
        """The head for a model that has none of this kind.

        Args:
            model: The configuration of the model.
            num_labels: The number of labels of the data; None: not known.

        Returns:
            The head, whose parameters start fresh.
        """
        del model, num_labels
        return cls()

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

    def metrics(self, result: HeadResult, data: ValidationData) -> dict[str, float]:
        """The metrics of the head on the validation rows.

        Args:
            result: Its results.
            data: The data with those rows.

        Returns:
            The metrics by name.
        """
        del data
        return {"accuracy": result.accuracy}

    def baseline(self, train: Sequence[Batch], validation: Sequence[Batch]) -> dict[str, float]:
        """The metrics of the best constant prediction, which ignores the inputs.

        Args:
            train: Batches to choose it from.
            validation: Batches to measure it on.

        Returns:
            Some of the metrics; empty if no constant prediction makes sense.
        """
        del train, validation
        return {}

    def probabilities(self, scores: jax.Array) -> jax.Array:
        """What `predict` reports of the scores, in the same shape: by default the scores."""
        return scores

    def prediction(self, values: np.ndarray, options: PredictionOptions) -> dict[str, Any]:
        """The columns that `predict` adds to a row of a table.

        Args:
            values: What `probabilities` gives for the row.
            options: What is wanted.

        Returns:
            The values by the names of the columns.
        """
        raise NotImplementedError

    def predict_advice(self, folder: Any) -> str:
        """What to do with a model whose head has no prediction for `predict`.

        Args:
            folder: The folder of the model.

        Returns:
            The advice, for the message that refuses it.
        """
        del folder
        return "--task embeddings predicts a vector for each text"


class HeadModule(nnx.Module):
    """Computes one output and its loss."""

    weights = "weights"
    """The array of a batch with the weights of the predictions, float32 or bool."""

    def scores(self, outputs: ModelOutput, key: jax.Array | None = None) -> jax.Array:
        """Unnormalised float32 predictions; `key` is the dropout key."""
        raise NotImplementedError

    def loss_weight(self, batch: Batch) -> jax.Array:
        """The total weight of the predictions: the loss is a mean over it."""
        return jnp.sum(batch[self.weights], dtype=jnp.float32)

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
        """The weights of the positions where a teacher's scores are the targets.

        By default those of the true labels.

        Args:
            batch: Arrays by name.
            valid: float32 `[B, T]`, 1 at real tokens.

        Returns:
            float32, the shape of `scores` without its last axis.
        """
        del valid
        return batch[self.weights].astype(jnp.float32)


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
    # A target outside the classes makes the loss NaN here too.
    return sums._replace(loss=jnp.where(jnp.isnan(sums.loss), jnp.nan, total))


def head_class(kind: str) -> type[Head] | None:
    """The class of the heads of a kind, wherever it is defined.

    Args:
        kind: The name that `Head.kind` gives.

    Returns:
        The class; None if no such class has been imported.
    """
    # The library's own come first; if a user's file was imported twice, its later version counts.
    known = sorted(imported_types(Head), key=lambda each: is_library(each.__module__))
    return {each.kind(): each for each in known}.get(kind)


def number(value: Any) -> float:
    """A float32 as the shortest decimal number that rounds to it."""
    return float(str(np.float32(value)))


def embedding(vector: np.ndarray, normalize: bool) -> dict[str, list[float]]:
    """The column with a vector float `[D]`, of length 1 if that is wanted."""
    vector = np.asarray(vector, np.float32)
    if normalize:
        vector = vector / np.maximum(np.linalg.norm(vector), np.float32(1e-12))
    return {"embedding": [number(value) for value in vector]}


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
    positions = jnp.arange(hidden.shape[1])[None, :]
    if pooling == "first":
        chosen = positions == jnp.argmax(valid, axis=1, keepdims=True)
    elif pooling == "last":
        chosen = positions == jnp.max(jnp.where(valid, positions, 0), axis=1, keepdims=True)
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
        raise ConfigError(f"model.heads: {', '.join(given)}: each head needs its own name (label)")
    keys = jax.random.split(key, max(len(heads), 1))
    return nnx.Dict({h.name: h.build(k, config) for h, k in zip(heads, keys, strict=False)})
