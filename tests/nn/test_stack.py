"""The Stack: scanned, unrolled or a loop over blocks apart, it is the same."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxprs import equations

from jaxformer.functional import causal, dropout
from jaxformer.nn import Context, Linear, Stack
from jaxformer.nn.layers import normal

KEY, DROPOUT_KEY = jax.random.key(0), jax.random.key(1)
T, L, D = 7, 4, 20


class Toy(nnx.Module):
    """A block that compiles quickly: blocks of another `shift` do something else."""

    def __init__(self, key, shift, rate=0.0):
        self.linear = Linear(key, {"embed": D}, {"mlp": D}, normal(0.3), bias=True)
        self.shift, self.rate = shift, rate

    def __call__(self, x, context, key):
        shifted = jnp.roll(x, self.shift, axis=1) + context.positions[..., None] / T
        return x + dropout(jnp.tanh(self.linear(shifted)), self.rate, key)


# Groups of one kind of block, of two and of four.
SHIFTS = {"one kind": (1,), "alternating": (2, 0), "all differ": (1, 3, 0, 2)}
each_group = pytest.mark.parametrize("shifts", SHIFTS.values(), ids=SHIFTS.keys())


@lru_cache
def toys(shifts, num_layers=L, rate=0.0):
    group = tuple(partial(Toy, shift=shift, rate=rate) for shift in shifts)
    return jax.jit(lambda: Stack(KEY, num_layers, group))()


def problem():
    x = jax.random.normal(jax.random.key(2), (2, T, D))
    return x, Context(jnp.arange(T)[None], causal())


def value_and_gradients(run, stack):
    """The output, and the gradients of a random function of it by parameters and input."""
    x, context = problem()
    weights = jax.random.normal(jax.random.key(3), x.shape)

    def total(stack, x):
        y = run(stack, x, context)
        return jnp.sum(weights * y), y

    (_, y), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(stack, x)
    return [y, *jax.tree.leaves(gradients)]


def one_by_one(stack, x, context):
    """Each block taken out of the stack and called by itself: layer i is block i mod group."""
    for i in range(L):
        turn, place = divmod(i, len(stack.group))
        block = jax.tree.map(lambda leaf, turn=turn: leaf[turn], stack.group[place])
        x = block(x, context, None)
    return x


def assert_same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        scale = np.abs(b).max()
        assert scale > 0
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale)


WAYS = [
    {"scan": False, "remat": "none"},
    {"scan": True, "remat": "none"},
    {"scan": True, "remat": "dots"},
    {"scan": False, "remat": "full"},
]


@each_group
def test_every_way_to_run_is_that_of_blocks_one_by_one(shifts):
    expected = value_and_gradients(one_by_one, toys(shifts))
    for way in WAYS if len(shifts) == 2 else WAYS[:2]:
        run = partial(Stack.__call__, key=None, **way)
        assert_same(value_and_gradients(run, toys(shifts)), expected)


@pytest.mark.more
def test_every_way_to_run_drops_the_same_places():
    stack = toys((2, 0), rate=0.4)
    first, *others = (
        value_and_gradients(partial(Stack.__call__, key=DROPOUT_KEY, **way), stack) for way in WAYS
    )
    for other in others:
        assert_same(other, first)


@pytest.mark.more
@each_group
@pytest.mark.parametrize("scan", [False, True])
def test_every_layer_drops_other_places(shifts, scan):
    stack = jax.tree.map(jnp.zeros_like, toys(shifts, rate=0.5))
    for block in stack.group:
        block.linear.bias[...] = jnp.full_like(block.linear.bias[...], jnp.inf)  # tanh is 1
    context = Context(jnp.arange(100)[None], causal())
    y = np.asarray(stack(jnp.zeros((4, 100, D)), context, DROPOUT_KEY, scan=scan))
    # Each layer adds 0 or 2, evenly and independently: a binomial distribution over the depth.
    counts = np.bincount((y / 2).astype(int).ravel(), minlength=L + 1) / y.size
    expected = np.array([1, 4, 6, 4, 1]) / 16
    np.testing.assert_allclose(counts, expected, atol=5 / 2 / np.sqrt(y.size))


@pytest.mark.more
@each_group
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_scanned_program_does_not_grow_with_depth(shifts, remat):
    def size(num_layers, scan):
        run = partial(Stack.__call__, key=None, scan=scan, remat=remat)
        jaxpr = jax.make_jaxpr(run)(toys(shifts, num_layers), *problem()).jaxpr
        return len(list(equations(jaxpr)))

    assert size(8, True) == size(12, True)
    assert size(12, False) > 2 * size(4, False)


@each_group
def test_no_two_layers_start_alike(shifts):
    kernels = [np.asarray(block.linear.kernel[...]) for block in toys(shifts).group]
    layers = np.concatenate([kernel.reshape(-1, D * D) for kernel in kernels])
    assert layers.shape[0] == L
    correlation = np.corrcoef(layers) - np.eye(L)
    assert np.abs(correlation).max() < 5 / D
