"""Recall over a distance: the task, and what each layer can and cannot learn of it."""

import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.lab.experiments.mixers import mixers
from jaxformer.lab.experiments.recall import RecallConfig, repeating_rows, train_recall

pytestmark = pytest.mark.more


def test_what_counts_follows_from_the_row():
    tokens, weights = repeating_rows(np.random.default_rng(0), 20, 12, 9, (4, 6))
    for row, counts in zip(tokens, weights, strict=True):
        (distance,) = {4, 6} & {int(counts.argmax())}
        assert len(set(row[:distance].tolist())) == distance
        np.testing.assert_array_equal(row[distance:], row[:-distance])
        np.testing.assert_array_equal(counts, np.arange(12) >= distance)
    assert len({int(counts.argmax()) for counts in weights}) == 2


def test_a_convolution_learns_what_it_sees_and_no_more():
    sizes = {"width": 32, "kernel_size": 5, "num_layers": 2, "batch_size": 16}
    config = RecallConfig(distances=(4, 12), steps=200, learning_rate=1e-2, **sizes)
    convolution = mixers(config.num_heads, config.kernel_size)[-1]
    found = train_recall(convolution, config)
    assert found.accuracy[0] > 0.4
    assert found.accuracy[1] < 0.1  # 2 x (5 - 1) tokens back
    assert found.num_parameters == 2 * 5 * 32 * 32
    assert found.curve[-1] < found.curve[0]


def test_distances_rise():
    with pytest.raises(ConfigError, match="distances"):
        RecallConfig(distances=(8, 4))
    with pytest.raises(ConfigError, match="num_heads"):
        RecallConfig(width=30)
