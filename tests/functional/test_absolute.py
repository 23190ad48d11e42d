"""Binary and sinusoidal position codes; integers and tables: test_position.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import binary_code, sinusoidal_code, sinusoidal_grid_code

LAYOUTS = ("interleaved", "half")


def sines_and_cosines(code: jax.Array, layout: str) -> np.ndarray:
    code = np.asarray(code, np.float64)
    if layout == "half":
        return np.stack(np.split(code, 2, axis=-1))
    return np.stack([code[..., 0::2], code[..., 1::2]])


@pytest.mark.parametrize("num_bits", [1, 5, 11])
def test_binary_code_equals_unpackbits_and_is_unique(num_bits):
    positions = np.arange(2**num_bits, dtype=np.int32)
    code = np.asarray(binary_code(jnp.asarray(positions), num_bits=num_bits))
    expected = np.unpackbits(
        positions.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little"
    )
    np.testing.assert_array_equal(code, expected[:, :num_bits])
    assert len(np.unique(code, axis=0)) == len(positions)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [2, 6, 48])
def test_sinusoidal_equals_float64(dim, layout):
    positions = np.concatenate([np.arange(-1000, 2000), np.arange(199_900, 200_000)])[None]
    code = sinusoidal_code(jnp.asarray(positions), model_dim=dim, theta=1e4, layout=layout)
    chex.assert_shape(code, (1, 3100, dim))
    angles = positions[..., None] * 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    expected = np.stack([np.sin(angles), np.cos(angles)])
    np.testing.assert_allclose(sines_and_cosines(code, layout), expected, rtol=0, atol=5e-7)


@pytest.mark.torch
def test_with_the_endpoint_it_equals_m2m_100():
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    weight = M2M100SinusoidalPositionalEmbedding.get_embedding(300, 32).numpy()
    code = sinusoidal_code(jnp.arange(300), model_dim=32, theta=1e4, layout="half", endpoint=True)
    # Theirs has the rounding of float32 frequencies times the position.
    np.testing.assert_allclose(code, weight, rtol=0, atol=3e-5)
    # Ours is exact to the 2^-32 of a turn in which it counts.
    np.testing.assert_allclose(code[1, 15], np.sin(1e-4), atol=2 * np.pi / 2**32)


@pytest.mark.parametrize(("quarter", "theta"), [(1, 2.0), (9, 1e4)])
def test_grid_code_channel_by_channel(quarter, theta):
    rows, columns = np.random.default_rng(0).integers(0, 300, (2, 1, 50))
    code = sinusoidal_grid_code(
        jnp.asarray(rows), jnp.asarray(columns), model_dim=4 * quarter, theta=theta
    )
    waves = theta ** (np.arange(quarter) / quarter)
    expected = [f(p[..., None] / waves) for p in (columns, rows) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(code, np.concatenate(expected, axis=-1), rtol=0, atol=5e-7)
