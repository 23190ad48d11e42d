"""The decoder's choices: each does what its name says."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    close,
    gradients_of,
    hidden_of,
    logits_of,
    random_parameters,
    structure_of,
    tiny,
    tokens,
)

from jaxformer.functional import RoPE
from jaxformer.nn import Parallel, TokenEmbeddings, VocabularyLogits

KEY = jax.random.key(3)


def silenced(config, layer):
    """Random parameters in which the attention of one layer of a group adds nothing."""
    parameters = random_parameters(config)
    name = f"transformer.stack.group.{layer}.sublayers.0.attention.output.kernel"
    return parameters | {name: jnp.zeros_like(parameters[name])}


@pytest.mark.more
@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize(("silent", "read"), [(0, "position"), (1, "window_position")])
@pytest.mark.quick("*-True")
def test_layers_with_a_window_may_rotate_otherwise(silent, read, scan):
    """Where one layer's attention is silent, the scheme of the other is the one that counts."""
    ropes = {"position": RoPE(theta=100.0), "window_position": RoPE(theta=7.0)}
    config = tiny(num_layers=4, windows=(5, None), scan_layers=scan, **ropes)
    parameters, inputs = silenced(config, silent), tokens(2, 7)
    logits = logits_of(config, parameters, inputs)
    for field, rope in ropes.items():
        other = logits_of(replace(config, **{field: replace(rope, theta=20.0)}), parameters, inputs)
        assert (jnp.abs(other - logits).max() > 1e-2) == (field == read)


@pytest.mark.parametrize(("silent", "rotates"), [(0, False), (1, True)])
def test_layers_may_have_no_positions(silent, rotates):
    config = tiny(num_layers=4, windows=(None, None), rope_layers=(True, False))
    parameters, inputs = silenced(config, silent), tokens(2, 7)
    logits = logits_of(config, parameters, inputs)
    other = logits_of(replace(config, position=RoPE(theta=7.0)), parameters, inputs)
    assert (jnp.abs(other - logits).max() > 1e-2) == rotates


UNTIED = tiny(num_layers=1, tie_embeddings=False)
TIED = replace(UNTIED, tie_embeddings=True)


@pytest.fixture(scope="module")
def untied():
    """Random parameters of an untied decoder, its input and logits."""
    parameters, inputs = random_parameters(UNTIED), tokens(2, 7)
    return parameters, inputs, logits_of(UNTIED, parameters, inputs)


def test_a_tied_head_is_the_transposed_table(untied):
    parameters, inputs, _ = untied
    shared = parameters | {"heads.language_model.kernel": parameters["embedding.table"].T}
    tied = {name: x for name, x in parameters.items() if name != "heads.language_model.kernel"}
    apart, expected = gradients_of(UNTIED, shared, inputs)
    gradients, logits = gradients_of(TIED, tied, inputs)
    assert gradients.keys() == tied.keys()
    close(logits, expected)
    # The table learns from both of its uses.
    total = apart.pop("heads.language_model.kernel").T + apart["embedding.table"]
    largest = jnp.abs(total).max()
    expected = apart | {"embedding.table": total}
    chex.assert_trees_all_close(gradients, expected, rtol=2e-5, atol=2e-6 * largest)


def test_softcap_of_the_logits(untied):
    parameters, inputs, logits = untied
    capped = logits_of(replace(UNTIED, logits=VocabularyLogits(softcap=1.5)), parameters, inputs)
    assert jnp.abs(logits).max() > 1.5  # else the bound means nothing
    close(capped, 1.5 * np.tanh(np.asarray(logits, np.float64) / 1.5))


def test_bias_of_the_head(untied):
    parameters, inputs, logits = untied
    config = replace(UNTIED, logits=VocabularyLogits(bias=True))
    name = "heads.language_model.bias"
    assert structure_of(config).shapes[name].shape == (31,)
    bias = jnp.asarray(np.random.default_rng(9).normal(size=31), jnp.float32)
    biased = logits_of(config, parameters | {name: bias}, inputs)
    close(biased, logits + bias[None, None])
    # The cap comes after the bias.
    bounded = replace(UNTIED, logits=VocabularyLogits(bias=True, softcap=1.5))
    capped = logits_of(bounded, parameters | {name: bias}, inputs)
    close(capped, 1.5 * np.tanh(np.asarray(biased, np.float64) / 1.5))


def test_scale_of_the_embeddings(untied):
    """It multiplies what enters the stack, and not the head that shares the table."""
    parameters, inputs, _ = untied
    scaled = replace(UNTIED, embeddings=TokenEmbeddings(scale=4.5))
    expected = parameters | {"embedding.table": 4.5 * parameters["embedding.table"]}
    close(logits_of(scaled, parameters, inputs), logits_of(UNTIED, expected, inputs))
    tied = replace(scaled, tie_embeddings=True)
    shared = parameters | {"heads.language_model.kernel": parameters["embedding.table"].T}
    close(logits_of(tied, parameters, inputs), logits_of(scaled, shared, inputs))


def test_logits_are_float32_and_hidden_states_of_the_compute_dtype(untied):
    parameters, inputs, logits = untied
    rounded = replace(UNTIED, compute_dtype="bfloat16")
    assert hidden_of(rounded, parameters, inputs).dtype == jnp.bfloat16
    lower = logits_of(rounded, parameters, inputs)
    assert lower.dtype == logits.dtype == jnp.float32
    assert 0 < jnp.abs(lower - logits).max() < 0.1 * jnp.abs(logits).max()


@pytest.mark.parametrize("name", ["dropout", "self_attention.dropout"])
def test_dropout(name, untied):
    parameters, inputs, plain = untied
    config = UNTIED.with_fields(**{name: 0.3})
    run = partial(logits_of, config, parameters, inputs)
    np.testing.assert_array_equal(run(), plain)  # no key, no dropout
    dropped = run(key=KEY)
    np.testing.assert_array_equal(run(key=KEY), dropped)
    assert jnp.abs(dropped - plain).max() > 1e-2
    assert jnp.abs(dropped - run(key=jax.random.key(4))).max() > 1e-2
    # Two equal rows of a batch drop other places.
    twice = logits_of(config, parameters, inputs[jnp.array([0, 0])], key=KEY)
    assert jnp.abs(twice[0] - twice[1]).max() > 1e-2


def test_dropout_at_rate_zero_is_none(untied):
    parameters, inputs, plain = untied
    np.testing.assert_array_equal(logits_of(UNTIED, parameters, inputs, key=KEY), plain)


def test_dropout_of_the_embeddings():
    """With silent blocks the stream is the dropped embedding: scaled or all zero."""
    config = tiny(num_layers=1, dropout=0.25, residual=Parallel())
    parameters = random_parameters(config)
    silent = {n: jnp.zeros_like(x) if "stack" in n else x for n, x in parameters.items()}
    silent |= {"transformer.final_norm.scale": jnp.ones(20)}
    inputs = tokens(8, 50)
    hidden = hidden_of(config, silent, inputs, key=KEY)
    rows = parameters["embedding.table"][inputs]
    kept = np.asarray(hidden != 0)
    assert kept.mean() == pytest.approx(0.75, abs=5 * np.sqrt(0.25 * 0.75 / kept.size))
    dropped = np.where(kept, rows, 0)  # The norm undoes the factor 1 / (1 - rate).
    root = np.sqrt((dropped**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(hidden, dropped / root, rtol=1e-3, atol=1e-4)
