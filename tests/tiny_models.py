"""Tiny models whose every parameter is random, and compiled functions that tests share."""

from collections.abc import Mapping
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import ALiBi, Binary, Integer, Learned, RoPE, Sinusoidal, T5Bias
from jaxformer.functional.positions.base import NoPosition
from jaxformer.functional.positions.fixed_table import SinusoidalTable
from jaxformer.hub.describe import describe_model
from jaxformer.hub.fields import build_with
from jaxformer.models import (
    CTC,
    AbstractModel,
    Classification,
    CompositeConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    ModelConfig,
    Parameters,
    SpectrogramConfig,
    SpectrogramPatchesConfig,
    VisionConfig,
    WaveformConfig,
)
from jaxformer.nn import DotProductCrossAttention
from jaxformer.nn.waveform import ConvolutionalFeatures, PositionalConvolution
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.zoo import FORMATS

SCHEMES = {
    "integer": Integer(max_length=8),
    "binary": Binary(num_bits=4),
    "sinusoidal": Sinusoidal(theta=100.0),
    "learned": Learned(max_length=16),
    "rope_half": RoPE(theta=100.0),
    "rope_interleaved": RoPE(theta=100.0, layout="interleaved"),
    "rope_partial": RoPE(theta=100.0, fraction=0.5),
    "alibi": ALiBi(),
    "t5": T5Bias(num_buckets=8, max_distance=12, bidirectional=False),
}


def each_scheme(parametrize):
    """The decorator of a test that takes a `position`, from `pytest.mark.parametrize`."""
    return parametrize("position", SCHEMES.values(), ids=SCHEMES.keys())


# Some units in the last place of float32.
close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)

# Sizes that do not divide one another where they need not.
STACK = {
    "num_layers": 2,
    "model_dim": 20,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 4,
    "mlp_dim": 14,
    "compute_dtype": "float32",
    "attention": "reference",
    "scan_layers": False,
}


# `changes` are fields, or paths such as "self_attention.bias".
def tiny(**changes) -> DecoderConfig:
    """A decoder."""
    return build_with(DecoderConfig, {"vocab_size": 31} | STACK | changes)


def tiny_encoder(**changes) -> EncoderConfig:
    """An encoder that predicts masked tokens, and a label of the sequence."""
    fields = {
        "vocab_size": 31,
        "position": Learned(max_length=16),
        "embeddings.token_types": 3,
        "pooler": "tanh",
        "heads": (MaskedLanguageModel(), Classification(num_labels=3)),
    }
    return build_with(EncoderConfig, STACK | fields | changes)


def tiny_encoder_decoder(**changes) -> EncoderDecoderConfig:
    """An encoder-decoder whose sides differ in depth."""
    fields = {
        "vocab_size": 31,
        "num_layers": 1,
        "num_decoder_layers": 2,
        "position": T5Bias(8, 12, bidirectional=True),
        "decoder_position": T5Bias(8, 12, bidirectional=False),
    }
    return build_with(EncoderDecoderConfig, STACK | fields | changes)


def tiny_vision(**changes) -> VisionConfig:
    """A classifier of images that are not square, of patches that are not square."""
    fields = {
        "image_size": (8, 12),
        "patch_size": (4, 3),
        "channels": 2,
        "position": Learned(max_length=9),
        "heads": (Classification(num_labels=3),),
    }
    return build_with(VisionConfig, STACK | fields | changes)


def tiny_waveform(**changes) -> WaveformConfig:
    """Transcribes waveforms by frames of 17 samples."""
    fields = {
        "features": ConvolutionalFeatures((12, 16, 20), (5, 3, 2), (3, 2, 1)),
        "position_convolution": PositionalConvolution(5, 2),
        "position": NoPosition(),
        "heads": (CTC(vocab_size=7),),
    }
    return build_with(WaveformConfig, STACK | fields | changes)


def tiny_spectrogram(**changes) -> SpectrogramConfig:
    """Reads spectrograms of 26 frames."""
    fields = {"num_mel_bins": 5, "position": SinusoidalTable(max_length=13)}
    return build_with(SpectrogramConfig, STACK | fields | changes)


def tiny_spectrogram_patches(**changes) -> SpectrogramPatchesConfig:
    """A classifier of spectrograms by patches that overlap."""
    fields = {
        "image_size": (9, 14),
        "patch_size": (4, 4),
        "patch_stride": (2, 3),
        "position": Learned(max_length=14),
        "heads": (Classification(num_labels=3),),
    }
    return build_with(SpectrogramPatchesConfig, STACK | fields | changes)


def tiny_composite(encoder: EncoderConfig | VisionConfig, **changes) -> CompositeConfig:
    """An encoder with a decoder of another width and depth."""
    fields = {"model_dim": 16, "num_layers": 1, "position": Learned(max_length=16)}
    decoder = tiny(**(fields | changes), cross_attention=DotProductCrossAttention())
    return CompositeConfig(encoder.with_fields(heads=()), decoder)


@lru_cache
def structure_of(config: ModelConfig) -> AbstractModel:
    return AbstractModel(config.build)


def random_arrays(shapes: Mapping, seed: int = 0, scale: float = 0.4) -> Parameters:
    """Every parameter random, biases and the scales of norms too, so that each one matters."""
    random = np.random.default_rng(seed)
    return {
        name: jnp.asarray(name.endswith("scale") + scale * random.normal(size=shape.shape), "f4")
        for name, shape in shapes.items()
    }


def random_parameters(config: ModelConfig, seed: int = 0, scale: float = 0.4) -> Parameters:
    return random_arrays(structure_of(config).shapes, seed, scale)


def random_model(config: ModelConfig) -> Pretrained:
    """A model of a configuration with `random_parameters`, as if it was loaded."""
    checkpoint = describe_model(config, FORMATS.values(), {})
    return Pretrained(config, random_parameters(config), described_by(checkpoint))


@partial(jax.jit, static_argnums=0)
def logits_of(config: DecoderConfig, parameters: Parameters, inputs: jax.Array, **options):
    """Float32 logits `[B, T, V]`."""
    return structure_of(config).module(parameters)(inputs, **options)


@partial(jax.jit, static_argnums=0)
def hidden_of(config: ModelConfig, parameters: Parameters, inputs: jax.Array, **options):
    """The hidden states `[B, T, D]`."""
    return structure_of(config).module(parameters).hidden(inputs, **options)


@partial(jax.jit, static_argnums=0)
def gradients_of(config: DecoderConfig, parameters: Parameters, inputs: jax.Array, **options):
    """The gradient of a fixed random function of the logits, and the logits."""

    def total(parameters):
        logits = structure_of(config).module(parameters)(inputs, **options)
        weights = jax.random.normal(jax.random.key(7), logits.shape)
        return jnp.sum(logits * weights), logits

    return jax.grad(total, has_aux=True)(parameters)


def tokens(batch: int, length: int, seed: int = 0) -> jax.Array:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.integers(0, 31, (batch, length)), jnp.int32)


def padded(inputs: jax.Array, length: int, starts: tuple, seed: int = 1) -> tuple[dict, tuple]:
    """A batch of rows that begin at their starts, with padding around them, and their places."""
    rows = np.arange(len(inputs))[:, None]
    places = rows, np.array(starts)[:, None] + np.arange(inputs.shape[1])
    segments = jnp.zeros((len(inputs), length), jnp.int32).at[places].set(1)
    filled = tokens(len(inputs), length, seed).at[places].set(inputs)
    positions = jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0)
    return {"inputs": filled, "segments": segments, "positions": positions}, places


def packed(documents: jax.Array, seed: int = 1) -> dict:
    """A batch of one row with two documents `[2, T]`, and padding behind them."""
    size = documents.shape[1]
    return {
        "inputs": jnp.concatenate([*documents, tokens(1, 3, seed)[0]])[None],
        "segments": jnp.array([[1] * size + [2] * size + [0] * 3]),
        "positions": jnp.array([[*range(size), *range(size), 0, 0, 0]]),
    }


@partial(jax.jit, static_argnums=0)
def scores_of(config: ModelConfig, parameters: Parameters, batch: dict) -> dict:
    """Every head's scores of a batch."""
    return structure_of(config).module(parameters).scores(batch)


@partial(jax.jit, static_argnums=(0, 1))
def influence(config: ModelConfig, length: int, parameters: Parameters, **options) -> jax.Array:
    """`[T, S]`: the largest derivative of state `t` by the embedding of input `s`."""

    def hidden(table):  # Every input is another token, so it alone uses its row of the table.
        model = structure_of(config).module(parameters | {"embedding.table": table})
        return model.hidden(jnp.arange(length)[None], **options)[0]

    return jnp.abs(jax.jacrev(hidden)(parameters["embedding.table"])).max((1, 3))[:, :length]


@partial(jax.jit, static_argnums=0)
def loss_and_gradients_of(config: ModelConfig, parameters: Parameters, batch: dict, key=None):
    """The sum of the mean losses of a batch, and its gradient."""

    def loss(parameters):
        sums = structure_of(config).module(parameters).loss(batch, key=key)[1].values()
        return sum(head.loss / head.weight for head in sums)

    return jax.value_and_grad(loss)(parameters)


def batch_for(config: ModelConfig, rows: int = 16, length: int = 7, seed: int = 0) -> dict:
    """A batch with padding for any family: what it reads, and what its heads predict."""
    random = np.random.default_rng(seed)
    if "images" in config.required:
        vision = config.parts.get("encoder", config)
        shape = (rows, *vision.image_size, vision.channels)
        batch = {"images": random.normal(size=shape).astype(np.float32)}
    else:
        batch = _padded_text(random, rows, length, config.vocab_size)
    valid = batch.get("segments", np.ones((rows, 1))) > 0
    if config.is_encoder_decoder:
        decoder = _padded_text(random, rows, length - 2, config.vocab_size)
        batch |= {f"decoder_{name}": x for name, x in decoder.items()}
        valid = decoder["segments"] > 0
    if isinstance(config, DecoderConfig):
        batch["prefix"] = random.integers(0, length, rows).astype(np.int32)
    ends = valid.sum(1, keepdims=True)
    return batch | {
        "token_types": random.integers(0, 3, (rows, length)).astype(np.int32),
        "task_types": random.integers(0, 2, (rows, length)).astype(np.int32),
        "targets": random.integers(0, 31, valid.shape).astype(np.int32),
        "weights": (valid * random.integers(0, 3, valid.shape)).astype(np.float32),
        "label": random.integers(0, 3, rows).astype(np.int32),
        "label_weights": random.integers(0, 3, rows).astype(np.float32),
        "rating": random.normal(size=rows).astype(np.float32),
        "rating_weights": random.integers(0, 3, rows).astype(np.float32),
        "span": random.integers(0, ends, (rows, 2)).astype(np.int32),
        "span_weights": random.integers(0, 3, rows).astype(np.float32),
    }


def _padded_text(random, rows: int, length: int, vocab_size: int) -> dict:
    lengths = random.integers(2, length + 1, (rows, 1))
    return {
        "inputs": random.integers(0, vocab_size, (rows, length)).astype(np.int32),
        "segments": (np.arange(length) < lengths).astype(np.int32),
    }
