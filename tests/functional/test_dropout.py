"""Dropout: what it keeps, and where its random numbers are drawn."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.functional import dropout

X = jnp.ones((16, 6, 32))
KEY = jax.random.key(3)


def test_what_stays_is_scaled_so_that_the_mean_is_kept():
    y = np.asarray(dropout(jnp.ones(200_000), 0.3, KEY))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.7)}
    assert y.mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("cut", "share"),
    [(("data", None, "tensor"), "4,6,16"), (("data",), "4,6,32"), ((), "16,6,32")],
    ids=str,
)
def test_every_device_draws_the_numbers_of_its_own_places(cut, share):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    expected = dropout(X, 0.3, KEY)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, PartitionSpec(*cut)))
        apply = jax.jit(lambda x: dropout(x, 0.3, KEY))
        np.testing.assert_array_equal(apply(x), expected)
        drawn = set(re.findall(r"u32\[(\d+,\d+,\d+)\]", apply.lower(x).compile().as_text()))
    assert drawn == {share}
