"""Experts: the grouped product, routing and its losses, against loops over experts in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional import (
    ClampedSwiGLU,
    SigmoidTopK,
    SoftmaxTopK,
    TopKSoftmax,
    activation,
    balance_loss,
    expert_feed_forward,
    expert_load,
    grouped_linear,
    router_z_loss,
    within_capacity,
)
from jaxformer.functional.linear import Adapted
from jaxformer.plan.collectives import collectives
from jaxformer.plan.hlo import Module

KINDS = ("blocks", "ragged")
# An expert without tokens, all tokens of one expert, rows of no group, a group of many blocks.
SIZES = [(3, 0, 5, 1), (0, 0, 9, 0), (2, 1, 0, 3), (0, 0, 0, 0), (70, 130, 1, 199)]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def product_of_loop(x, kernels, sizes):
    y, start = np.zeros((len(x), kernels.shape[2])), 0
    for kernel, size in zip(np.asarray(kernels, np.float64), sizes, strict=True):
        y[start : start + size] = np.asarray(x[start : start + size], np.float64) @ kernel
        start += size
    return y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_each_row_is_multiplied_with_the_kernel_of_its_group(kind, sizes):
    rows = max(9, sum(sizes))
    x, kernels, cotangent = normal(0, rows, 5), normal(1, 4, 5, 7), normal(2, rows, 7)
    sizes = np.array(sizes)

    @jax.jit
    def pulled(x, kernels, sizes, cotangent):
        own = lambda *arrays: grouped_linear(*arrays, sizes, implementation=kind)  # noqa: E731
        y, pull = jax.vjp(own, x, kernels)
        return y, pull(cotangent)

    y, (dx, dkernels) = pulled(x, kernels, sizes, cotangent)
    np.testing.assert_allclose(y, product_of_loop(x, kernels, sizes), atol=2e-5)
    transposed = kernels.swapaxes(1, 2)
    np.testing.assert_allclose(dx, product_of_loop(cotangent, transposed, sizes), atol=2e-5)
    owner = np.repeat(np.arange(4), sizes)
    for expert in range(4):
        own = np.flatnonzero(owner == expert)
        expected = x[own].astype(np.float64).T @ cotangent[own]
        np.testing.assert_allclose(dkernels[expert], expected, atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES[:3])
@pytest.mark.quick("sizes0-*")
def test_low_rank_factors_of_each_group_change_its_kernel(kind, sizes):
    x, base, sizes = normal(0, 9, 5), normal(1, 4, 5, 7), np.array(sizes)
    a, b, cotangent = normal(2, 4, 5, 2), normal(3, 4, 2, 7), normal(4, 9, 7)

    def adapted(x, a, b):
        return grouped_linear(x, Adapted(base, a, b, None, 1.5), sizes, implementation=kind)

    def merged(x, a, b):
        return grouped_linear(x, base + 1.5 * jnp.matmul(a, b), sizes, implementation=kind)

    (y, pull), (expected, expected_pull) = (jax.vjp(f, x, a, b) for f in (adapted, merged))
    np.testing.assert_allclose(y, expected, atol=2e-5)
    for got, wanted in zip(pull(cotangent), expected_pull(cotangent), strict=True):
        np.testing.assert_allclose(got, wanted, atol=5e-5)


def test_dropout_before_the_factors_of_groups_is_refused():
    kernels = Adapted(normal(0, 2, 5, 7), normal(1, 2, 5, 3), normal(2, 2, 3, 7), None, 1.0, 0.5)
    with pytest.raises(ArgumentError, match="dropout"):
        grouped_linear(normal(3, 4, 5), kernels, np.array([1, 3]))


def test_products_in_bfloat16_accumulate_in_float32():
    x, kernels, sizes = normal(0, 300, 256), normal(1, 2, 256, 8), np.array([120, 180])
    low = jnp.asarray(x, jnp.bfloat16)
    y = grouped_linear(low, kernels, sizes)
    rounded = np.asarray(jnp.asarray(kernels, jnp.bfloat16), np.float64)
    assert y.dtype == jnp.bfloat16
    exact = product_of_loop(np.asarray(low, np.float64), rounded, sizes)
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-5)


def layer(seed=0, gate=True, bias=True, experts=5, width=6, hidden=9):
    names = ["up", "down"] + ["gate"] * gate
    shapes = dict.fromkeys(names, (experts, width, hidden)) | {"down": (experts, hidden, width)}
    arrays = {name: 0.5 * normal(seed + i, *shapes[name]) for i, name in enumerate(shapes)}
    if bias:
        arrays |= {f"{name}_bias": normal(seed + 9, experts, shapes[name][2]) for name in shapes}
    return arrays


@jax.numpy_rank_promotion("allow")
def layer_of_loop(x, experts, weights, arrays, real, act):
    """Every expert computes every token, with the weight 0 if it is not one of the token's."""
    num = arrays["up"].shape[0]
    total = jnp.zeros_like(x)
    for expert in range(num):
        own = {name: array[expert] for name, array in arrays.items()}
        up = x @ own["up"] + own.get("up_bias", 0)
        if "gate" in own:
            gate = x @ own["gate"] + own.get("gate_bias", 0)
            hidden = act(gate, up) if isinstance(act, ClampedSwiGLU) else act(gate) * up
        else:
            hidden = act(up)
        y = hidden @ own["down"] + own.get("down_bias", 0)
        share = jnp.sum(jnp.where(experts == expert, weights, 0), axis=-1) * real
        total += share[..., None] * y
    return total


LAYERS = [
    {"gate": True, "bias": False, "act": activation("silu")},
    {"gate": True, "bias": True, "act": ClampedSwiGLU(limit=1.0)},
    {"gate": False, "bias": True, "act": jnp.tanh},
]


def routed(shape=(2, 7), experts=5, count=2):
    logits = normal(20, *shape, experts)
    return logits, *SoftmaxTopK()(jnp.asarray(logits), count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.quick("case0-*", "case2-*")
def test_tokens_go_through_the_feed_forward_layers_of_their_experts(kind, case):
    arrays = layer(gate=case["gate"], bias=case["bias"])
    x, (_, weights, experts) = normal(30, 2, 7, 6), routed()
    real = np.ones((2, 7), bool)
    real[0, 4:] = False

    def ours(x, weights, arrays):
        return expert_feed_forward(
            x, experts, weights, **arrays, activation=case["act"], real=real, implementation=kind
        )

    def loop(x, weights, arrays):
        return layer_of_loop(x, experts, weights, arrays, real, case["act"])

    y, pull = jax.vjp(ours, x, weights, arrays)
    expected, pull_loop = jax.vjp(loop, x, weights, arrays)
    np.testing.assert_allclose(y, expected, atol=2e-5)
    assert not np.asarray(y)[~real].any()
    for got, wanted in zip(jax.tree.leaves(pull(y)), jax.tree.leaves(pull_loop(y)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_one_expert_may_have_all_tokens_and_padding_is_never_computed():
    arrays, x = layer(bias=False), normal(30, 1, 300, 6)
    experts, weights = np.full((1, 300, 1), 3), np.ones((1, 300, 1), np.float32)
    act = activation("silu")
    real = np.arange(300)[None] % 3 > 0
    x[~real] = np.nan
    y = expert_feed_forward(x, experts, weights, **arrays, activation=act, real=real)
    alone = layer_of_loop(x[real], experts[real], weights[real], arrays, real[real], act)
    np.testing.assert_allclose(np.asarray(y)[real], alone, atol=2e-5)
    assert not np.asarray(y)[~real].any()


def on_mesh(sizes, axes, experts):
    """The gradients on one device and on a mesh, and the compiled text of the latter."""
    mesh = jax.make_mesh(sizes, axes, axis_types=(AxisType.Explicit,) * 3)
    num = 8 if experts else 5
    arrays, x = layer(bias=True, experts=num, width=8, hidden=12), normal(30, 8, 7, 8)
    logits = normal(20, 8, 7, num)
    rows = P(tuple(axis for axis in axes if axis != "tensor"))
    cuts = {
        **dict.fromkeys(("up", "gate"), P(experts, "fsdp", "tensor")),
        **dict.fromkeys(("up_bias", "gate_bias"), P(experts, "tensor")),
        "down": P(experts, "tensor", "fsdp"),
        "down_bias": P(experts, "fsdp"),
    }
    real = np.arange(7)[None] < np.arange(8)[:, None]

    def loss(x, logits, arrays):
        weights, chosen = SoftmaxTopK()(logits, 2)
        act = activation("silu")
        y = expert_feed_forward(x, chosen, weights, **arrays, activation=act, real=real)
        return jnp.sum(y * jnp.sin(x)), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, logits, arrays)
    with jax.set_mesh(mesh):
        placed = (
            jax.device_put(x, rows),
            jax.device_put(logits, rows),
            {name: jax.device_put(array, cuts[name]) for name, array in arrays.items()},
        )
        step = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True)).lower(*placed).compile()
        (_, y_cut), gradients_cut = step(*placed)
    cut, whole = (jax.tree.leaves(each) for each in ((y_cut, gradients_cut), (y, gradients)))
    for got, wanted in zip(cut, whole, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6 * np.abs(wanted).max())
    return collectives(Module(step.as_text()), dict(zip(axes, sizes, strict=True)))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 4, 1), (4, 1, 2)])
@pytest.mark.quick("sizes1")
def test_on_a_mesh_each_device_computes_its_rows(sizes):
    on_mesh(sizes, ("data", "fsdp", "tensor"), None)


more = pytest.mark.more
SHARED = [
    (2, 2, 2),
    *(pytest.param(each, marks=more) for each in ((1, 1, 8), (1, 2, 4), (4, 1, 2))),
]


@pytest.mark.usefixtures("compiled_here")
@pytest.mark.parametrize("sizes", SHARED)
def test_devices_that_share_experts_exchange_tokens_and_keep_their_kernels(sizes):
    found = [
        c for c in on_mesh(sizes, ("fsdp", "tensor", "expert"), "expert") if "expert" in c.axes
    ]
    tokens = 8 // sizes[0] * 7
    # Rows and the gradients of results; experts, weights, what is real. Results and the gradients
    # of rows; those of weights.
    gathered, scattered = tokens * (2 * 8 * 4 + 2 * 8 + 1), tokens * (2 * 8 * 4 + 8)
    assert [each[:3] for each in found if each.kind != "all-reduce"] == [
        ("all-gather", ("expert",), gathered),
        ("reduce-scatter", ("expert",), scattered),
    ]
    assert all(each.bytes == 4 for each in found if each.kind == "all-reduce")  # the loss


# Capacity ---------------------------------------------------------------------------------------


def kept_of_loop(experts, num, capacity, real):
    kept = np.zeros(experts.shape, bool)
    for row, (tokens, valid) in enumerate(zip(experts, real, strict=True)):
        places = dict.fromkeys(range(num), np.ceil(capacity * experts.shape[2] * valid.sum() / num))
        for token in np.flatnonzero(valid):
            for choice, expert in enumerate(tokens[token]):
                kept[row, token, choice] = places[expert] > 0
                places[expert] -= 1
    return kept


@pytest.mark.parametrize("capacity", [0.4, 1.0, 1.25, 9.0])
def test_experts_take_the_first_tokens_of_a_row_up_to_their_capacity(capacity):
    x, arrays, (_, weights, experts) = normal(30, 3, 17, 6), layer(), routed((3, 17))
    real = np.random.default_rng(3).random((3, 17)) < 0.7
    expected = kept_of_loop(np.asarray(experts), 5, capacity, real)
    kept = within_capacity(experts, 5, capacity, real)
    np.testing.assert_array_equal(kept, expected)
    assert (expected.sum() < 2 * real.sum()) == (capacity < 2)
    act = activation("silu")
    y = expert_feed_forward(x, experts, weights, **arrays, activation=act, real=kept)
    loop = layer_of_loop(x, experts, jnp.where(expected, weights, 0), arrays, real, act)
    np.testing.assert_allclose(y, loop, atol=2e-5)


def test_the_capacity_of_a_row_does_not_depend_on_padding_or_later_tokens():
    _, _, experts = routed((3, 17))
    whole = within_capacity(experts, 5, 0.8)
    padded = jnp.pad(experts, ((0, 0), (4, 0), (0, 0)))
    real = np.broadcast_to(np.arange(21) >= 4, (3, 21))
    found = within_capacity(padded, 5, 0.8, real)
    assert not np.asarray(found)[:, :4].any()
    np.testing.assert_array_equal(found[:, 4:], whole)
    other = experts.at[:, 9:].set((experts[:, 9:] + 1) % 5)
    np.testing.assert_array_equal(within_capacity(other, 5, 0.8)[:, :9], whole[:, :9])


# Routers ----------------------------------------------------------------------------------------


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("renormalize", [True, False])
def test_softmax_then_top_k(renormalize):
    logits = normal(0, 3, 4, 7)
    weights, experts = SoftmaxTopK(renormalize=renormalize)(jnp.asarray(logits), 3)
    p = softmax(logits.astype(np.float64))
    order = np.argsort(-p, axis=-1)[..., :3]
    expected = np.take_along_axis(p, order, -1)
    expected = expected / expected.sum(-1, keepdims=True) if renormalize else expected
    np.testing.assert_array_equal(experts, order)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_softmax_within_the_groups_with_the_highest_probabilities():
    logits = normal(0, 50, 12)
    router = SoftmaxTopK(groups=4, kept_groups=2, renormalize=False, scale=2.5)
    weights, experts = router(jnp.asarray(logits), 3)
    for p, chosen, weight in zip(softmax(logits.astype(np.float64)), experts, weights, strict=True):
        best = np.argsort(-p.reshape(4, 3).max(-1))[:2]
        allowed = [3 * group + i for group in best for i in range(3)]
        expected = sorted(allowed, key=lambda e: -p[e])[:3]
        assert list(chosen) == expected
        np.testing.assert_allclose(weight, 2.5 * p[expected], rtol=1e-5)


def test_top_k_then_softmax_is_softmax_then_top_k_renormalized():
    logits = jnp.asarray(normal(0, 3, 4, 7))
    one, other = TopKSoftmax()(logits, 3), SoftmaxTopK()(logits, 3)
    np.testing.assert_array_equal(one.experts, other.experts)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-5)


def test_sigmoids_choose_with_their_bias_within_the_best_groups():
    logits, bias = normal(0, 50, 12), 0.3 * normal(1, 12)
    router = SigmoidTopK(groups=4, kept_groups=2, scale=2.5)
    weights, experts = router(jnp.asarray(logits), 3, correction=jnp.asarray(bias))
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for token, (z, chosen, weight) in enumerate(zip(scores + bias, experts, weights, strict=True)):
        groups = z.reshape(4, 3)
        best = np.argsort(-np.sort(groups, -1)[:, -2:].sum(-1))[:2]
        allowed = [3 * group + i for group in best for i in range(3)]
        expected = sorted(allowed, key=lambda e: -z[e])[:3]
        assert list(chosen) == expected
        own = scores[token, expected]
        np.testing.assert_allclose(weight, 2.5 * own / own.sum(), rtol=1e-5)
    gradient = jax.grad(
        lambda b: jnp.sum(router(jnp.asarray(logits), 3, correction=b).weights ** 2)
    )(jnp.asarray(bias))
    assert not np.asarray(gradient).any()


def test_a_router_that_cannot_choose_so_many_experts_is_refused():
    with pytest.raises(ArgumentError, match="from 1 to the 4 experts"):
        SoftmaxTopK()(jnp.zeros((2, 4)), 5)
    with pytest.raises(ConfigError, match=r"router\.groups"):
        SigmoidTopK(groups=3, kept_groups=1).check(8, 2)
    with pytest.raises(ConfigError, match=r"router\.kept_groups"):
        SigmoidTopK(groups=4, kept_groups=1).check(8, 3)
    with pytest.raises(ConfigError, match=r"router\.kept_groups"):
        SigmoidTopK(groups=2, kept_groups=3)


# Losses -----------------------------------------------------------------------------------------


def test_the_balance_loss_is_that_of_the_equation_without_padding():
    logits, _, experts = routed(shape=(3, 11))
    real = np.random.default_rng(3).random((3, 11)) < 0.7
    p = softmax(logits.astype(np.float64))[real]
    chosen = np.asarray(experts)[real]
    f = np.array([(chosen == e).sum() for e in range(5)]) / real.sum()
    expected = 5 * (f * p.mean(0)).sum()
    load = expert_load(jax.nn.softmax(logits), experts, real)
    np.testing.assert_allclose(balance_loss(load), expected, rtol=1e-5)
    np.testing.assert_array_equal(load.routed, (f * real.sum()).round())
    uniform = expert_load(jnp.full((1, 5, 5), 0.2), jnp.arange(5)[None, :, None])
    np.testing.assert_allclose(balance_loss(uniform), 1.0, rtol=1e-6)
    nothing = expert_load(jax.nn.softmax(logits), experts, np.zeros_like(real))
    assert balance_loss(nothing) == 0


def test_the_z_loss_is_the_mean_square_of_the_log_partition():
    logits, real = normal(0, 3, 4, 7), np.random.default_rng(3).random((3, 4)) < 0.7
    squares = np.log(np.exp(logits.astype(np.float64)).sum(-1)) ** 2
    np.testing.assert_allclose(router_z_loss(logits), squares.mean(), rtol=1e-5)
    np.testing.assert_allclose(router_z_loss(logits, real), squares[real].mean(), rtol=1e-5)


@pytest.mark.torch
def test_both_conventions_of_the_balance_loss_are_those_of_transformers():
    """Transformers takes the softmax of what it is given, which was a softmax in some releases."""
    import torch
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layers = [normal(seed, 3, 11, 5) for seed in range(4)]
    real = np.random.default_rng(3).random((3, 11)) < 0.7
    for twice in (False, True):
        given = [jax.nn.softmax(z, axis=-1) if twice else z for z in layers]
        theirs = load_balancing_loss_func(
            tuple(torch.tensor(np.asarray(z).reshape(-1, 5)) for z in given),
            5, 2, torch.tensor(real.astype(np.int64)),
        )  # fmt: skip
        loads = []
        for z, own in zip(layers, given, strict=True):
            experts = SoftmaxTopK()(jnp.asarray(z), 2).experts
            loads.append(expert_load(jax.nn.softmax(own, axis=-1), experts, real))
        total = jax.tree.map(lambda *parts: sum(parts), *loads)
        np.testing.assert_allclose(balance_loss(total), theirs.numpy(), rtol=1e-5)
