"""The training step: the same update on every mesh and in parts, none from bad numbers."""

from dataclasses import replace
from functools import lru_cache

import jax
import numpy as np
import pytest

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.functional import ALiBi, RoPE
from jaxformer.models import DecoderConfig
from jaxformer.models.float8 import Float8
from jaxformer.nn import DotProductAttention
from jaxformer.optim import SGD, Constant
from jaxformer.training.step import TrainProgram

GROUPED = DecoderConfig(
    vocab_size=32,
    num_layers=2,
    model_dim=24,
    num_heads=8,
    num_kv_heads=4,
    mlp_dim=16,
    head_dim=4,
    position=RoPE(theta=100.0),
    dropout=0.1,
    self_attention=DotProductAttention(dropout=0.1),
    compute_dtype="float32",
)
MULTI_QUERY = replace(GROUPED, num_kv_heads=1, position=ALiBi(), tie_embeddings=False)
OPTIMIZER = SGD(schedule=Constant(learning_rate=0.1, warmup_steps=0))


def rows(batch_size=8, length=12):
    random = np.random.default_rng(0)
    segments = np.sort(random.integers(1, 4, (batch_size, length)), axis=1)
    starts = np.array([[np.argmax(row == s) for s in row] for row in segments])
    return {
        "inputs": random.integers(0, 32, (batch_size, length)).astype(np.int32),
        "targets": random.integers(0, 32, (batch_size, length)).astype(np.int32),
        "weights": random.integers(0, 2, (batch_size, length)).astype(np.float32),
        "segments": segments.astype(np.int32),
        "positions": (np.arange(length) - starts).astype(np.int32),
    }


def run(model, mesh=(1, 1, 1), steps=2, batch=None, **train):
    program = TrainProgram(model, OPTIMIZER, TrainConfig(**train), make_mesh(MeshConfig(*mesh)))
    state = program.init(0)
    batch = {k: jax.device_put(v, program.batch_sharding) for k, v in (batch or rows()).items()}
    history = []
    for _ in range(steps):
        state, metrics = program.train_step(state, batch)
        history.append(metrics)
    return program, state, history


@lru_cache
def unsharded(model):
    _, state, history = run(model)
    return jax.tree.map(np.asarray, state.params), float(history[-1]["loss"])


def assert_same_parameters(params, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 2, 2), (4, 1, 2)])
@pytest.mark.quick("mesh2")
def test_every_mesh_makes_the_same_update(mesh):
    program, state, history = run(GROUPED, mesh)
    expected, loss = unsharded(GROUPED)
    assert_same_parameters(state.params, expected)
    np.testing.assert_allclose(history[-1]["loss"], loss, rtol=1e-5)
    for name, value in state.params.items():
        assert value.sharding.is_equivalent_to(program.param_shardings[name], value.ndim), name


@pytest.mark.slow
def test_multi_query_attention_on_a_mesh():
    _, state, _ = run(MULTI_QUERY, (2, 1, 2))
    assert_same_parameters(state.params, unsharded(MULTI_QUERY)[0])


def test_one_trace_serves_all_steps():
    program, _, _ = run(GROUPED, steps=3)
    assert program._update._cache_size() == 1


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 2)])
@pytest.mark.quick("mesh1")
def test_parts_add_up_to_the_large_batch(mesh):
    # Weights differ between the parts, so a mean of their means would be another number.
    model = GROUPED.with_fields(dropout=0.0, **{"self_attention.dropout": 0.0})
    _, state, history = run(model, mesh, gradient_accumulation=4 // mesh[0])
    expected, loss = unsharded(model)
    assert_same_parameters(state.params, expected)
    np.testing.assert_allclose(history[-1]["loss"], loss, rtol=1e-5)


@lru_cache
def in_two_parts(model, mesh):
    train = {"gradient_accumulation": 2, "loss_chunk": 5}
    _, state, history = run(model, mesh, batch=rows(16), **train)
    return jax.tree.map(np.asarray, state.params), float(history[-1]["loss"])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(4, 1, 2), (2, 2, 2)])
def test_the_copies_of_a_model_make_the_update_of_one_device(mesh):
    # With dropout: each copy adds up its own parts, and drops what it would among all rows.
    params, loss = in_two_parts(GROUPED, mesh)
    expected, expected_loss = in_two_parts(GROUPED, (1, 1, 1))
    assert_same_parameters(params, expected)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


@pytest.mark.slow
def test_the_chunked_loss_makes_the_same_update():
    _, state, _ = run(GROUPED, loss_chunk=5)
    assert_same_parameters(state.params, unsharded(GROUPED)[0])


def test_a_non_finite_update_is_skipped_and_counted():
    bad = rows()
    bad["weights"][0, 0] = np.inf
    program, state, history = run(GROUPED, steps=2, batch=bad)
    for name, value in program.init(0).params.items():
        np.testing.assert_array_equal(state.params[name], value)
    assert [int(m["skipped_in_a_row"]) for m in history] == [1, 2]
    good = {k: jax.device_put(v, program.batch_sharding) for k, v in rows().items()}
    state, metrics = program.train_step(state, good)
    assert int(metrics["skipped"]) == 2
    assert int(metrics["skipped_in_a_row"]) == 0
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
@pytest.mark.first("mesh0")
def test_float8_learns_as_the_compute_dtype_does(mesh):
    *_, plain = run(GROUPED, mesh, steps=8)
    *_, found = run(GROUPED, mesh, steps=8, float8=Float8())
    losses = [np.array([float(step["loss"]) for step in each]) for each in (plain, found)]
    assert (losses[0] != losses[1]).any()
    np.testing.assert_allclose(*losses, rtol=5e-3)


def test_the_moving_average_follows_the_parameters():
    program, state, _ = run(GROUPED, steps=1, ema_decay=0.9)
    start = program.init(0).params
    for name, value in state.params.items():
        expected = 0.9 * np.asarray(start[name]) + 0.1 * np.asarray(value)
        np.testing.assert_allclose(state.ema[name], expected, rtol=1e-5, atol=1e-7)
