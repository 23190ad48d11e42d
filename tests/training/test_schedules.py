import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.training.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    WarmupStableDecay,
)

WARMUP, TOTAL, PEAK = 7, 50, 3e-3


def values(schedule, steps=range(TOTAL + 1)):
    build = schedule.build(TOTAL)
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
        (InverseSquareRoot(PEAK, WARMUP), math.sqrt(WARMUP / TOTAL)),
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


def test_a_run_that_is_all_warmup():
    rates = np.asarray(jax.vmap(Cosine(PEAK, 10).build(10))(jnp.arange(11)))
    np.testing.assert_allclose(rates, PEAK * np.arange(11) / 10, rtol=1e-5)


def test_no_warmup_starts_at_the_peak():
    for schedule in (Constant(PEAK, 0), Linear(PEAK, 0), Cosine(PEAK, 0)):
        np.testing.assert_allclose(values(schedule, [0]), PEAK, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(learning_rate=0.0), r"Constant\.learning_rate is 0\.0"),
        (lambda: Linear(warmup_steps=-1), r"Linear\.warmup_steps is -1"),
        (lambda: Cosine(final_fraction=1.1), r"Cosine\.final_fraction is 1\.1"),
        (lambda: InverseSquareRoot(warmup_steps=0), r"InverseSquareRoot\.timescale"),
        (lambda: InverseSquareRoot(timescale=0), r"InverseSquareRoot\.timescale is 0"),
        (lambda: WarmupStableDecay(decay_fraction=0.0), r"WarmupStableDecay\.decay_fraction"),
        (lambda: Cosine(warmup_steps=11).build(10), "at most the 10 steps of the run"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_field(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
