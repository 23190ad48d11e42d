"""Tiny decoders whose every parameter is random, and compiled functions that tests share."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.positional_schemes import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    RoPE,
    Sinusoidal,
    T5Bias,
)
from jaxformer.models import Decoder, DecoderConfig, Parameters, Template

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


def tiny(**changes) -> DecoderConfig:
    """A decoder with sizes that do not divide one another where they need not."""
    sizes = {
        "vocab_size": 31,
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
    return DecoderConfig(**(sizes | changes))


@lru_cache
def template_of(config: DecoderConfig) -> Template:
    return Template(partial(Decoder, config=config))


def random_parameters(config: DecoderConfig, seed: int = 0, scale: float = 0.4) -> Parameters:
    """Every parameter random, biases and the scales of norms too, so that each one matters."""
    random = np.random.default_rng(seed)
    return {
        name: jnp.asarray(name.endswith("scale") + scale * random.normal(size=shape.shape), "f4")
        for name, shape in template_of(config).shapes.items()
    }


@partial(jax.jit, static_argnums=0)
def logits_of(config: DecoderConfig, parameters: Parameters, inputs: jax.Array, **options):
    """Float32 logits `[B, T, V]`."""
    return template_of(config).module(parameters)(inputs, **options)


@partial(jax.jit, static_argnums=0)
def gradients_of(config: DecoderConfig, parameters: Parameters, inputs: jax.Array, **options):
    """The gradient of a fixed random function of the logits, and the logits."""

    def total(parameters):
        logits = template_of(config).module(parameters)(inputs, **options)
        weights = jax.random.normal(jax.random.key(7), logits.shape)
        return jnp.sum(logits * weights), logits

    return jax.grad(total, has_aux=True)(parameters)


def tokens(batch: int, length: int, seed: int = 0, vocab_size: int = 31) -> jax.Array:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.integers(0, vocab_size, (batch, length)), jnp.int32)
