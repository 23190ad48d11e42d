import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.functional import activation, feed_forward
from jaxformer.functional.feedforward import ACTIVATIONS


def normal(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def weights(dtype=jnp.float32):
    names = {"up": (6, 10), "down": (10, 6), "gate": (6, 10)}
    biases = {"up_bias": (10,), "gate_bias": (10,), "down_bias": (6,)}
    shapes = names | biases
    return {name: normal(i, *shapes[name], dtype=dtype) for i, name in enumerate(shapes)}


@pytest.mark.torch
@pytest.mark.parametrize("name", list(ACTIVATIONS))
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    # Below about -8, 1 + tanh cancels to the last bits of 1, in both libraries.
    [(np.float64, 1e-9, 1e-14), (np.float32, 1e-6, 1e-6)],
)
def test_activations_equal_those_of_transformers(name, dtype, rtol, atol):
    import torch
    from transformers.activations import ACT2FN

    x = np.linspace(-20, 20, 401, dtype=dtype)
    with jax.enable_x64(dtype == np.float64):
        ours = activation(name)(jnp.asarray(x))
    theirs = ACT2FN[{"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)]
    expected = theirs(torch.tensor(x, dtype=torch.float64))
    np.testing.assert_allclose(ours, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("name", "nearest"), [("gelutanh", "gelu_tanh"), ("Silu", "silu"), ("swish", None)]
)
def test_unknown_activation_names_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match="must be one of relu, gelu") as error:
        activation(name)
    assert nearest is None or f"did you mean {nearest!r}?" in str(error.value)


def test_bfloat16_stores_only_bfloat16_activations():
    x, w = normal(9, 2, 3, 6, dtype=jnp.bfloat16), weights()
    y, pullback = jax.vjp(lambda x: feed_forward(x, **w, activation=activation("silu")), x)
    assert y.dtype == jnp.bfloat16
    activations = [a for a in jax.tree.leaves(pullback) if a.shape == (2, 3, 10)]
    assert {a.dtype for a in activations} == {jnp.dtype(jnp.bfloat16)}
    assert len(activations) <= 3


def test_a_gate_bias_needs_a_gate():
    w = weights()
    del w["gate"]
    with pytest.raises(ValueError, match="no gate"):
        feed_forward(normal(9, 2, 6), **w, activation=activation("relu"))
