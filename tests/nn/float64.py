"""Modules whose every parameter is random, and what they are made of in float64."""

import jax
import jax.numpy as jnp
import numpy as np


def filled(module, seed=0):
    """The module with every parameter random, biases and scales of norms too."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.6, x.shape), jnp.float32), module)


def stream(length, seed=1, width=20):
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(size=(2, length, width)), jnp.float32)


def double(x):
    return np.asarray(x[...], np.float64)


def projected(layer, x):
    bias = 0 if layer.bias is None else double(layer.bias)
    return np.tensordot(double(x), double(layer.kernel), layer.contract) + bias


def normalised(x, norm):
    """RMSNorm of each head of `[B, T, N, H]`, or of several as one vector."""
    scale = double(norm.scale)
    joined = x.reshape(*x.shape[:2], -1, scale.size)
    root = np.sqrt((joined**2).mean(-1, keepdims=True) + norm.norm.eps)
    return (joined / root * scale).reshape(x.shape)
