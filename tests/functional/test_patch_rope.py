"""Rotary positions of patches."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import RoPE2D, patch_angles


def test_angles_are_those_of_the_formula():
    angles = patch_angles(
        jnp.arange(2 + 3 * 5)[None], grid=(3, 5), prefix=2, theta=50.0, head_dim=8
    )
    assert not angles[0, :2].any()
    for place in range(15):
        centre = (np.array([place // 5 + 0.5, place % 5 + 0.5]) / (3, 5)) * 2 - 1
        wanted = 2 * np.pi * np.outer(centre, 50.0 ** (-np.arange(2) / 2)).reshape(-1)
        np.testing.assert_allclose(angles[0, 2 + place], wanted, rtol=1e-5, atol=1e-6)


def test_scores_depend_on_offsets_alone():
    scheme = RoPE2D(grid=(4, 6), prefix=1)
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))

    def score(first, second):
        places = [jnp.array([[1 + row * 6 + column]]) for row, column in (first, second)]
        turned = scheme.rotate(query, key, *places)
        return float(jnp.sum(turned[0] * turned[1]))

    for offset in ((0, 0), (1, 2), (2, -1)):
        pairs = [((0, 3), (0, 3)), ((1, 2), (1, 2))]
        scores = [score(a, (b[0] + offset[0], b[1] + offset[1])) for a, b in pairs]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4)


def test_another_grid_has_the_same_corners():
    small, large = RoPE2D(grid=(2, 2)), RoPE2D(grid=(2, 2)).for_grid((6, 4), 3)
    assert large == RoPE2D(grid=(6, 4), prefix=3)
    assert large.max_length == 27
    assert small.max_length == 5
