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
from jax.sharding import PartitionSpec

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    check_choice,
    check_result,
    place,
    spec_of,
    whole_rows,
)
from jaxformer.functional.linear import Kernel
from jaxformer.functional.losses.cross_entropy import LossSums, cross_entropy
from jaxformer.io.components import imported_types, is_library
from jaxformer.nn.config import TransformerConfig

Batch = Mapping[str, jax.Array]
Shapes = dict[str, jax.ShapeDtypeStruct]
Unit = Literal["row", "token", "span", "choice", "patch", "frame", "transcript"]


class ModelOutput(NamedTuple):
    """The outputs of a model's body, which its heads read."""

    hidden: jax.Array
    """`[B, T, D]`, in the compute dtype."""
    pooled: jax.Array | None = None
    """`[B, D]`: the first token's state, after the pooler if there is one; `[B, C, D]` if rows
    contain several texts.
    """
    tied: Kernel | None = None
    """`[E, V]`: the kernel of the embedding, for tied outputs."""
    valid: jax.Array | None = None
    """bool `[B, T]`: the real tokens; None means all."""
    places: jax.Array | None = None
    """int `[B, K]`: the visible patches, in the order of their states; None means all."""
    similarities: jax.Array | None = None
    """float32 `[texts, images]`: the similarities of a dual encoder."""
    features: jax.Array | None = None
    """`[B, T, C]`: the frames of a waveform before the blocks."""
    layers: jax.Array | None = None
    """`[L + 1, B, T, D]`: the input of the first layer and the output of each; None where no head
    reads them.
    """
    key: jax.Array | None = None
    """The dropout key of the heads of a class of transformers; None in evaluation."""


@dataclass(frozen=True)
class LossFunction(abc.ABC):
    """Base class of user-defined losses that replace the cross-entropy in classification heads.

    A subclass is a frozen dataclass. Its fields are the weights of its terms.
    """

    def __post_init__(self):
        check_types(self)

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
        """Returns the loss of each prediction, before weighting.

        Args:
            logits: float32 `[..., V]`; `[B, T, V]` for a head over the vocabulary.
            targets: int `[...]`, in `[0, V)`.
            weights: float32 `[...]`: the weights of the mean loss; 0 where nothing is predicted.

        Returns:
            float32 `[...]`.
        """


class LossOptions(NamedTuple):
    """Options of losses, see `functional.losses`."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    chunk_size: int | None = None
    function: LossFunction | None = None
    """A replacement for the cross-entropy, which ignores the other options."""
    step: jax.Array | None = None
    """int32: the updates before this one, for schedules; None in evaluation."""


DEFAULT_OPTIONS = LossOptions()


class Predictions(NamedTuple):
    """The predictions of a head for a batch, and the references."""

    predicted: jax.Array
    """A label or a number `[B]`, a label for each token `[B, T]`, a span's two ends `[B, 2]`."""
    references: jax.Array
    """The correct values, in the same shape."""
    weights: jax.Array
    """float32 `[B]` or `[B, T]`, 0 where nothing is to be predicted."""
    scores: jax.Array | None = None
    """float32 `[B, ...]`, the confidence, for rows that compete for one answer."""


class HeadResult(NamedTuple):
    """The results of one head on all validation rows, as NumPy arrays and Python numbers."""

    sums: LossSums
    """The sums over all rows."""
    predictions: Predictions | None
    """The predictions for every row, if the head makes any."""
    rows: np.ndarray
    """int [rows], the example index of each row of `predictions`."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.sums.loss / max(self.sums.weight, 1.0)

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions."""
        return self.sums.correct / max(self.sums.weight, 1.0)


class ValidationData(Protocol):
    """The data that metrics may access, see `data.base.Datasets`."""

    labels: tuple[str, ...]
    tokens_per_byte: float | None
    validation: Any


class PredictionOptions(NamedTuple):
    """Options for the contents of a prediction."""

    labels: tuple[str, ...] = ()
    """The label names, in the order of their ids."""
    scores: bool = False
    """Whether to include the probabilities of all labels."""
    normalize: bool = False
    """Whether to normalize vectors to length 1."""


@dataclass(frozen=True)
class Head(abc.ABC):
    """Configuration of one output of a model; `build` creates the module that computes it.

    A head defines everything that the rest of the library needs to know about it: which arrays of a
    batch it reads, its metrics, its best constant prediction, and how `predict` presents its
    scores.
    """

    num_labels: ClassVar[int | None] = None
    """The number of labels; None for heads without labels."""
    named_labels: ClassVar[bool] = False
    """Whether the data determines the labels and their number."""
    problem_type: ClassVar[str | None] = None
    """The "problem_type" in config.json for this head."""
    unit: ClassVar[Unit] = "row"
    """The unit of prediction: a row, each token, a span of tokens, one of several texts in a row,
    each masked patch or frame, or a transcript of the row.
    """
    predicts: ClassVar[bool] = False
    """Whether `predict` supports the head, see `prediction`."""
    over_vocabulary: ClassVar[bool] = False
    """Whether the head predicts tokens and therefore belongs to the model instead of a task."""
    compares_rows: ClassVar[bool] = False
    """Whether the loss of a row depends on other rows of its micro-batch."""

    def __post_init__(self):
        check_types(self)

    @classmethod
    def kind(cls) -> str:
        """The name by which data requests such a head, see `Data.head`: "multiple_choice"."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def for_model(cls, model: Any, num_labels: int | None) -> Self:
        """Returns the head to add to a model that has none of this kind.

        Args:
            model: The configuration of the model.
            num_labels: The number of labels of the data, or None if unknown.

        Returns:
            The head, whose parameters are newly initialized.
        """
        return cls()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the head in parameters, losses and metrics."""

    @abc.abstractmethod
    def build(self, key: jax.Array, config: TransformerConfig) -> "HeadModule":
        """Declares the head's parameters."""

    def reads(self, rows: int, length: int) -> Shapes:
        """Returns the arrays of a batch that the loss reads: by default a target and a weight per
        token.

        Args:
            rows: Number of rows of the batch.
            length: Number of hidden states per row; for a head over patches, patches per image.

        Returns:
            The shape and dtype of each array, by its name.
        """
        weights = array(rows, length, dtype=jnp.float32)
        return {"targets": array(rows, length), "weights": weights}

    def choices(self, config: TransformerConfig) -> int | None:
        """Returns the number of classes of the scores, or None if they are not over classes."""
        return None

    def products(self, config: TransformerConfig) -> int:
        """Returns multiply-adds per token with the head's parameters; 0 for small heads."""
        return 0

    def metrics(self, result: HeadResult, data: ValidationData) -> dict[str, float]:
        """Computes the metrics of the head on the validation rows.

        Args:
            result: The results of the head.
            data: The validation data.

        Returns:
            The metrics by name.
        """
        return {"accuracy": result.accuracy}

    def baseline(self, train: Sequence[Batch], validation: Sequence[Batch]) -> dict[str, float]:
        """Computes the metrics of the best constant prediction, which ignores the inputs.

        Args:
            train: Batches to choose it from.
            validation: Batches to measure it on.

        Returns:
            Some of the metrics; empty if no constant prediction makes sense.
        """
        return {}

    def probabilities(self, scores: jax.Array) -> jax.Array:
        """Returns the values that `predict` reports, in the shape of the scores."""
        return scores

    def prediction(self, values: np.ndarray, options: PredictionOptions) -> dict[str, Any]:
        """Returns the columns that `predict` adds to a row of a table.

        Args:
            values: The result of `probabilities` for the row.
            options: The prediction options.

        Returns:
            The values by column name.
        """
        raise NotImplementedError

    def predict_advice(self, folder: Any) -> str:
        """Returns advice for a model whose head `predict` does not support.

        Args:
            folder: The folder of the model.

        Returns:
            The advice, for the error message.
        """
        return "use --task embeddings for a vector of each text"


class HeadModule(nnx.Module):
    """Computes one output and its loss."""

    weights = "weights"
    """The array of a batch with the weights of the predictions, float32 or bool."""
    reads_tokens_apart: ClassVar[bool] = False
    """Whether each token is read separately, so that devices may have parts of the rows."""

    def read(self, outputs: ModelOutput) -> ModelOutput:
        """The outputs as this head reads them: whole rows, unless it reads tokens separately."""
        if self.reads_tokens_apart:
            return outputs
        return outputs._replace(hidden=whole_rows(outputs.hidden))

    def scores(self, outputs: ModelOutput, key: jax.Array | None = None) -> jax.Array:
        """Returns unnormalized float32 predictions; `key` is the dropout key."""
        raise NotImplementedError

    def loss_weight(self, batch: Batch) -> jax.Array:
        """Returns the total weight of the predictions, the denominator of the mean loss."""
        return jnp.sum(batch[self.weights], dtype=jnp.float32)

    def loss(
        self, outputs: ModelOutput, batch: Batch, options: LossOptions, key: jax.Array | None
    ) -> LossSums:
        """Returns the summed losses of a batch."""
        raise NotImplementedError

    def predictions(self, outputs: ModelOutput, batch: Batch) -> Predictions | None:
        """Returns the predictions for a batch, or None for heads without predictions."""
        return None

    def soft_weights(self, batch: Batch, valid: jax.Array) -> jax.Array:
        """Returns the weights of the positions for distillation from a teacher's scores.

        The default is the weights of the labels.

        Args:
            batch: Arrays by name.
            valid: float32 `[B, T]`, 1 at real tokens.

        Returns:
            float32, the shape of `scores` without its last axis.
        """
        return batch[self.weights].astype(jnp.float32)


def class_loss(
    scores: jax.Array, targets: jax.Array, weights: jax.Array, options: LossOptions
) -> LossSums:
    """Returns the summed loss of targets `[...]` with scores float32 `[..., V]`."""
    terms = {"label_smoothing": options.label_smoothing, "z_loss": options.z_loss}
    sums = cross_entropy(scores, targets, weights, **terms)
    if options.function is None:
        return sums
    counts = weights != 0
    losses = options.function(scores, jnp.where(counts, targets, 0), weights)
    check_result(options.function, losses, array(*targets.shape, dtype=scores.dtype))
    total = jnp.sum(jnp.where(counts, losses, 0.0) * weights)
    # As in the cross-entropy, a target outside the classes makes the loss NaN.
    return sums._replace(loss=jnp.where(jnp.isnan(sums.loss), jnp.nan, total))


def head_class(kind: str) -> type[Head] | None:
    """Returns the class of a kind of heads, wherever it is defined, or None."""
    # Library classes come first; if a user's file was imported twice, the later version wins.
    known = sorted(imported_types(Head), key=lambda each: is_library(each.__module__))
    return {each.kind(): each for each in known}.get(kind)


def number(value: Any) -> float:
    """Returns a float32 as the shortest decimal number that rounds to it."""
    return float(str(np.float32(value)))


def embedding(vector: np.ndarray, normalize: bool) -> dict[str, list[float]]:
    """Returns the column with a vector float `[D]`, optionally normalized to length 1."""
    vector = np.asarray(vector, np.float32)
    if normalize:
        vector = vector / np.maximum(np.linalg.norm(vector), np.float32(1e-12))
    return {"embedding": [number(value) for value in vector]}


def array(*shape: int, dtype: jnp.dtype = jnp.int32) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an array of a batch."""
    return jax.ShapeDtypeStruct(shape, dtype)


def pool(
    hidden: jax.Array, valid: jax.Array | None, pooling: Literal["first", "last", "mean"]
) -> jax.Array:
    """Pools a state `[B, D]` per sequence: the first or last real token, or the mean over them."""
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
    # JAX 0.12 multiplies only arrays with the same sharding.
    spec = spec_of(hidden)
    chosen = place(chosen, spec and PartitionSpec(*spec[:2]))
    total = jnp.einsum(
        "btd,bt->bd",
        hidden,
        chosen.astype(hidden.dtype),
        preferred_element_type=jnp.float32,
        out_sharding=spec and PartitionSpec(spec[0], spec[2]),
    )
    count = jnp.maximum(jnp.sum(chosen, axis=1, keepdims=True), 1)
    return (total / count).astype(hidden.dtype)


def build_heads(key: jax.Array, config: TransformerConfig, heads: tuple[Head, ...]) -> nnx.Dict:
    """Builds the modules of a model's heads, by name, each of which must be unique."""
    given = [head.name for head in heads]
    if len(set(given)) < len(given):
        raise ConfigError(f"model.heads: {', '.join(given)}: each head needs a unique name (label)")
    keys = jax.random.split(key, max(len(heads), 1))
    return nnx.Dict({h.name: h.build(k, config) for h, k in zip(heads, keys, strict=False)})
