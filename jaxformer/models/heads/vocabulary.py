"""Heads over the vocabulary, for next-token and masked-token prediction."""

import abc
import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.feedforward import activation
from jaxformer.functional.linear import Kernel, linear
from jaxformer.functional.losses.cross_entropy import chunked_cross_entropy, map_chunks
from jaxformer.functional.sampling.next_token import token_log_probabilities
from jaxformer.models.flops import vocabulary_products
from jaxformer.models.heads import metrics
from jaxformer.models.heads.base import Head, HeadModule, ModelOutput, Unit, class_loss
from jaxformer.models.heads.dense import Dense, DenseLayer
from jaxformer.nn.config import TextConfig
from jaxformer.nn.feedforward import mlp_settings
from jaxformer.nn.layers import (
    ActivationLayer,
    Linear,
    NormLayer,
    constant,
    normal,
    parameter,
    value_of,
)

CHUNKS = 8
"""Number of chunks for masked-token prediction; two chunks hold the usual 15 % of every row."""


@dataclass(frozen=True)
class TokenHead(Head, abc.ABC):
    """Predicts tokens of the vocabulary; reads "targets" and "weights" `[B, T]`."""

    over_vocabulary: ClassVar[bool] = True
    unit: ClassVar[Unit] = "token"

    def choices(self, config: TextConfig):
        return config.vocab_size

    def metrics(self, result, data):
        return {"perplexity": math.exp(min(result.loss, 700.0)), "accuracy": result.accuracy}

    def baseline(self, train, validation):
        return metrics.most_frequent(train, validation, "targets", "weights")


@dataclass(frozen=True)
class LanguageModel(TokenHead):
    """Predicts the next token, or a decoder's target, at each position.

    Reads "targets" and "weights" `[B, T]`.
    """

    name: ClassVar[str] = "language_model"
    dense: Dense | None = None
    """A layer before the logits, which maps states to the width of the embeddings (BERT as a
    decoder), or None.
    """
    unread_bias: bool = False
    """Whether there is a second, unused bias, as in BERT checkpoints with an untied output."""

    def build(self, key, config: TextConfig):
        if self.dense is not None:
            return DenseVocabularyHead(key, config, self)
        head = VocabularyHead(key, config, self.unread_bias)
        if config.embeddings.dim not in (None, config.output_width):
            raise ConfigError(
                f"model.embeddings.dim = {config.embeddings.dim}: LanguageModel reads hidden "
                f"states of width {config.output_width}; add a layer that maps them to embeddings: "
                f'LanguageModel(dense=Dense("gelu", norm=True))'
            )
        return head

    def metrics(self, result, data):
        values = super().metrics(result, data)
        if data.tokens_per_byte is not None:
            values["bits_per_byte"] = result.loss / math.log(2) * data.tokens_per_byte
        return values

    def predict_advice(self, folder):
        return (
            f"python -m jaxformer generate {folder} generates text; "
            f"{super().predict_advice(folder)}"
        )

    def products(self, config: TextConfig):
        dense = 0 if self.dense is None else config.output_width * config.embedding_width
        return dense + vocabulary_products(config)


@dataclass(frozen=True)
class MaskedLanguageModel(TokenHead):
    """Predicts the original token at masked positions with a dense layer, activation and norm.

    Reads "targets" and "weights" `[B, T]`; the weight is 0 where nothing was masked.

    References:
        Devlin et al., BERT (https://arxiv.org/abs/1810.04805).
    """

    name: ClassVar[str] = "masked_language_model"
    activation: str | None = None
    """The activation of the dense layer; None uses that of the feed-forward layers."""
    dense_bias: bool = True
    """Whether the dense layer has a bias."""
    unread_bias: bool = False
    """Whether there is a second, unused bias, as in `LanguageModel`."""
    dense: bool = True
    """Whether to use the dense layer with its activation and norm (not in EuroBERT)."""

    def __post_init__(self):
        super().__post_init__()
        if self.activation is not None:
            activation(self.activation)

    def build(self, key, config: TextConfig):
        if self.dense:
            return DenseMaskedHead(key, config, self)
        return MaskedHead(key, config, self.unread_bias)

    def predict_advice(self, folder):
        return f"fine-tune it with --init-from {folder}; {super().predict_advice(folder)}"

    def products(self, config: TextConfig):
        dense = config.output_width * config.embedding_width if self.dense else 0
        return dense + vocabulary_products(config)


class Unembedding(NamedTuple):
    """The map from hidden states to logits over the vocabulary."""

    kernel: Kernel
    """`[E, V]`."""
    bias: jax.Array | None
    """`[V]` or None."""


class VocabularyHead(HeadModule):
    """Vocabulary logits: `softcap(scale * h W + b)`, where W is often the embedding's transpose."""

    reads_tokens_apart = True

    def __init__(self, key: jax.Array, config: TextConfig, unread_bias: bool = False):
        """Declares the kernel unless it is tied, and the biases."""
        if not isinstance(config, TextConfig):
            raise ConfigError("model.heads: a head over the vocabulary needs a text model")
        size, width, own = config.vocab_size, config.embedding_width, config.logits
        axes = ("vocab_embed", "vocab")
        std = normal(config.init_std)
        tied = config.tie_embeddings
        self.kernel = None if tied else parameter(key, (width, size), axes, std, contract=1)
        zeros = partial(parameter, key, (size,), ("vocab",), constant(0.0))
        self.bias = zeros(learns=own.bias_learns) if own.bias else None
        self.unread_bias = zeros(learns=False) if unread_bias else None
        self.width = width
        self.scale = own.scale
        self.softcap = own.softcap

    def unembedding(self, outputs: ModelOutput) -> Unembedding:
        """Returns the kernel and bias; a tied kernel is the embedding's."""
        kernel = outputs.tied if self.kernel is None else self.kernel.get_value()
        return Unembedding(kernel, value_of(self.bias))

    def features(self, outputs: ModelOutput) -> jax.Array:
        """Returns the states to multiply with the kernel, `[B, T, E]`."""
        assert_axes(hidden=(outputs.hidden, f"B T {self.width}"))
        return outputs.hidden * jnp.asarray(self.scale, outputs.hidden.dtype)

    def scores(self, outputs, key=None):
        logits = linear(self.features(outputs), *self.unembedding(outputs), dtype=jnp.float32)
        return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)

    def log_probabilities(
        self, outputs: ModelOutput, targets: jax.Array, chunk_size: int | None = None
    ) -> jax.Array:
        """Returns the float32 log-probability of each target, `chunk_size` positions at a time."""

        def of_positions(hidden: jax.Array, targets: jax.Array) -> jax.Array:
            logits = self.scores(outputs._replace(hidden=hidden))
            return token_log_probabilities(logits, targets)

        if chunk_size is None:
            return of_positions(outputs.hidden, targets)
        return map_chunks(of_positions, outputs.hidden, targets, chunk_size=chunk_size)

    def loss(self, outputs, batch, options, key):
        terms = {"label_smoothing": options.label_smoothing, "z_loss": options.z_loss}
        targets, weights = batch["targets"], batch["weights"]
        if options.chunk_size is None:
            return class_loss(self.scores(outputs, key), targets, weights, options)
        kernel, bias = self.unembedding(outputs)
        return chunked_cross_entropy(
            self.features(outputs),
            kernel,
            targets,
            weights,
            chunk_size=options.chunk_size,
            bias=bias,
            softcap=self.softcap,
            **terms,
        )


class DenseVocabularyHead(VocabularyHead):
    """A dense layer before the logits over the vocabulary."""

    def __init__(self, key: jax.Array, config: TextConfig, head: LanguageModel):
        """Also declares the dense layer."""
        keys = jax.random.split(key)
        super().__init__(keys[0], config, head.unread_bias)
        outputs = {"vocab_embed": config.embedding_width}
        self.dense = DenseLayer(keys[1], config, head.dense, config.output_width, outputs)

    def features(self, outputs):
        return super().features(outputs._replace(hidden=self.dense(outputs.hidden)))


class MaskedHead(VocabularyHead):
    """Vocabulary logits where only few positions have a loss."""

    reads_tokens_apart = False

    def loss(self, outputs, batch, options, key):
        """Sorts masked tokens to the front of each row, so that few chunks need logits."""
        if options.function is not None:
            return super().loss(outputs, batch, options, key)
        targets, weights = batch["targets"], batch["weights"]
        order = jnp.argsort(weights == 0, axis=1, stable=True)
        hidden = jnp.take_along_axis(outputs.hidden, order[..., None], axis=1)
        chosen = {
            "targets": jnp.take_along_axis(targets, order, axis=1),
            "weights": jnp.take_along_axis(weights, order, axis=1),
        }
        chunk_size = options.chunk_size or -(-weights.shape[1] // CHUNKS)
        options = options._replace(chunk_size=chunk_size)
        return super().loss(outputs._replace(hidden=hidden), chosen, options, key)

    def soft_weights(self, batch, valid):
        """Returns 1 at every real token, masked or not, as in DistilBERT."""
        return valid


class DenseMaskedHead(MaskedHead):
    """A dense layer, activation and norm before the logits over the vocabulary."""

    def __init__(self, key: jax.Array, config: TextConfig, head: MaskedLanguageModel):
        """Also declares the dense layer and the norm."""
        keys = jax.random.split(key, 3)
        super().__init__(keys[0], config, head.unread_bias)
        inputs = {"embed": config.output_width}
        outputs = {"vocab_embed": config.embedding_width}
        std, bias = normal(config.init_std), head.dense_bias
        self.dense = Linear(keys[1], inputs, outputs, std, bias=bias)
        self.norm = NormLayer(keys[2], config.norm, config.embedding_width)
        kind = head.activation or mlp_settings(config).activation
        self.activation = ActivationLayer(keys[1], kind, *outputs.values(), *outputs)

    def features(self, outputs):
        dense = self.activation(self.dense(outputs.hidden))
        return super().features(outputs._replace(hidden=self.norm(dense)))
