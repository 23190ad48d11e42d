"""The training step: the same update in parts and in chunks, none from bad numbers."""

from functools import lru_cache

import chex
import jax
import numpy as np
import pytest
from train_steps import packed_rows, program_of, stepped

from jaxformer.functional import RoPE
from jaxformer.models import DecoderConfig
from jaxformer.models.float8 import Float8
from jaxformer.nn import DotProductAttention

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


def run(model, mesh=(1, 1, 1), steps=2, batch=None, **train):
    program = program_of(model, mesh, **train)
    return program, *stepped(program, batch or packed_rows(), steps=steps)


@lru_cache
def unsharded(model):
    _, state, history = run(model)
    return jax.tree.map(np.asarray, state.params), history[-1]["loss"]


def assert_same_parameters(params, expected):
    chex.assert_trees_all_close(params, expected, rtol=2e-5, atol=2e-6)


def test_one_compilation_serves_all_steps():
    built = []

    def listen(event, duration, **details):
        if "_updated" in details.get("fun_name", ""):
            built.append(event.rpartition("/")[2])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run(GROUPED, (2, 2, 2), steps=3, ema_decay=0.9)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert built.count("jaxpr_trace_duration") == 1
    assert built.count("backend_compile_duration") == 1


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 2)])
@pytest.mark.quick("mesh1")
def test_parts_add_up_to_the_large_batch(mesh):
    # Weights differ between the parts, so a mean of their means would be another number.
    model = GROUPED.with_fields(dropout=0.0, **{"self_attention.dropout": 0.0})
    _, state, history = run(model, mesh, gradient_accumulation=4 // mesh[0])
    expected, loss = unsharded(model)
    assert_same_parameters(state.params, expected)
    np.testing.assert_allclose(history[-1]["loss"], loss, rtol=1e-5)


@pytest.mark.slow
def test_the_chunked_loss_makes_the_same_update():
    _, state, _ = run(GROUPED, loss_chunk=5)
    assert_same_parameters(state.params, unsharded(GROUPED)[0])


def test_a_non_finite_update_is_skipped_and_counted():
    bad = packed_rows()
    bad["weights"][0, 0] = np.inf
    program, state, history = run(GROUPED, steps=2, batch=bad)
    chex.assert_trees_all_equal(state.params, program.init(0).params)
    assert [metrics["skipped_in_a_row"] for metrics in history] == [1, 2]
    good = jax.device_put(packed_rows(), program.batch_sharding)
    state, metrics = program.train_step(state, good)
    assert metrics["skipped"] == 2
    assert metrics["skipped_in_a_row"] == 0
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
@pytest.mark.first("mesh0")
def test_float8_learns_as_the_compute_dtype_does(mesh):
    *_, plain = run(GROUPED, mesh, steps=8)
    *_, found = run(GROUPED, mesh, steps=8, float8=Float8())
    losses = [np.array([step["loss"] for step in each]) for each in (plain, found)]
    assert (losses[0] != losses[1]).any()
    np.testing.assert_allclose(*losses, rtol=5e-3)


def test_the_moving_average_follows_the_parameters():
    program, state, _ = run(GROUPED, steps=1, ema_decay=0.9)
    ends = jax.device_get((program.init(0).params, state.params))
    expected = jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, *ends)
    chex.assert_trees_all_close(state.ema, expected, rtol=1e-5, atol=1e-7)
