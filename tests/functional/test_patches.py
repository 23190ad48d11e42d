"""Cutting images into patches, their positions, and those of other grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import (
    Learned2D,
    RoPE2D,
    patch_angles,
    patches,
    positions_on_grids,
    resize_offsets,
    resize_positions,
)

sizes = st.integers(1, 4)


def table_of(rows, width=5):
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def interpolated(table, grid, size, **options):
    """What torch makes of a table `[R C, D]` of a grid for another one."""
    import torch

    image = torch.tensor(table).reshape(1, *grid, -1).permute(0, 3, 1, 2)
    found = torch.nn.functional.interpolate(image, size=size, **options)
    return found.permute(0, 2, 3, 1).flatten(0, 2).numpy()


@given(batch=sizes, rows=sizes, columns=sizes, height=sizes, width=sizes, channels=sizes)
def test_patches_are_windows_of_the_image_row_by_row(batch, rows, columns, height, width, channels):
    shape = (batch, rows * height, columns * width, channels)
    images = np.arange(np.prod(shape)).reshape(shape)
    cut = np.asarray(patches(jnp.asarray(images), (height, width)))
    assert cut.shape == (batch, rows * columns, height, width, channels)
    for number, patch in enumerate(cut.swapaxes(0, 1)):
        i, j = height * (number // columns), width * (number % columns)
        np.testing.assert_array_equal(patch, images[:, i : i + height, j : j + width])


def test_positions_for_the_same_grid_stay_as_they_are():
    table = jnp.asarray(table_of(7))
    np.testing.assert_allclose(resize_positions(table, (2, 3), (2, 3), prefix=1), table, rtol=1e-6)


def test_the_rows_of_no_patch_stay_as_they_are():
    table = jnp.asarray(table_of(8))
    resized = resize_positions(table, (2, 3), (4, 5), prefix=2)
    assert resized.shape == (22, 5)
    np.testing.assert_array_equal(resized[:2], table[:2])


@pytest.mark.parametrize("new_grid", [(4, 5), (1, 1), (7, 2)])
def test_equal_positions_stay_equal(new_grid):
    table = jnp.broadcast_to(jnp.arange(5.0), (6, 5))
    resized = resize_positions(table, (2, 3), new_grid, prefix=0)
    np.testing.assert_allclose(resized, np.broadcast_to(np.arange(5.0), resized.shape), rtol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("new_grid", [(4, 6), (5, 7), (9, 3), (2, 2)])
def test_as_torch_interpolates(new_grid):
    """Without align_corners and antialiasing: what transformers does to ViT's positions."""
    table = table_of(1 + 4 * 6)
    expected = interpolated(table[1:], (4, 6), new_grid, mode="bicubic", align_corners=False)
    resized = resize_positions(jnp.asarray(table), (4, 6), new_grid, prefix=1)
    np.testing.assert_allclose(resized[1:], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
@pytest.mark.parametrize("new_grid", [(2, 3), (3, 3), (4, 1), (1, 7)])
def test_offsets_as_torch_interpolates(new_grid):
    """What transformers does to BEiT's biases; the last rows belong to no offset."""
    table = table_of(3 * 5 + 3, width=4)
    size = [2 * n - 1 for n in new_grid]
    expected = interpolated(table[:-3], (3, 5), size, mode="bilinear")
    resized = resize_offsets(jnp.asarray(table), (2, 3), new_grid)
    np.testing.assert_array_equal(resized[-3:], table[-3:])
    np.testing.assert_allclose(resized[:-3], expected, rtol=2e-5, atol=2e-5)


GRIDS = [(4, 6), (1, 1), (2, 12), (7, 3), (5, 6), (13, 1)]


@pytest.mark.torch
def test_each_image_has_the_positions_that_torch_interpolates():
    """With antialiasing, as SigLIP 2 does; padding has the position of the first patch."""
    table = table_of(4 * 6)
    found = positions_on_grids(jnp.asarray(table), (4, 6), jnp.array(GRIDS), length=31)
    for size, own in zip(GRIDS, np.asarray(found), strict=True):
        count = size[0] * size[1]
        wanted = interpolated(table, (4, 6), size, mode="bilinear", antialias=True)
        np.testing.assert_allclose(own[:count], wanted, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(own[count:], np.repeat(own[:1], 31 - count, axis=0))


def test_an_image_on_the_table_s_own_grid_has_its_rows():
    table = jnp.asarray(table_of(24))
    found = positions_on_grids(table, (4, 6), jnp.array([[4, 6]]), length=24)
    np.testing.assert_allclose(found[0], table, rtol=1e-6)
    x, scheme = jnp.ones((1, 24, 5)), Learned2D(grid=(4, 6))
    own, fixed = scheme.embed_grids(x, jnp.array([[4, 6]]), table), jnp.arange(24)[None]
    np.testing.assert_allclose(own, scheme.embed(x, fixed, table), rtol=1e-6)


@pytest.mark.more
def test_a_table_is_resized_once_as_for_each_image():
    table = jnp.asarray(table_of(24))
    scheme = Learned2D(grid=(4, 6))
    once = scheme.for_grid((3, 7), 0).resized(table, (4, 6), (3, 7), 0)
    each = scheme.embed_grids(jnp.zeros((1, 25, 5)), jnp.array([[3, 7]]), table)
    np.testing.assert_array_equal(once, each[0, :21])


# Rotary positions ---------------------------------------------------------------------------------


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
