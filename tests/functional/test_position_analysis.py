"""Steps, collisions, and which part of a score is relative, against numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    NoPosition,
    RoPE,
    Sinusoidal,
    T5Bias,
    alibi_bias,
    alibi_slopes,
    binary_code,
    first_collision,
    integer_code,
    position_scores,
    relative_share,
    score_terms,
    sinusoidal_code,
    step_sizes,
)

pytestmark = pytest.mark.more

T, D, N, H = 13, 12, 3, 4


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def test_the_four_terms_add_up_to_the_score(rng):
    content, code = normal(rng, T, D), normal(rng, T, D)
    query, key = normal(rng, D, H), normal(rng, D, H)
    terms = score_terms(content, code, query, key)
    total = ((content + code) @ query) @ ((content + code) @ key).T
    np.testing.assert_allclose(sum(terms), total, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        terms.content_position, (content @ query) @ (code @ key).T, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        terms.position_content, (code @ query) @ (content @ key).T, rtol=1e-4, atol=1e-4
    )


def test_sinusoidal_positions_are_relative_without_learned_projections_alone(rng):
    code = sinusoidal_code(jnp.arange(T), model_dim=D, theta=1e4, layout="half")
    content, unit = jnp.zeros((T, D)), jnp.eye(D)
    same = score_terms(content, code, unit, unit).position_position
    assert relative_share(same) == pytest.approx(1.0, abs=1e-6)
    learned = score_terms(content, code, normal(rng, D, D), normal(rng, D, D))
    assert relative_share(learned.position_position) < 0.99


def test_relative_share_is_a_ratio_of_variances(rng):
    scores = normal(rng, 2, 5, 7)
    distance = np.arange(7)[None] - np.arange(5)[:, None]
    expected = []
    for matrix in scores:
        left = sum(
            ((matrix[distance == d] - matrix[distance == d].mean()) ** 2).sum()
            for d in np.unique(distance)
        )
        expected.append(1 - left / ((matrix - matrix.mean()) ** 2).sum())
    np.testing.assert_allclose(relative_share(scores), expected, rtol=1e-4)
    assert relative_share(jnp.asarray(distance, jnp.float32)) == pytest.approx(1.0)
    assert relative_share(jnp.full((4, 4), 0.1)) == 1.0


@pytest.mark.parametrize(
    ("scheme", "share"),
    [
        (NoPosition(), 1.0),
        (RoPE(theta=100.0), 1.0),
        (RoPE(theta=100.0, fraction=0.5, layout="interleaved"), 1.0),
        (ALiBi(), 1.0),
        (T5Bias(num_buckets=8, max_distance=10, bidirectional=True), 1.0),
        (Sinusoidal(), None),
        (Integer(max_length=64), None),
        (Binary(num_bits=4), None),
        (Learned(max_length=T), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_scheme_is_relative_or_not(scheme, share, rng):
    declared = scheme.table(model_dim=D, num_heads=N)
    table = None if declared is None else jnp.asarray(normal(rng, *declared[0]))
    # The same token everywhere: what differs between scores comes from the positions.
    content = np.tile(normal(rng, 1, D), (T, 1))
    kernels = normal(rng, D, N, H), normal(rng, D, N, H)
    found = relative_share(position_scores(scheme, content, *kernels, table=table))
    assert found.shape == (N,)
    if share is None:
        assert float(found.max()) < 0.99
    else:
        np.testing.assert_allclose(found, share, atol=1e-5)


def test_position_scores_are_those_of_attention(rng):
    content = normal(rng, T, D)
    query, key = normal(rng, D, N, H), normal(rng, D, N, H)
    plain = np.einsum("td,dnh,se,enh->nts", content, query, content, key) / np.sqrt(H)
    positions = jnp.arange(T)[None]
    bias = alibi_bias(alibi_slopes(N), positions, positions)[0]
    found = position_scores(ALiBi(), content, query, key)
    np.testing.assert_allclose(found, plain + bias, rtol=1e-4, atol=1e-4)


def test_steps_of_a_binary_code_count_the_digits_that_change():
    steps = step_sizes(binary_code(jnp.arange(16), num_bits=4))
    np.testing.assert_allclose(
        np.square(steps), [1, 2, 1, 3, 1, 2, 1, 4, 1, 2, 1, 3, 1, 2, 1], rtol=1e-6
    )
    steps = step_sizes(sinusoidal_code(jnp.arange(99), model_dim=8, theta=1e4, layout="half"))
    np.testing.assert_allclose(steps, steps[0], rtol=1e-5)


def test_the_first_collision_is_the_earliest():
    assert first_collision(binary_code(jnp.arange(40), num_bits=4), 0) == (16, 0)
    assert first_collision(binary_code(jnp.arange(16), num_bits=4), 0) is None
    codes = np.array([[0.0], [1.0], [2.0], [1.05], [0.0]])
    assert first_collision(codes, 0) == (4, 0)
    assert first_collision(codes, 0.1) == (3, 1)


def test_the_first_collision_is_that_of_a_set(rng):
    codes = rng.integers(0, 9, size=(700, 3)).astype(np.float32)
    seen = {}
    for place, row in enumerate(map(tuple, codes)):
        if row in seen:
            break
        seen[row] = place
    assert first_collision(codes, 0) == (place, seen[row])


def test_neighbouring_integers_are_one_number_in_bfloat16():
    codes = integer_code(jnp.arange(1000), max_length=1024).astype(jnp.bfloat16)
    assert first_collision(codes, 0) == (257, 256)
