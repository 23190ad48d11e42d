import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

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


def transformers_activation(name, x):
    """The activation of transformers, in float64."""
    import torch
    from transformers.activations import ACT2FN

    theirs = {"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)
    return ACT2FN[theirs](torch.tensor(x, dtype=torch.float64)).numpy()


@pytest.mark.torch
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations_equal_those_of_transformers(name):
    x = np.linspace(-20, 20, 401)
    with jax.enable_x64(True):
        ours = activation(name)(jnp.asarray(x))
    # Below about -8, 1 + tanh cancels to the last bits of 1, in both libraries.
    np.testing.assert_allclose(ours, transformers_activation(name, x), rtol=1e-9, atol=1e-14)


@pytest.mark.torch
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activations_keep_float32s_digits(name):
    x = np.linspace(-20, 20, 401, dtype=np.float32)
    ours = activation(name)(jnp.asarray(x))
    np.testing.assert_allclose(ours, transformers_activation(name, x), rtol=1e-6, atol=1e-6)


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


def test_sharded_equals_unsharded():
    x, w = normal(9, 4, 3, 6), weights()

    def loss(x, w):
        return jnp.sum(jnp.square(feed_forward(x, **w, activation=activation("gelu"))))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    expected = gradient(x, w)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (AxisType.Explicit,) * 3)
    specs = {"up": P("fsdp", "tensor"), "down": P("tensor", "fsdp"), "gate": P("fsdp", "tensor")}
    specs |= {"up_bias": P("tensor"), "gate_bias": P("tensor"), "down_bias": P("fsdp")}
    with jax.set_mesh(mesh):
        sharded = {name: jax.reshard(kernel, specs[name]) for name, kernel in w.items()}
        actual = gradient(jax.reshard(x, P(("data", "fsdp"), None, None)), sharded)
    # Devices add in another order, and a bias's gradient is a sum whose terms may cancel.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max()),
        actual,
        expected,
    )
