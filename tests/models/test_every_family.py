"""What holds for all families: how a model is run changes nothing that it computes."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import assert_gradients_close, each_family, size_of_gradient
from tiny_models import batch_for, loss_and_gradients_of, random_parameters, scores_of, structure_of

from jaxformer.distributed.sharding import RULES

KEY = jax.random.key(3)
RANDOM = {"dropout": 0.2, "self_attention.dropout": 0.2}


@each_family
def test_every_dimension_of_every_parameter_has_a_rule(config):
    abstract_model = structure_of(config)
    for name, axes in abstract_model.axes.items():
        assert len(axes) == abstract_model.shapes[name].ndim, name
        assert len(set(axes)) == len(axes), name
        assert set(axes) <= set(RULES), name
        assert ("layers" in axes) == ("stack.group" in name), name


@lru_cache
def loss_and_gradients(config, scale=0.4):
    parameters = random_parameters(config, scale=scale)
    return loss_and_gradients_of(config, parameters, batch_for(config), KEY)


@pytest.mark.slow
@each_family
def test_scan_and_remat_change_nothing(config):
    config = config.with_fields(**RANDOM)
    loss, gradients = loss_and_gradients(config)
    other = config.with_fields(scan_layers=True, remat="full")
    other_loss, other_gradients = loss_and_gradients(other)
    np.testing.assert_allclose(other_loss, loss, rtol=2e-5)
    assert_gradients_close(other_gradients, gradients)


@pytest.mark.more
@each_family
@pytest.mark.quick("shared encoder")
def test_compilation_changes_nothing(config):
    fewest = max(stack.layer_repeats * len(stack.windows) for stack in config.stacks)
    config = config.with_fields(num_layers=fewest)
    parameters, batch = random_parameters(config), batch_for(config, rows=3)
    eager = structure_of(config).module(parameters).scores(batch)
    compiled = scores_of(config, parameters, batch)
    assert eager.keys() == compiled.keys()
    for name, scores in eager.items():
        np.testing.assert_allclose(compiled[name], scores, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.slow
@each_family
def test_bfloat16_is_close_to_float32(config):
    """Parameters and gradients stay float32; the rest of the way is in half the bits."""
    config = config.with_fields(**RANDOM)
    loss, gradients = loss_and_gradients(config, scale=0.15)
    lower = config.with_fields(compute_dtype="bfloat16")
    rounded_loss, rounded = loss_and_gradients(lower, scale=0.15)
    assert 0 < abs(rounded_loss - loss) < 0.02 * loss
    for name, gradient in gradients.items():
        assert rounded[name].dtype == jnp.float32
        error = np.abs(rounded[name] - gradient).max()
        assert error <= 0.1 * size_of_gradient(gradients, name), name
