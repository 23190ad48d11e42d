"""A head that tells the quantized frame at a masked position from others of the same clip."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, RATE, check_field, check_fields
from jaxformer.functional.arrays import assert_axes, spec_of
from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.losses.terms import add_metric
from jaxformer.models.heads.base import Batch, Head, HeadModule, ModelOutput, Unit, array
from jaxformer.nn.config import SIZE, TransformerConfig
from jaxformer.nn.layers import Linear, normal, parameter

_EPS = 1e-8


@dataclass(frozen=True)
class QuantizedFrames(Head):
    r"""Tells the quantized frame at each masked position from K others of the clip (wav2vec 2.0).

    .. math:: -\log \frac{\exp(\cos(c_t, q_t) / \kappa)}
              {\sum_{q \in \{q_t\} \cup Q_t} \exp(\cos(c_t, q) / \kappa)}
              + \alpha \frac{G V - \sum_g \exp(H(\bar p_g))}{G V}

    Each frame is quantized to one vector of each of G codebooks, chosen by a Gumbel softmax in
    training. Reads "masked", bool `[B, T]`, and "negatives", int `[B, T, K]`: other masked frames.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), sections 2 and 3.2.
    """

    name: ClassVar[str] = "quantized_frames"
    unit: ClassVar[Unit] = "frame"

    num_codebooks: int = 2
    """Codebooks (G)."""
    codes: int = 320
    """Vectors of a codebook (V)."""
    code_dim: int = 256
    """The width of a quantized frame, over all codebooks."""
    width: int = 256
    """The width in which states and quantized frames are compared."""
    num_negatives: int = 100
    """The number of other frames that a masked one is distinguished from (K)."""
    temperature: float = 0.1
    """Divides the similarities (κ)."""
    gumbel_temperature: float = 2.0
    """The temperature of the Gumbel softmax at the first update."""
    gumbel_decay: float = 0.999995
    """The factor by which an update lowers it."""
    min_gumbel_temperature: float = 0.5
    """The lowest temperature: 0.5 for base models, 0.1 for large ones."""
    diversity_weight: float = 0.1
    """The weight of the second term, which keeps all codes in use (α)."""
    dropout: float = 0.0
    """Dropout of the frames that are quantized."""

    def __post_init__(self):
        super().__post_init__()
        sizes = ("num_codebooks", "codes", "code_dim", "width", "num_negatives")
        check_fields(self, "quantized_frames", **dict.fromkeys(sizes, SIZE))
        factors = ("temperature", "gumbel_temperature", "gumbel_decay", "min_gumbel_temperature")
        check_fields(self, "quantized_frames", **dict.fromkeys(factors, POSITIVE), dropout=RATE)
        check_fields(self, "quantized_frames", diversity_weight=NOT_NEGATIVE)
        divides = self.code_dim % self.num_codebooks == 0
        wanted = f"divisible by num_codebooks = {self.num_codebooks}"
        check_field(self, "code_dim", divides, wanted)

    def temperature_at(self, step: jax.Array) -> jax.Array:
        r"""Returns the temperature of the Gumbel softmax after some updates.

        .. math:: \tau_n = \max(\tau_0 d^n, \tau_{\min})

        References:
            Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), section 4.2.
        """
        lowered = self.gumbel_temperature * self.gumbel_decay ** step.astype(jnp.float32)
        return jnp.maximum(lowered, self.min_gumbel_temperature)

    def build(self, key, config):
        return QuantizedFramesHead(key, config, self)

    def products(self, config):
        features = config.features.channels[-1]
        quantized = features * self.num_codebooks * self.codes + self.code_dim * self.width
        states = config.output_width * self.width
        return states + quantized + (1 + self.num_negatives) * self.width

    def reads(self, rows, length):
        return {
            "masked": array(rows, length, dtype=jnp.bool_),
            "negatives": array(rows, length, self.num_negatives),
        }


class Compared(NamedTuple):
    """States and quantized frames, projected to one width, and the use of the codebooks."""

    states: jax.Array
    """float32 `[B, T, W]`."""
    quantized: jax.Array
    """float32 `[B, T, W]`."""
    codes: jax.Array
    """int `[B, T, G]`: the chosen code of each codebook."""
    perplexities: jax.Array
    """float32 `[G]`: how many codes of each codebook are in use."""


def codes_in_use(chosen: jax.Array, weights: jax.Array) -> jax.Array:
    r"""Returns the perplexity of the mean choice of each codebook.

    .. math:: \exp(-\sum_v \bar p_{gv} \log \bar p_{gv}), \quad
              \bar p = \sum_{bt} w_{bt} p_{bt} / \sum_{bt} w_{bt}

    Args:
        chosen: float `[B, T, G, V]`, the probabilities of the codes (p).
        weights: float `[B, T]`, 0 for frames that do not count (w).

    Returns:
        `[G]`.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), section 3.2.
    """
    total = jnp.sum(chosen * weights[..., None, None], axis=(0, 1))
    shares = total / jnp.maximum(jnp.sum(weights), 1.0)
    logs = jnp.log(jnp.where(shares > 0, shares, 1.0))
    return jnp.exp(-jnp.sum(shares * logs, axis=-1))


class Quantizer(nnx.Module):
    """Replaces a frame by a vector of each codebook."""

    def __init__(self, key: jax.Array, head: QuantizedFrames, width: int):
        """Declares the scores of the codes and the codebooks `[G, V, C / G]`."""
        keys = jax.random.split(key)
        groups, codes = head.num_codebooks, head.codes
        outputs = {"kinds": groups, "labels": codes}
        self.scores = Linear(keys[0], {"features": width}, outputs, normal(1.0), bias=True)
        shape, axes = (groups, codes, head.code_dim // groups), ("kinds", "labels", "pooled")
        self.codebooks = parameter(
            keys[1], shape, axes, lambda key, shape: jax.random.uniform(key, shape, jnp.float32)
        )

    def __call__(
        self,
        x: jax.Array,
        masked: jax.Array | None,
        key: jax.Array | None,
        temperature: jax.Array | float = 1.0,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the vectors `[B, T, D]`, codes `[B, T, G]` and perplexities `[G]` of frames."""
        # The use of codes is measured over `masked` frames, bool `[B, T]`; None: all. Without a key
        # for the Gumbel noise, in evaluation, the largest score counts.
        logits = self.scores(x).astype(jnp.float32)
        noisy = logits
        if key is not None:
            # Without a sharding every device would draw the noise of all devices.
            noise = jax.random.gumbel(key, logits.shape, out_sharding=spec_of(logits))
            noisy = (logits + noise) / temperature
        codes = jnp.argmax(noisy, axis=-1)
        hard = jax.nn.one_hot(codes, logits.shape[-1])
        chosen = hard
        if key is not None:
            soft = jax.nn.softmax(noisy, axis=-1)
            chosen = hard + soft - jax.lax.stop_gradient(soft)
        weights = jnp.ones(x.shape[:2]) if masked is None else masked.astype(jnp.float32)
        measured = hard if key is None else jax.nn.softmax(logits, axis=-1)
        vectors = jnp.einsum("btgv,gvc->btgc", chosen, self.codebooks[...])
        return vectors.reshape(*x.shape[:2], -1), codes, codes_in_use(measured, weights)


class QuantizedFramesHead(HeadModule):
    """A quantizer, and projections of states and of quantized frames to one width."""

    weights = "masked"

    def __init__(self, key: jax.Array, config: TransformerConfig, head: QuantizedFrames):
        """Declares the layers."""
        keys = jax.random.split(key, 3)
        self.quantizer = Quantizer(keys[0], head, config.features.channels[-1])
        width, std = {"labels": head.width}, normal(config.init_std)
        self.states = Linear(keys[1], {"embed": config.output_width}, width, std, bias=True)
        self.quantized = Linear(keys[2], {"pooled": head.code_dim}, width, std, bias=True)
        self.head = head

    def compared(
        self,
        outputs: ModelOutput,
        masked: jax.Array | None,
        key: jax.Array | None = None,
        temperature: jax.Array | float = 1.0,
        gumbel_key: jax.Array | None = None,
    ) -> Compared:
        """Returns the projected states and quantized frames, see `Quantizer.__call__`."""
        # The key of the Gumbel noise is one from `key`, that of dropout, unless `gumbel_key` is
        # given.
        drop_key, own_key = split(key, 2)
        own_key = own_key if key is None or gumbel_key is None else gumbel_key
        x = dropout(outputs.features, self.head.dropout, drop_key)
        vectors, codes, perplexities = self.quantizer(x, masked, own_key, temperature)
        states = self.states(outputs.hidden).astype(jnp.float32)
        return Compared(states, self.quantized(vectors), codes, perplexities)

    def similarities(self, compared: Compared, negatives: jax.Array) -> jax.Array:
        """Returns the logits `[B, T, 1 + K]` of a position's own frame and of K `negatives`."""
        # Another frame of the same codes has -inf.
        sizes = assert_axes(quantized=(compared.quantized, "B T W"))
        assert_axes(sizes, negatives=(negatives, "B T K"))

        def at(x):
            flat = negatives.reshape(negatives.shape[0], -1)
            found = jnp.take_along_axis(x, flat[..., None], axis=1)
            return found.reshape(*negatives.shape, -1)

        unit = _unit(compared.quantized)
        same = jnp.all(at(compared.codes) == compared.codes[:, :, None], axis=-1)
        states = _unit(compared.states)
        positive = jnp.sum(states * unit, axis=-1, keepdims=True)
        others = jnp.einsum("btw,btkw->btk", states, at(unit))
        others = jnp.where(same, -jnp.inf, others)
        return jnp.concatenate([positive, others], axis=-1) / self.head.temperature

    def losses(
        self, compared: Compared, masked: jax.Array, negatives: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the sums of the two terms over masked frames, and the number of correct ones."""
        # The diversity term is without its weight. A frame is correct if it is most similar to its
        # own quantized frame.
        logits = self.similarities(compared, negatives)
        losses = jax.nn.logsumexp(logits, axis=-1) - logits[..., 0]
        count = jnp.sum(masked, dtype=jnp.float32)
        codes = self.head.num_codebooks * self.head.codes
        diversity = (codes - jnp.sum(compared.perplexities)) / codes
        right = jnp.sum((jnp.argmax(logits, axis=-1) == 0) & masked, dtype=jnp.float32)
        return jnp.sum(jnp.where(masked, losses, 0.0)), diversity * count, right

    def loss(self, outputs: ModelOutput, batch: Batch, options, key):
        masked, temperature = batch["masked"], self.head.gumbel_temperature
        if options.step is not None:
            temperature = self.head.temperature_at(options.step)
            add_metric("gumbel_temperature", temperature)
        compared = self.compared(outputs, masked, key, temperature)
        contrastive, diversity, right = self.losses(compared, masked, batch["negatives"])
        for number, perplexity in enumerate(compared.perplexities):
            add_metric(f"perplexity_{number + 1}", perplexity)
        total = contrastive + self.head.diversity_weight * diversity
        return LossSums(total, self.loss_weight(batch), right, jnp.zeros((), jnp.float32))


def _unit(x: jax.Array) -> jax.Array:
    """Vectors `[..., W]` of length 1."""
    length = jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True))
    return x / jnp.maximum(length, _EPS)
