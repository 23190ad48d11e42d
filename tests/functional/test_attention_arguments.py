"""Arguments of attention that do not fit are refused."""

import jax.numpy as jnp
import pytest
from attention_cases import BATCH, arrays

from jaxformer.functional import ALiBi, DenseMask, KeyPadding, attention


@pytest.mark.parametrize(
    "change",
    [
        {"mask": KeyPadding(jnp.ones((BATCH, 10), bool))},
        {"mask": KeyPadding(jnp.ones((3, 9), bool))},
        {"mask": DenseMask(jnp.ones((1, 9, 5), bool))},
        {"bias": jnp.zeros((1, 1, 5, 1))},
        {"bias": jnp.zeros((1, 3, 5, 9))},
        {"bias": ALiBi().bias(jnp.zeros((1, 5), int), jnp.zeros((1, 8), int), num_heads=2)},
        {"key": jnp.zeros((BATCH, 8, 2, 4))},
        {"query": jnp.zeros((BATCH, 5, 3, 4))},
        {"query": jnp.zeros((BATCH, 5, 2, 6))},
        {"query": jnp.zeros((1, 5, 2, 4))},
        {"value": jnp.zeros((BATCH, 9, 2, 0))},
    ],
)
def test_shapes_that_do_not_fit_are_an_error(change):
    names = ("query", "key", "value")
    right = dict(zip(names, map(jnp.asarray, arrays(5, 9)[:3]), strict=True))
    with pytest.raises(AssertionError):
        attention(**(right | change))


def test_an_unknown_implementation_is_an_error():
    with pytest.raises(ValueError, match=r"implementation = 'flash': must be .auto., "):
        attention(*map(jnp.asarray, arrays(5, 5)[:3]), implementation="flash")
