import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxformer.functional import LossSums, chunked_cross_entropy, cross_entropy

B, T, D, V = 4, 7, 6, 24


def problem(dtype=jnp.float32, length=T):
    """Hidden states, head, bias, targets and weights of which some are 0."""
    keys = jax.random.split(jax.random.key(0), 5)
    hidden = jax.random.normal(keys[0], (B, length, D), dtype)
    head = jax.random.normal(keys[1], (D, V), jnp.promote_types(dtype, jnp.float32))
    bias = jax.random.normal(keys[2], (V,), head.dtype)
    targets = jax.random.randint(keys[3], (B, length), 0, V)
    weights = jnp.maximum(jax.random.uniform(keys[4], (B, length), head.dtype) - 0.3, 0)
    return hidden, head, bias, targets, weights


def dense(hidden, head, bias, targets, weights, softcap=None, **terms):
    logits = jax.lax.dot_general(
        hidden,
        head.astype(hidden.dtype),
        (((2,), (0,)), ((), ())),
        preferred_element_type=head.dtype,
    )
    logits = logits if bias is None else logits + bias[None, None]
    logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    return cross_entropy(logits, targets, weights, **terms)


def chunked(hidden, head, bias, targets, weights, chunk_size=3, **terms):
    return chunked_cross_entropy(
        hidden, head, targets, weights, chunk_size=chunk_size, bias=bias, **terms
    )


def with_gradients(function, *args, targets, weights, argnums=(0, 1), **options):
    """The sums and the gradients of 2 x loss."""

    def loss(*args):
        sums = function(*args, targets, weights, **options)
        return 2 * sums.loss, sums

    gradients, sums = jax.jit(jax.grad(loss, argnums, has_aux=True))(*args)
    return sums, gradients


def assert_close(actual, expected, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), **tolerance
        ),
        actual,
        expected,
    )


VARIANTS = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 1e-2},
    {"label_smoothing": 0.2, "z_loss": 1e-3},
]


@pytest.mark.torch
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
def test_equals_torch_in_float64_with_gradients_and_ignored_targets(label_smoothing):
    import torch

    with jax.enable_x64(True):
        logits = 3 * jax.random.normal(jax.random.key(1), (B, T, V), jnp.float64)
        targets = problem()[3].at[:, -2:].set(-100)
        weights = (targets != -100).astype(jnp.float64)

        def loss(logits):
            sums = cross_entropy(logits, targets, weights, label_smoothing=label_smoothing)
            return sums.loss / sums.weight, sums

        (mean, sums), gradient = jax.value_and_grad(loss, has_aux=True)(logits)
    reference = torch.tensor(np.asarray(logits), requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        reference.flatten(0, 1),
        torch.tensor(np.asarray(targets)).flatten().long(),
        ignore_index=-100,
        label_smoothing=label_smoothing,
    )
    expected.backward()
    np.testing.assert_allclose(mean, expected.item(), rtol=1e-12)
    np.testing.assert_allclose(gradient, reference.grad.numpy(), rtol=1e-9, atol=1e-12)
    kept = np.asarray(targets) != -100
    right = np.argmax(logits, axis=-1)[kept] == np.asarray(targets)[kept]
    assert (float(sums.weight), float(sums.correct)) == (kept.sum(), right.sum())


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
@pytest.mark.quick("shape2")
def test_any_leading_axes_and_default_weights(shape):
    logits = jax.random.normal(jax.random.key(1), (*shape, V))
    targets = jax.random.randint(jax.random.key(2), shape, 0, V)
    sums = cross_entropy(logits, targets)
    log_probability = jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(targets, V))
    np.testing.assert_allclose(sums.loss, -log_probability, rtol=1e-5)
    assert sums.weight == targets.size


@pytest.mark.parametrize("terms", VARIANTS)
def test_masked_equals_subset_and_sums_add_up(terms):
    logits = jax.random.normal(jax.random.key(1), (B, T, V))
    targets, weights = problem()[3:]
    kept = np.asarray(weights) > 0
    assert 0 < kept.sum() < kept.size
    whole = cross_entropy(logits, targets, weights, **terms)
    subset = cross_entropy(logits[kept], targets[kept], weights[kept], **terms)
    assert_close(whole, subset, rtol=1e-5)
    parts = [cross_entropy(logits[s], targets[s], weights[s], **terms) for s in np.s_[:1, 1:]]
    assert_close(whole, jax.tree.map(jnp.add, *parts), rtol=1e-5)


def test_z_loss_is_reported_and_part_of_the_loss():
    logits, (targets, weights) = jax.random.normal(jax.random.key(1), (B, T, V)), problem()[3:]
    plain, pulled = (cross_entropy(logits, targets, weights, z_loss=z) for z in (0.0, 0.5))
    log_z = jax.nn.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(pulled.z_loss, 0.5 * jnp.sum(weights * log_z**2), rtol=1e-5)
    np.testing.assert_allclose(pulled.loss - pulled.z_loss, plain.loss, rtol=1e-5)


def test_a_tie_with_the_target_counts_as_correct():
    sums = cross_entropy(jnp.array([[1.0, 1.0, 0.0], [1.0, 2.0, 0.0]]), jnp.array([1, 0]))
    assert sums.correct == 1


def test_large_bfloat16_logits_are_finite_and_in_float32():
    logits = jnp.array([[3e4, -3e4, 0.0]], jnp.bfloat16)
    sums = cross_entropy(logits, jnp.array([1]))
    assert sums.loss.dtype == jnp.float32
    np.testing.assert_allclose(sums.loss, 6e4, rtol=1e-2)


@pytest.mark.parametrize("terms", [*VARIANTS, {"softcap": 2.0}, {"softcap": 5.0, **VARIANTS[-1]}])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.quick("True-*")
def test_chunked_equals_dense_in_float64_with_all_gradients(terms, with_bias):
    with jax.enable_x64(True):
        hidden, head, bias, targets, weights = problem(jnp.float64)
        results = [
            with_gradients(
                lambda hidden, head, bias, weights, targets, _, f=function: f(
                    hidden, head, bias if with_bias else None, targets, weights, **terms
                ),
                *(hidden, head, bias, weights),
                targets=targets,
                weights=None,
                argnums=(0, 1, 2, 3),
            )
            for function in (chunked, dense)
        ]
        assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("length", "chunk_size"), [(7, 1), (7, 2), (7, 11), (1, 4), (9, 4)])
@pytest.mark.quick("7-2", "9-4")
def test_chunk_size_changes_nothing(length, chunk_size):
    *arrays, targets, weights = problem(length=length)
    rows = {"targets": targets, "weights": weights}
    in_chunks = with_gradients(chunked, *arrays, **rows, chunk_size=chunk_size)
    assert_close(in_chunks, with_gradients(dense, *arrays, **rows), rtol=1e-5, atol=1e-5)


def test_a_chunk_in_which_no_token_counts_is_not_computed():
    hidden, head, bias, targets, weights = problem(length=9)
    weights = weights.at[:, 3:6].set(0)
    poisoned = hidden.at[:, 3:6].set(jnp.nan)
    options = {"targets": targets, "weights": weights, "argnums": (0, 1, 2)}
    skipped = with_gradients(chunked, poisoned, head, bias, **options)
    assert_close(
        skipped, with_gradients(dense, hidden, head, bias, **options), rtol=1e-5, atol=1e-5
    )
    assert np.isfinite(jax.jit(chunked)(poisoned, head, bias, targets, weights).loss)


def test_no_token_counts():
    *arrays, targets, weights = problem()
    sums, gradients = with_gradients(chunked, *arrays, targets=targets, weights=0 * weights)
    assert_close((sums, gradients), jax.tree.map(jnp.zeros_like, (sums, gradients)), atol=0)


def test_without_gradients_the_sums_are_the_same():
    *arrays, targets, weights = problem()
    plain = jax.jit(partial(chunked, z_loss=1e-3))(*arrays, targets, weights)
    sums, _ = with_gradients(chunked, *arrays, targets=targets, weights=weights, z_loss=1e-3)
    assert_close(plain, sums, rtol=1e-6)


def test_bfloat16_hidden_with_a_float32_head():
    hidden, head, bias, targets, weights = problem(jnp.bfloat16)
    arguments = {"targets": targets, "weights": weights}
    sums, (dhidden, dhead) = with_gradients(chunked, hidden, head, bias, **arguments)
    expected, (dense_dhidden, dense_dhead) = with_gradients(dense, hidden, head, bias, **arguments)
    assert_close(sums, expected, rtol=1e-6)
    assert (dhidden.dtype, dhead.dtype) == (jnp.bfloat16, jnp.float32)
    # The logits' gradient and the hidden states' are rounded to 8 bits: half a unit is 2**-9.
    for ours, reference in ((dhidden, dense_dhidden), (dhead, dense_dhead)):
        largest = jnp.max(jnp.abs(reference))
        assert_close(ours / largest, reference / largest, rtol=0, atol=4 * 2**-9)


def lowered(batch=2, length=64, chunk_size=16, dtype=jnp.bfloat16):
    hidden = jax.ShapeDtypeStruct((batch, length, 8), dtype)
    head = jax.ShapeDtypeStruct((8, 48), jnp.float32)
    targets = jax.ShapeDtypeStruct((batch, length), jnp.int32)

    def loss(hidden, head, targets):
        return chunked_cross_entropy(hidden, head, targets, chunk_size=chunk_size).loss

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(hidden, head, targets)


@pytest.mark.optimized
def test_no_buffer_holds_all_logits_and_they_are_computed_once():
    text = lowered().compile().as_text()
    sizes = {
        int(np.prod([int(n) for n in shape.split(",")]))
        for shape in re.findall(r"(?:f32|bf16|pred)\[([\d,]+)\]", text)
    }
    assert 2 * 16 * 48 in sizes
    assert 2 * 64 * 48 not in sizes
    products = re.findall(r"stablehlo.dot_general .*", lowered().as_text())
    assert len(products) == 3
    assert all(re.search(r"bf16>, tensor<.*bf16>\) -> tensor<.*f32>", line) for line in products)


def mesh_of_eight():
    return jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (AxisType.Explicit,) * 3)


SPECS = [
    (P(("data", "fsdp"), None, None), P(None, "tensor"), P("tensor")),
    (P(("data", "fsdp"), None, None), P("fsdp", "tensor"), P("tensor")),
    (P(("data", "fsdp"), None, None), P(None, ("tensor", "fsdp")), P(("tensor", "fsdp"))),
    (P(None, None, None), P(None, None), P(None)),
]


@pytest.mark.parametrize("function", [chunked, dense])
@pytest.mark.parametrize("specs", SPECS)
@pytest.mark.quick("specs1-chunked", "specs3-chunked")
def test_sharded_equals_unsharded(function, specs):
    *arrays, targets, weights = problem()
    options = {"argnums": (0, 1, 2), "softcap": 3.0, **VARIANTS[-1]}
    expected = with_gradients(function, *arrays, targets=targets, weights=weights, **options)
    if function is dense:
        specs = (specs[0], P(None, specs[2][0] and "tensor"), P(specs[2][0] and "tensor"))
    with jax.set_mesh(mesh_of_eight()):
        arrays = [jax.reshard(x, spec) for x, spec in zip(arrays, specs, strict=True)]
        rows = [jax.reshard(x, P(*specs[0][:2])) for x in (targets, weights)]
        actual = with_gradients(function, *arrays, targets=rows[0], weights=rows[1], **options)
    assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    for gradient, spec in zip(actual[1], specs, strict=True):
        assert jax.typeof(gradient).sharding.spec == spec
    assert isinstance(actual[0], LossSums)


def traced_in_mesh(head_spec):
    """The gradients of hidden states and a head, both cut by a mesh."""
    hidden, head, _, targets, weights = problem()
    with jax.set_mesh(mesh_of_eight()):
        hidden = jax.reshard(hidden, P(("data", "fsdp"), None, None))
        head = jax.reshard(head, head_spec)
        targets, weights = (jax.reshard(x, P(("data", "fsdp"), None)) for x in (targets, weights))

        def loss(hidden, head):
            return chunked_cross_entropy(hidden, head, targets, weights, chunk_size=3).loss

        return jax.jit(jax.grad(loss, (0, 1))).trace(hidden, head)


@pytest.mark.optimized
def test_the_head_gradient_is_summed_over_devices_once():
    text = traced_in_mesh(P(None, "tensor")).lower().compile().as_text()
    body, shape = None, rf"f32\[{D},{V // 2}\]"
    where = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            body = line.split()[0]
        if re.search(rf"= .*{shape}.* all-reduce\(", line):
            where.append(body)
    assert where == ["ENTRY"]


@pytest.mark.parametrize(("head_spec", "waits"), [(P("fsdp", "tensor"), True), (P(), False)])
def test_the_whole_gradient_of_a_head_that_is_cut_does_not_wait(head_spec, waits):
    equations = traced_in_mesh(head_spec).jaxpr.eqns
    barriers = [each for each in equations if each.primitive.name == "optimization_barrier"]
    found = [[x.aval.shape for x in each.invars] for each in barriers]
    assert found == [[(B, T, D), (D, V)]] * waits
