"""RoPE: scores at any offset, every scaling equals transformers', angles are exact."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoScaling,
    Scaling,
    YaRN,
    apply_rope,
    assert_shift_invariant,
    inverse_frequencies,
    rotary_angles,
)
from jaxformer.functional.positions import rope

LAYOUTS = ("half", "interleaved")
HEAD_DIM = 16


def scalings(rotary_dim: int) -> dict[str, Scaling]:
    pairs = rotary_dim // 2
    return {
        "none": NoScaling(),
        "linear": LinearScaling(factor=4.0),
        "dynamic": DynamicNTK(factor=2.5, original_max_length=64),
        "yarn": YaRN(factor=8.0, original_max_length=256),
        "llama3": Llama3Scaling(
            factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_length=64
        ),
        "longrope": LongRoPE(
            short_factors=tuple(1 + 0.1 * i for i in range(pairs)),
            long_factors=tuple(1.5 + i for i in range(pairs)),
            original_max_length=64,
            factor=4.0,
        ),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_at_extreme_offsets(layout):
    frequencies = inverse_frequencies(500_000.0, HEAD_DIM)
    rotated = partial(apply_rope, inverse_frequencies=frequencies, layout=layout)
    vectors = jax.random.normal(jax.random.key(3), (2, 1, 1, 1, HEAD_DIM))

    def score(*positions):
        """Relative to |q||k|, and in float64, so that the sum itself adds no rounding."""
        q, k = (np.asarray(x, np.float64) for x in map(rotated, vectors, positions))
        return np.sum(q * k) / (np.linalg.norm(q) * np.linalg.norm(k))

    far = [-1_000_000, 16_777_217, 1_000_000_007]
    # Four angles of 3e-7 rad and a few roundings of 6e-8 in cos, sin and the rotation.
    assert_shift_invariant(score, jnp.array([[1017]]), jnp.array([[5]]), atol=2e-6, shifts=far)


@given(
    name=st.sampled_from(sorted(scalings(4))),
    layout=st.sampled_from(LAYOUTS),
    rotary_dim=st.sampled_from([4, 8, HEAD_DIM]),
    offset=st.integers(0, 100_000),
)
def test_norm_is_kept(name, layout, rotary_dim, offset):
    frequencies, attention_factor = scalings(rotary_dim)[name].frequencies(
        theta=10_000.0, rotary_dim=rotary_dim, length=offset + 5
    )
    x = jax.random.normal(jax.random.key(offset), (2, 5, 3, HEAD_DIM))
    positions = jnp.arange(5)[None] + offset
    y = jax.jit(apply_rope, static_argnames="layout")(
        x, positions, frequencies, layout=layout, attention_factor=attention_factor
    )
    chex.assert_equal_shape([x, y])
    before = jnp.linalg.norm(x[..., :rotary_dim], axis=-1) * attention_factor
    np.testing.assert_allclose(jnp.linalg.norm(y[..., :rotary_dim], axis=-1), before, rtol=1e-6)
    np.testing.assert_array_equal(y[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("start", [-500, 0, 100_000, 1_000_000])
def test_angles_equal_float64(theta, start):
    frequencies = inverse_frequencies(theta, 128)
    positions = np.arange(start, start + 500)[None]
    angles = np.asarray(jax.jit(rotary_angles)(jnp.asarray(positions), frequencies), np.float64)
    assert np.abs(angles).max() <= np.pi + 1e-6
    exact = positions[..., None] * frequencies.astype(np.float64)
    error = np.angle(np.exp(1j * (angles - exact)))
    # A phase below half a turn: 1e-7 for the integer, 1e-7 for 2 pi, 1.2e-7 for the product.
    assert np.abs(error).max() < 4e-7


def test_angles_take_traced_frequencies_above_one_turn():
    frequencies = np.array([0.0, 1e-30, 1e-7, 2.0, 7.0, 100.0], np.float32)
    angles = jax.jit(rotary_angles)(jnp.arange(1000)[None], frequencies)
    exact = np.arange(1000)[None, :, None] * frequencies.astype(np.float64)
    assert np.abs(np.angle(np.exp(1j * (np.asarray(angles, np.float64) - exact)))).max() < 4e-7


@pytest.mark.parametrize("rotary_dim", [6, HEAD_DIM])
def test_interleaved_is_half_with_the_channels_permuted(rotary_dim):
    frequencies = inverse_frequencies(10_000.0, rotary_dim)
    x = jax.random.normal(jax.random.key(0), (2, 7, 3, HEAD_DIM))
    positions = jax.random.randint(jax.random.key(1), (2, 7), 0, 1000)
    # Channels of a pair lie next to each other in one layout and R/2 apart in the other.
    order = np.arange(HEAD_DIM)
    order[:rotary_dim] = np.arange(rotary_dim).reshape(2, -1).T.ravel()
    rope = jax.jit(apply_rope, static_argnames="layout")
    half = rope(x, positions, frequencies, layout="half")
    interleaved = rope(x[..., order], positions, frequencies, layout="interleaved")
    np.testing.assert_allclose(interleaved, half[..., order], rtol=0, atol=1e-7)


def test_dtype_is_kept_and_the_arithmetic_is_float32():
    x = jax.random.normal(jax.random.key(0), (1, 9, 2, HEAD_DIM), jnp.bfloat16)
    positions, frequencies = jnp.arange(9)[None] + 5000, inverse_frequencies(10_000.0, HEAD_DIM)
    y = apply_rope(x, positions, frequencies, layout="half")
    exact = apply_rope(x.astype(jnp.float32), positions, frequencies, layout="half")
    chex.assert_type(y, jnp.bfloat16)
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(16, 16), (6, 16), (2, 9)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.quick("float32-6-16-interleaved")
def test_the_products_of_a_tpu_are_the_slices(monkeypatch, layout, rotary_dim, head_dim, dtype):
    x, dy = jax.random.normal(jax.random.key(0), (2, 2, 7, 3, head_dim), dtype)
    positions = jax.random.randint(jax.random.key(1), (2, 7), 0, 4000)
    frequencies = jnp.asarray(inverse_frequencies(10_000.0, rotary_dim))
    moves = jnp.cos(jnp.arange(rotary_dim // 2.0)) / 4000

    def turned(x, positions, frequencies, factor=1.3):
        return apply_rope(x, positions, frequencies, layout=layout, attention_factor=factor)

    def rotated(x, frequencies):
        return turned(x, positions, frequencies)

    def gradient(x, frequencies):
        return jax.vjp(rotated, x, frequencies)[1](dy)

    def derivatives(platform):
        monkeypatch.setattr(rope, "platform", lambda: platform)
        y, along_x = jax.jvp(lambda x: rotated(x, frequencies), (x,), (dy,))
        _, along_frequencies = jax.jvp(lambda f: rotated(x, f), (frequencies,), (moves,))
        dx, dfrequencies = gradient(x, frequencies)
        # Each gradient is a function of both.
        _, second = jax.jvp(gradient, (x, frequencies), (dy, moves))
        rows = jax.vmap(lambda x, p: turned(x[None], p[None], frequencies)[0])(x, positions)
        scaled = turned(x, positions, frequencies, jnp.float32(0.7))
        return (y, along_x, dx, rows, scaled), (along_frequencies, dfrequencies, *second)

    (exact, sums), (expected_exact, expected_sums) = map(derivatives, ("tpu", "cpu"))
    for one, other in zip(exact, expected_exact, strict=True):
        chex.assert_type(one, dtype)
        np.testing.assert_array_equal(one, other)
    # Sums in another order; in bfloat16 the parts of one number are rounded once or twice.
    tolerance = 1e-6 if dtype == jnp.float32 else 2**-7
    for one, other in zip(sums, expected_sums, strict=True):
        np.testing.assert_allclose(
            np.float32(one), np.float32(other), rtol=0, atol=tolerance * np.abs(other).max()
        )


def test_fixed_frequencies_leave_nothing_of_x_for_the_backward_pass(monkeypatch):
    monkeypatch.setattr(rope, "platform", lambda: "tpu")
    frequencies = inverse_frequencies(10_000.0, HEAD_DIM)
    x, positions = jnp.ones((1, 9, 2, HEAD_DIM)), jnp.arange(9)[None]
    _, pullback = jax.vjp(lambda x: apply_rope(x, positions, frequencies, layout="half"), x)
    assert {leaf.shape for leaf in jax.tree.leaves(pullback)} == {(1, 9, 1, HEAD_DIM)}


def test_dynamic_is_unscaled_up_to_the_trained_length():
    scaling = DynamicNTK(factor=2.1, original_max_length=64)
    for length, same in [(1, True), (64, True), (65, False)]:
        frequencies = jax.jit(lambda n: scaling.frequencies(10_000.0, 16, n)[0])(length)
        assert bool(jnp.all(frequencies == inverse_frequencies(10_000.0, 16))) is same


# transformers --------------------------------------------------------------------------------

PAIRS = 12
HF_MAX = 1024
SHORT = [1.0 + 0.05 * i for i in range(PAIRS)]
LONG = [1.0 + 0.9 * i for i in range(PAIRS)]
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 128,
}

PUBLISHED = [
    ({"rope_type": "default"}, NoScaling()),
    ({"rope_type": "linear", "factor": 3.0}, LinearScaling(3.0)),
    ({"rope_type": "dynamic", "factor": 2.1}, DynamicNTK(2.1, HF_MAX)),
    (YARN, YaRN(8.0, 128)),
    (YARN | {"truncate": False}, YaRN(8.0, 128, truncate=False)),
    (
        YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.25},
        YaRN(8.0, 128, beta_fast=20.0, beta_slow=2.0, attention_factor=1.25),
    ),
    (
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        YaRN(8.0, 128, mscale=1.0, mscale_all_dim=0.7),
    ),
    (YARN | {"mscale": 0.707}, YaRN(8.0, 128, mscale=0.707)),
    (YARN | {"original_max_position_embeddings": 4}, YaRN(8.0, 4)),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        Llama3Scaling(8.0, 1.0, 4.0, 256),
    ),
    (LONGROPE, LongRoPE(tuple(SHORT), tuple(LONG), 128, factor=HF_MAX / 128)),
    (
        LONGROPE | {"attention_factor": 1.3, "factor": 2.0},
        LongRoPE(tuple(SHORT), tuple(LONG), 128, factor=2.0, attention_factor=1.3),
    ),
]


def hf_rotary(parameters: dict, theta: float, fraction: float):
    """A fresh rotary module of transformers (its dynamic scaling keeps state between calls)."""
    from transformers.models.phi.configuration_phi import PhiConfig
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

    head_dim = round(2 * PAIRS / fraction)
    config = PhiConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=HF_MAX,
        rope_parameters=parameters | {"rope_theta": theta, "partial_rotary_factor": fraction},
    )
    return PhiRotaryEmbedding(config)


@pytest.mark.torch
@pytest.mark.parametrize(("parameters", "scaling"), PUBLISHED)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("length", [60, 128, 129, HF_MAX, HF_MAX + 1, 5000])
def test_scaling_equals_transformers(parameters, scaling, fraction, length):
    import torch

    rotary = hf_rotary(parameters, 10_000.0, fraction)
    cos, sin = (
        x[0, :60, :PAIRS].numpy() for x in rotary(torch.zeros(1), torch.arange(length)[None])
    )
    frequencies, attention_factor = scaling.frequencies(10_000.0, 2 * PAIRS, length)
    # float32 powers, products and quotients of transformers: a few units in the last place.
    np.testing.assert_allclose(frequencies, rotary.inv_freq.numpy(), rtol=6e-7)
    assert attention_factor == pytest.approx(rotary.attention_scaling, rel=1e-6)
    angles = rotary_angles(jnp.arange(60)[None], frequencies)[0]
    # 60 rad: 4e-6 from rounding their float32 product, 60 * 6e-7 from the frequencies.
    np.testing.assert_allclose(jnp.cos(angles) * attention_factor, cos, atol=4e-5)
    np.testing.assert_allclose(jnp.sin(angles) * attention_factor, sin, atol=4e-5)
