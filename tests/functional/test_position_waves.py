"""What follows from frequencies, against float64 and brute force."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import (
    apply_rope,
    code_distance,
    code_inner_products,
    first_return,
    inverse_frequencies,
    rope_decay,
    rope_score_bound,
    rotation_matrix,
    sinusoidal_code,
    sinusoidal_frequencies,
    wavelengths,
)

pytestmark = pytest.mark.more

LAYOUTS = ("half", "interleaved")
DISTANCES = np.array([-1001, -3, 0, 1, 2, 50, 999, 123_457])


def codes(positions, dim, theta=10_000.0, endpoint=False):
    options = {"model_dim": dim, "theta": theta, "layout": "interleaved", "endpoint": endpoint}
    return np.asarray(sinusoidal_code(jnp.asarray(positions), **options), np.float64)


@pytest.mark.parametrize(("dim", "endpoint"), [(2, False), (6, False), (64, True), (10, True)])
@pytest.mark.quick("64-*", "6-*")
def test_frequencies_are_those_of_the_code(dim, endpoint):
    frequencies = sinusoidal_frequencies(dim, 10_000.0, endpoint)
    angles = np.arange(9)[:, None] * frequencies
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(9, dim)
    np.testing.assert_allclose(codes(np.arange(9), dim, endpoint=endpoint), expected, atol=1e-6)


def test_the_longest_wavelength_is_the_base_with_an_endpoint_alone():
    longest = wavelengths(sinusoidal_frequencies(512, 10_000.0, endpoint=True))[-1]
    assert longest == pytest.approx(20_000 * np.pi)
    waves = wavelengths(sinusoidal_frequencies(512, 10_000.0))
    assert waves[0] == pytest.approx(2 * np.pi)
    assert waves[-1] == pytest.approx(20_000 * np.pi * 10_000 ** (-2 / 512))
    np.testing.assert_allclose(waves[1:] / waves[:-1], 10_000 ** (2 / 512))


@pytest.mark.parametrize("dim", [2, 6, 64])
@pytest.mark.quick("64")
def test_inner_products_of_codes_depend_on_the_distance(dim):
    frequencies = sinusoidal_frequencies(dim, 10_000.0)
    expected = np.cos(DISTANCES[:, None] * frequencies).sum(-1)
    found = code_inner_products(frequencies, DISTANCES)
    # The frequencies are rounded to float32: at 123,457 tokens the angles are off by 0.004 rad.
    np.testing.assert_allclose(found[:-1], expected[:-1], atol=1e-4)
    np.testing.assert_allclose(found, expected, atol=0.004 * dim / 2)
    table = codes(np.arange(40), dim)
    distances = np.arange(40)[:, None] - np.arange(40)
    np.testing.assert_allclose(
        code_inner_products(frequencies, distances), table @ table.T, atol=2e-5
    )


def test_the_distance_of_codes_is_relative_to_their_length():
    frequencies = sinusoidal_frequencies(10, 100.0)
    table = codes([7, *(7 + np.arange(1, 30))], 10, theta=100.0)
    expected = np.linalg.norm(table[1:] - table[0], axis=-1) / np.linalg.norm(table[0])
    np.testing.assert_allclose(code_distance(frequencies, np.arange(1, 30)), expected, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotations_multiply_to_the_rotation_of_the_distance(layout):
    frequencies = inverse_frequencies(10_000.0, 6)
    matrix = np.asarray(rotation_matrix(jnp.asarray(DISTANCES), frequencies, layout=layout))
    between = DISTANCES[None, :] - DISTANCES[:, None]
    expected = rotation_matrix(jnp.asarray(between.ravel()), frequencies, layout=layout)
    found = np.einsum("mij,nik->mnjk", matrix, matrix)  # R_m^T R_n
    np.testing.assert_allclose(found, np.asarray(expected).reshape(found.shape), atol=2e-6)
    x = np.random.default_rng(0).normal(size=(1, len(DISTANCES), 1, 6)).astype(np.float32)
    rotated = apply_rope(jnp.asarray(x), jnp.asarray(DISTANCES)[None], frequencies, layout=layout)
    np.testing.assert_allclose(
        np.einsum("tij,tj->ti", matrix, x[0, :, 0]), rotated[0, :, 0], atol=1e-6
    )


def test_rotations_move_sinusoidal_codes():
    frequencies = sinusoidal_frequencies(8, 1e4)
    matrix = np.asarray(rotation_matrix(jnp.array([5]), frequencies, layout="interleaved"))[0]
    # The code has (sin, cos) where a rotation of positive angle takes (cos, sin).
    table = codes(np.arange(20), 8).reshape(20, 4, 2)[..., ::-1].reshape(20, 8)
    np.testing.assert_allclose(table[:-5] @ matrix.T, table[5:], atol=2e-6)


@pytest.mark.parametrize("theta", [500.0, 10_000.0])
def test_decay_equals_float64(theta):
    frequencies = inverse_frequencies(theta, 32)
    phases = np.exp(1j * DISTANCES[:, None] * frequencies.astype(np.float64))
    expected = np.abs(np.cumsum(phases, axis=-1)).mean(-1)
    found = rope_decay(frequencies, DISTANCES)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert found[2] == pytest.approx((16 + 1) / 2)
    assert bool((found <= found[2]).all())


@pytest.mark.parametrize(("layout", "pairs"), [("half", 1), ("half", 8), ("interleaved", 3)])
@pytest.mark.quick("half-8")
def test_scores_stay_below_the_bound(layout, pairs):
    rng = np.random.default_rng(pairs)
    frequencies = inverse_frequencies(10_000.0, 2 * pairs)
    query, key = rng.normal(size=(2, 500, 2 * pairs)).astype(np.float32)
    distances = np.array([0, 1, 2, -3, 17, 900, -4001])
    rotations = rotation_matrix(distances, frequencies, layout=layout)
    scores = np.einsum("tij,bj,bi->bt", rotations, query, key)  # (R_d q) . k = R_m q . R_n k
    bound = np.asarray(rope_score_bound(query, key, frequencies, distances, layout=layout))
    assert np.all(np.abs(scores) <= bound * (1 + 1e-5) + 1e-5)


@pytest.mark.parametrize("tolerance", [0.05, 0.12, 0.3])
def test_the_first_return_equals_that_of_the_codes(tolerance):
    frequencies = sinusoidal_frequencies(4, 1000.0)
    table = codes(np.arange(40_000), 4, theta=1000.0)
    away = np.linalg.norm(table - table[0], axis=-1) / np.sqrt(2)
    (near,) = np.nonzero(away[1:] <= tolerance)
    assert first_return(frequencies, tolerance, 39_999) == near[0] + 1
    assert first_return(frequencies, tolerance, int(near[0])) is None


def test_one_pair_returns_after_its_wavelength():
    # 44 / (2 pi) = 7.003 turns, 0.018 rad from whole ones.
    assert first_return(np.array([1.0]), 0.02, 1000) == 44
    assert first_return(np.array([1.0]), 1e-4, 1000) == 710
