import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.optim import Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay

WARMUP, TOTAL, PEAK = 7, 50, 3e-3


def values(schedule, steps=range(TOTAL + 1), total=TOTAL):
    build = schedule.build(total)
    return np.asarray(jax.vmap(build)(jnp.asarray(list(steps))))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("schedule", "name", "options"),
    [
        (Constant(PEAK, WARMUP), "constant_with_warmup", {}),
        (Linear(PEAK, WARMUP), "linear", {}),
        (Cosine(PEAK, WARMUP, final_fraction=0.0), "cosine", {}),
        (Cosine(PEAK, WARMUP, 0.2), "cosine_with_min_lr", {"min_lr_rate": 0.2}),
        (InverseSquareRoot(PEAK, WARMUP), "inverse_sqrt", {}),
        (InverseSquareRoot(PEAK, WARMUP, 20), "inverse_sqrt", {"timescale": 20}),
        (
            WarmupStableDecay(PEAK, WARMUP, decay_fraction=0.3),
            "warmup_stable_decay",
            {"num_decay_steps": 15, "decay_type": "linear"},
        ),
        (Linear(PEAK, 0), "linear", {}),
    ],
)
def test_equals_transformers(schedule, name, options):
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    reference = get_scheduler(name, optimizer, schedule.warmup_steps, TOTAL, options)
    expected = []
    for _ in range(TOTAL + 1):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    np.testing.assert_allclose(values(schedule), expected, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "final"),
    [
        (Constant(PEAK, WARMUP), 1.0),
        (Linear(PEAK, WARMUP, 0.1), 0.1),
        (Cosine(PEAK, WARMUP, 0.3), 0.3),
        (Cosine(PEAK, WARMUP, 0.3, decay_steps=30), 0.3),
        (InverseSquareRoot(PEAK, WARMUP), math.sqrt(WARMUP / TOTAL)),
        (InverseSquareRoot(PEAK, WARMUP, constant_steps=13), math.sqrt(20 / TOTAL)),
        (InverseSquareRoot(PEAK, WARMUP, cooldown_steps=5), 0.0),
        (WarmupStableDecay(PEAK, WARMUP, 0.05), 0.05),
        (WarmupStableDecay(PEAK, WARMUP, 0.05, decay_fraction=1.0), 0.05),
    ],
)
def test_edges(schedule, final):
    rates = values(schedule, [0, 1, WARMUP, TOTAL, TOTAL + 100])
    expected = PEAK * np.array([0, 1 / WARMUP, 1, final, final])
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-9)


def test_warmup_stable_decay_is_flat_and_then_straight():
    rates = values(WarmupStableDecay(PEAK, WARMUP, 0.5, decay_fraction=0.2)) / PEAK
    np.testing.assert_allclose(rates[WARMUP:41], 1.0, rtol=1e-6)
    np.testing.assert_allclose(np.diff(rates[40:]), -0.05, rtol=1e-4)


@pytest.mark.parametrize("shape", [Linear, Cosine])
def test_a_decay_that_ends_early_is_that_of_a_shorter_run(shape):
    rates = values(shape(PEAK, WARMUP, 0.1, decay_steps=30)) / PEAK
    shorter = jax.vmap(shape(PEAK, WARMUP, 0.1).build(30))(jnp.arange(31)) / PEAK
    np.testing.assert_allclose(rates[:31], shorter, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rates[30:], 0.1, rtol=1e-5)


def test_the_inverse_square_root_of_t5():
    rates = values(InverseSquareRoot(1 / math.sqrt(20), warmup_steps=0, constant_steps=20))
    expected = 1 / np.sqrt(np.maximum(np.arange(TOTAL + 1), 20))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_a_cool_down_multiplies_by_a_line_to_zero():
    plain = values(InverseSquareRoot(PEAK, WARMUP, 11))
    cooled = values(InverseSquareRoot(PEAK, WARMUP, 11, cooldown_steps=10))
    np.testing.assert_array_equal(cooled[:40], plain[:40])
    np.testing.assert_allclose(cooled[40:], plain[40:] * np.linspace(1, 0, 11), atol=1e-9)


def test_a_run_that_is_all_warmup():
    rates = np.asarray(jax.vmap(Cosine(PEAK, 10).build(10))(jnp.arange(11)))
    np.testing.assert_allclose(rates, PEAK * np.arange(11) / 10, rtol=1e-5)


@pytest.mark.parametrize("kind", [Constant, Cosine, InverseSquareRoot, Linear, WarmupStableDecay])
def test_a_run_that_is_shorter_than_the_warmup_warms_up_for_a_tenth(kind):
    short = values(kind(PEAK, 100), range(21), total=20)
    np.testing.assert_array_equal(short, values(kind(PEAK, 2), range(21), total=20))
    assert values(kind(PEAK, 100), range(5), total=4)[1] == np.float32(PEAK)


def test_a_share_of_the_run_warms_up():
    shared = Linear(PEAK, None, warmup_fraction=0.06)
    np.testing.assert_array_equal(
        values(shared, range(51), total=50), values(Linear(PEAK, 3), range(51), total=50)
    )


def test_no_warmup_starts_at_the_peak():
    for schedule in (Constant(PEAK, 0), Linear(PEAK, 0), Cosine(PEAK, 0)):
        np.testing.assert_allclose(values(schedule, [0]), PEAK, rtol=1e-6)


@pytest.mark.parametrize("total_steps", range(1, 10))
@pytest.mark.parametrize(
    "schedule",
    [
        *(
            kind(learning_rate=1e-3, **warmup)
            for kind in (Constant, Linear, Cosine, InverseSquareRoot, WarmupStableDecay)
            for warmup in (
                {"warmup_steps": 100},
                {"warmup_steps": 3},
                {"warmup_steps": None},
                {"warmup_steps": None, "warmup_fraction": 1.0},
            )
        ),
        InverseSquareRoot(learning_rate=1e-3, cooldown_steps=50),
    ],
)
def test_however_few_the_updates_one_has_the_peak_rate(schedule, total_steps):
    rates = schedule.build(total_steps)(np.arange(total_steps))
    assert np.isfinite(rates).all()
    assert max(rates) == np.float32(1e-3)
