"""The decoder's choices: each does what its name says, and those that only affect speed no more."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import gradients_of, random_parameters, template_of, tiny, tokens

from jaxformer.functional.position import RoPE, T5Bias
from jaxformer.nn import Parallel

close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
KEY = jax.random.key(3)
ALL_RANDOM = {"dropout": 0.2, "attention_dropout": 0.2}


@jax.jit(static_argnums=0)
def hidden_of(config, parameters, inputs, **options):
    return template_of(config).module(parameters).hidden(inputs, **options)


def assert_same(config, other, **options):
    """Equal logits and equal gradients for the same parameters."""
    parameters, inputs = random_parameters(config), tokens(2, 7)
    gradients, logits = gradients_of(config, parameters, inputs, **options)
    other_gradients, other_logits = gradients_of(other, parameters, inputs, **options)
    close(other_logits, logits)
    largest = max(jnp.abs(g).max() for g in gradients.values())
    chex.assert_trees_all_close(other_gradients, gradients, rtol=2e-5, atol=1e-6 * largest)


PARALLEL = tiny(
    num_layers=4,
    windows=(None, 3),
    position=T5Bias(num_buckets=8, max_distance=12, bidirectional=False),
    residual=Parallel(shared_norm=False),
    **ALL_RANDOM,
)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("scan", [False, True])
def test_scan_and_remat_change_nothing(scan, remat):
    if (scan, remat) != (False, "none"):
        assert_same(PARALLEL, replace(PARALLEL, scan_layers=scan, remat=remat), key=KEY)


@pytest.mark.parametrize("position", [RoPE(), T5Bias(8, 12, bidirectional=False)])
def test_blockwise_attention_changes_nothing(position):
    config = tiny(position=position, attention_softcap=2.0, windows=(4,), **ALL_RANDOM)
    assert_same(config, replace(config, attention="blockwise", scan_layers=True), key=KEY)
