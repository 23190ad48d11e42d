"""The small experiments on attention."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny, tiny_encoder
from typed_commands import printed, refused

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.functional import Learned, NoPosition
from jaxformer.lab.experiments.cost import Cost, CostConfig, measure_costs
from jaxformer.lab.experiments.kv_cache import cache_report, cache_sizes, next_token_flops
from jaxformer.lab.experiments.mask_order import (
    mask_after_softmax,
    mask_before_softmax,
    masked_weights,
)
from jaxformer.lab.experiments.mixers import causal_convolution, gru, mixers
from jaxformer.lab.experiments.recall import RecallConfig, repeating_rows, train_recall
from jaxformer.lab.experiments.softmax_scale import score_statistics
from jaxformer.lab.experiments.two_dogs import twin_outputs, without_positions
from jaxformer.models import AbstractModel
from jaxformer.nn.cache import CacheShape

pytestmark = pytest.mark.more

# The scale of scores ----------------------------------------------------------------------------


def test_the_variance_of_a_score_is_the_width_of_a_head():
    found = score_statistics(jax.random.key(0), (3, 24), num_keys=12, samples=8000)
    np.testing.assert_allclose(found.variance[:, 0], [3, 24], rtol=0.05)
    np.testing.assert_allclose(found.variance[:, 1], [1, 1], rtol=0.05)
    assert (found.entropy[1] < found.entropy[0]).tolist() == [True, True]
    assert found.entropy[1, 0] < 0.5 < 0.8 < found.entropy[1, 1]
    assert found.slope[1, 0] < found.slope[1, 1]
    assert ((found.largest > 1 / 12) & (found.largest <= 1)).all()


def test_statistics_of_too_little_are_refused():
    for options in ({"num_keys": 1}, {"samples": 1}):
        with pytest.raises(ArgumentError, match="must be at least 2"):
            score_statistics(jax.random.key(0), (4,), **options)
    with pytest.raises(ArgumentError, match="head_dims = \\(\\): must be"):
        score_statistics(jax.random.key(0), ())


# The order of mask and softmax ------------------------------------------------------------------


def example(length=5, keys=7):
    scores = jax.random.normal(jax.random.key(1), (length, keys))
    return scores, jnp.tril(jnp.ones((length, keys), bool), k=1)


def test_a_mask_before_the_softmax_leaks_nothing():
    scores, allowed = example()
    found = masked_weights(mask_before_softmax, scores, allowed)
    expected = jnp.where(allowed, jnp.exp(scores), 0)
    expected = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    np.testing.assert_allclose(found.row_sums, 1, atol=1e-6)
    assert (found.leak == 0).all()


def test_a_mask_after_the_softmax_leaks_and_loses_weight():
    scores, allowed = example()
    found = masked_weights(mask_after_softmax, scores, allowed)
    assert (found.row_sums < 1).all()
    # dp_s/da_j = -p_s p_j for s other than j, with the plain softmax.
    weights = jax.nn.softmax(scores)
    kept = jnp.where(allowed, weights, 0).sum(axis=1)
    np.testing.assert_allclose(found.leak, kept * (1 - kept), atol=1e-6)
    np.testing.assert_allclose(found.row_sums, kept, atol=1e-6)


def test_a_query_without_keys_has_zeros():
    scores, allowed = example()
    allowed = allowed.at[2].set(False)
    for weights_of in (mask_before_softmax, mask_after_softmax):
        found = masked_weights(weights_of, scores, allowed)
        assert (found.weights[2] == 0).all()
        assert jnp.isfinite(found.leak).all()


# Two dogs ---------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
@pytest.mark.quick("t5")
def test_identical_tokens_are_one_without_positions(kind, folders):
    model = jaxformer.load(folders[kind])
    found = twin_outputs(model, "the red boat sells the boat")
    assert found.pairs
    assert found.largest(found.without) < 1e-5
    assert found.largest(found.with_positions) > 1e-3
    others = [(0, j) for j in range(1, len(found.pieces)) if (0, j) not in found.pairs]
    assert min(found.without[pair] for pair in others) > 1e-2
    if kind == "gpt2":
        assert found.largest(found.causal) > 1e-3
    else:
        assert found.causal is None


@pytest.mark.torch
def test_a_text_without_twins(folders):
    model = jaxformer.load(folders["bert"])
    twice = r"must contain a token twice; its tokens are \[CLS\] the"
    with pytest.raises(ArgumentError, match=twice):
        twin_outputs(model, "the boat")
    with pytest.raises(DataError, match="text: 102 tokens, special ones included: must be at most"):
        twin_outputs(model, "boat " * 100)
    config = without_positions(replace(model.config))
    assert isinstance(config.position, NoPosition)


# Cost -------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_the_gru_is_that_of_pytorch():
    import torch

    parameters = mixers(2, 3)[2].init(jax.random.key(0), 6)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    theirs = torch.nn.GRU(6, 6, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.tensor(np.asarray(parameters["input"].T)))
        theirs.weight_hh_l0.copy_(torch.tensor(np.asarray(parameters["hidden"].T)))
        expected = theirs(torch.tensor(x))[0].numpy()
    np.testing.assert_allclose(gru(parameters, jnp.asarray(x)), expected, atol=1e-5)


def test_the_convolution_is_its_formula():
    kernel = jax.random.normal(jax.random.key(0), (3, 4, 5))
    x = jax.random.normal(jax.random.key(1), (2, 6, 4))
    padded = jnp.pad(x, ((0, 0), (2, 0), (0, 0)))
    expected = sum(padded[:, i : i + 6] @ kernel[i] for i in range(3))
    found = causal_convolution({"kernel": kernel}, x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.quick("1")
def test_every_layer_is_causal(number):
    mixer = mixers(num_heads=2, kernel_size=3)[number]
    parameters = mixer.init(jax.random.key(0), 8)
    x = jax.random.normal(jax.random.key(1), (1, 6, 8))
    total = jax.jacrev(lambda x: mixer.apply(parameters, x).sum(axis=-1)[0])
    jacobian = jax.jit(total)(x)[:, 0]
    reach = np.abs(np.asarray(jacobian)).sum(axis=-1)
    assert (np.triu(reach, k=1) == 0).all()
    assert (np.diag(reach) > 0).all()


def test_cost_is_measured_at_every_length():
    config = CostConfig(lengths=(16, 32), width=8, num_heads=2, kernel_size=3, rounds=1)
    costs = measure_costs(config)
    assert len(costs) == 4
    for cost in costs:
        assert cost.seconds.shape == cost.num_bytes.shape == (2,)
        assert (cost.seconds > 0).all()


def test_growth_is_the_slope_between_the_greatest_lengths():
    lengths = np.array([8.0, 16.0, 64.0])
    cost = Cost(mixers(2, 3)[0], 1e-3 * lengths**2, (7 * lengths).astype(np.int64))
    np.testing.assert_allclose(cost.exponents(lengths), (2, 1), atol=1e-6)


def test_cost_needs_rising_lengths():
    with pytest.raises(ConfigError, match="lengths = \\(8, 8\\): must be two or more positive"):
        CostConfig(lengths=(8, 8))
    with pytest.raises(ConfigError, match="num_heads = 3: must be a divisor of width = 256"):
        CostConfig(num_heads=3)


# Recall over a distance -------------------------------------------------------------------------


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


# The cache of a decoder ---------------------------------------------------------------------------

LAYERS, HEADS, KV_HEADS, WIDTH = 3, 6, 2, 8
CONFIG = tiny(num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH)


def test_a_token_takes_its_keys_and_values():
    found = cache_sizes(CONFIG, (1, 7), "bfloat16")
    assert found.token_bytes == 2 * LAYERS * KV_HEADS * WIDTH * 2
    assert found.num_bytes.tolist() == [found.token_bytes, 7 * found.token_bytes]
    scaled = cache_sizes(CONFIG, (1,), "int8")
    assert scaled.token_bytes == 2 * LAYERS * KV_HEADS * (WIDTH + 4)


def test_the_bytes_are_those_that_are_allocated():
    config = tiny(num_layers=2, windows=(4, None))
    model = AbstractModel(config.build)
    shape = CacheShape(batch_size=1, capacity=16, chunk=1, storage="float32")
    cache = model.module(model.init(jax.random.key(0))).init_cache(shape)
    arrays = [x for x in jax.tree.leaves(cache.layers) if x.dtype == np.float32]
    assert cache_sizes(config, (16,), "float32").num_bytes == sum(x.nbytes for x in arrays)


def test_without_a_cache_the_row_is_computed_again():
    cached, recomputed = next_token_flops(CONFIG, 10)
    flops = CONFIG.flops({"inputs": 10})
    assert cached == flops.products + 10 * 4 * LAYERS * HEADS * WIDTH
    np.testing.assert_allclose(recomputed, 10 * flops.products + 55 * 4 * LAYERS * HEADS * WIDTH)


def test_fewer_heads_save_their_share():
    report = cache_report(CONFIG, "tiny", (4, 8), "float32")
    heads = {row[0]: row[2] for row in report.rows if row[0]}
    assert heads == {6: 3 * heads[2], 2: 2 * heads[1], 1: 2 * LAYERS * WIDTH * 4}


def test_what_has_no_such_cache_is_refused():
    with pytest.raises(ConfigError, match="must be a decoder"):
        cache_report(tiny_encoder(), "tiny", (4, 8), "float32")
    with pytest.raises(ArgumentError, match="increasing order"):
        cache_report(CONFIG, "tiny", (8, 4), "float32")
    with pytest.raises(ArgumentError, match="16"):
        cache_report(tiny(position=Learned(max_length=16)), "tiny", (8, 32), "float32")


# Commands ---------------------------------------------------------------------------------------


EXPERIMENTS = {
    "softmax --head-dims 1 4": "The variance of q.k grows as d_k",
    "mask --length 4": "every row sums to 1 and the leak is exactly 0",
    "cache tiny_decoder --model.num-layers 1": "65,536",
    "recall --distances 4 6 --width 8 --num-heads 2 --num-layers 1 --steps 3 --batch-size 2": "GRU",
    "cost --lengths 8 16 --width 8 --rounds 1": "the GRU takes n steps one after another",
}


@pytest.mark.parametrize(("command", "words"), EXPERIMENTS.items(), ids=EXPERIMENTS)
@pytest.mark.quick("softmax*", "cache*", "recall*")
def test_an_experiment_writes_a_page_and_a_picture(command, words, tmp_path, capsys):
    name, *options = command.split()
    assert words in printed(capsys, "lab", name, *options, "--out", tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert words in (tmp_path / f"{name}.html").read_text()


@pytest.mark.torch
@pytest.mark.slow
def test_two_dogs_from_the_command_line(folders, tmp_path, capsys):
    arguments = ["lab", "two-dogs", folders["gpt2"], "--out", tmp_path, "--text"]
    words = printed(capsys, *arguments, "the boat sells the boat")
    assert "equal to float precision" in words
    assert "A causal mask alone also tells them apart" in words
    assert (tmp_path / "two-dogs.png").stat().st_size > 10_000
    said = refused(capsys, *arguments, "boat " * 60)
    assert "must have at most 40 tokens for the picture" in said
