from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxformer.functional import LayerNorm, RMSNorm, layer_norm, rms_norm


def normal(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


@partial(jax.jit, static_argnums=0)
def value_and_gradients(function, cotangent, *args):
    y, pullback = jax.vjp(function, *args)
    return y, pullback(cotangent)


TORCH = {
    "layer_norm": partial(layer_norm, eps=1e-3),
    "rms_norm": partial(rms_norm, eps=1e-3, unit_offset=False),
}


@pytest.mark.torch
@pytest.mark.parametrize(("batch", "dim"), [((), 17), ((3,), 2), ((2, 1, 5), 8)])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("layer_norm", given) for given in product([True, False], repeat=2)),
        *(("rms_norm", (given,)) for given in (True, False)),
    ],
)
def test_values_and_gradients_are_those_of_torch(batch, dim, name, given):
    """Where scale and bias are given or not."""
    import torch

    with jax.enable_x64(True):
        x, cotangent = (normal(i, *batch, dim, dtype=jnp.float64) for i in (0, 1))
        weights = [
            normal(2 + i, dim, dtype=jnp.float64) if is_given else None
            for i, is_given in enumerate(given)
        ]
        ours = jax.tree.leaves(value_and_gradients(TORCH[name], cotangent, x, *weights))
    tensors = [
        None if a is None else torch.tensor(np.asarray(a), requires_grad=True)
        for a in (x, *weights)
    ]
    reference = getattr(torch.nn.functional, name)(tensors[0], (dim,), *tensors[1:], eps=1e-3)
    reference.backward(torch.tensor(np.asarray(cotangent)))
    theirs = [reference.detach(), *(t.grad for t in tensors if t is not None)]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm(), RMSNorm(unit_offset=True)])
def test_bfloat16_is_the_float32_result_rounded_once_and_all_that_is_stored(norm):
    x = normal(0, 5, 33, dtype=jnp.bfloat16)
    weights = [normal(i, 33) for i in range(len(norm.parameters(33)))]
    y, pullback = jax.vjp(norm, x, *weights)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, norm(x.astype(jnp.float32), *weights).astype(jnp.bfloat16))
    stored = [a for a in jax.tree.leaves(pullback) if a.shape == x.shape]
    assert {a.dtype for a in stored} <= {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("norm", [LayerNorm(), LayerNorm(bias=False), RMSNorm(unit_offset=True)])
def test_initial_parameters_leave_the_normalised_input_alone(norm):
    x = normal(0, 4, 64)
    declared = norm.parameters(64)
    y = norm(x, *(jnp.full(shape, value) for shape, _, value in declared.values()))
    np.testing.assert_allclose(jnp.mean(jnp.square(y), axis=-1), 1.0, rtol=1e-3)
    assert all(axes == ("embed",) for _, axes, _ in declared.values())
    assert norm.parameters(8, "head_dim")["scale"][:2] == ((8,), ("head_dim",))
    assert ("bias" in declared) == (norm == LayerNorm())


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()])
def test_sharded_equals_unsharded(norm):
    x = normal(0, 8, 3, 16, dtype=jnp.bfloat16)
    weights = [normal(i, 16) for i in range(len(norm.parameters(16)))]

    def loss(x, *weights):
        return jnp.sum(jnp.square(norm(x, *weights).astype(jnp.float32)))

    gradient = jax.jit(jax.grad(loss, argnums=tuple(range(1 + len(weights)))))
    expected = gradient(x, *weights)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        x = jax.reshard(x, P(("data", "fsdp"), None, None))
        weights = [jax.reshard(w, P("fsdp")) for w in weights]
        actual = gradient(x, *weights)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-5, atol=1e-5
        )
    assert jax.typeof(actual[1]).sharding.spec == P("fsdp")


def test_rms_norm_refuses_a_bias():
    with pytest.raises(ValueError, match="no bias"):
        RMSNorm()(normal(0, 2, 4), normal(1, 4), normal(2, 4))
