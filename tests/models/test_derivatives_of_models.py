"""Forward mode and second derivatives of one model of each family, beside JAX's own rules."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    batch_for,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_vision,
)

from jaxformer.functional.losses import cross_entropy as losses
from jaxformer.models.heads.base import LossOptions
from jaxformer.nn import layers

pytestmark = pytest.mark.more

# The package exports the function under the module's name.
products = importlib.import_module("jaxformer.functional.linear")

FAMILIES = {"decoder": tiny, "encoder": tiny_encoder, "vision": tiny_vision}
FAMILIES["encoder-decoder"] = partial(tiny_encoder_decoder, num_decoder_layers=2)


def derivatives(config, parameters, batch, along):
    """The slope of the loss along a direction, and three ways to its Hessian times that."""

    def loss(parameters):
        module = structure_of(config).module(parameters)
        sums = module.loss(batch, LossOptions(chunk_size=3))[1].values()
        return sum(head.loss / head.weight for head in sums)

    gradient = jax.grad(loss)

    def slope(parameters):
        return jax.jvp(loss, (parameters,), (along,))[1]

    def product(parameters):
        pairs = jax.tree.map(jnp.vdot, gradient(parameters), along)
        return sum(jax.tree.leaves(pairs))

    return {
        "jvp": slope(parameters),
        "linearize": jax.linearize(loss, parameters)[1](along),
        "forward over reverse": jax.jvp(gradient, (parameters,), (along,))[1],
        "reverse over reverse": jax.grad(product)(parameters),
        "reverse over forward": jax.grad(slope)(parameters),
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_models_have_every_derivative(family, monkeypatch):
    config = FAMILIES[family](attention="blockwise", scan_layers=True)
    parameters = random_parameters(config, scale=0.2)
    batch = batch_for(config, rows=3, length=7)
    along = random_parameters(config, seed=1, scale=0.2)
    actual = jax.jit(partial(derivatives, config))(parameters, batch, along)

    # The same model of functions that JAX differentiates by itself.
    monkeypatch.setattr(products, "_contract", products._contract_value)
    monkeypatch.setattr(losses, "_chunked", losses._chunked_products)
    monkeypatch.setattr(layers, "_transpose", jnp.transpose)
    plain = FAMILIES[family](attention="reference", scan_layers=True)
    expected = jax.jit(partial(derivatives, plain))(parameters, batch, along)

    for kind in expected:
        for a, b in zip(*map(jax.tree.leaves, (actual[kind], expected[kind])), strict=True):
            scale = max(1.0, float(jnp.max(jnp.abs(b))))
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * scale, err_msg=kind)
