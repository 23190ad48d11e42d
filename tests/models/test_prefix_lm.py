"""Decoders whose first tokens see one another: prefix language models."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    close,
    each_scheme,
    gradients_of,
    influence,
    random_parameters,
    structure_of,
    tiny,
    tokens,
)

from jaxformer.data import PrefixLM, TokenRow
from jaxformer.functional import Learned

pytestmark = pytest.mark.more

with_scheme = each_scheme(pytest.mark.parametrize)
LENGTH = 7


def seen(config, prefix):
    prefix = jnp.array([prefix])
    return np.asarray(influence(config, LENGTH, random_parameters(config), prefix=prefix))


@with_scheme
@pytest.mark.quick("*learned", "*rope_half", "*t5")
def test_a_token_depends_on_the_prefix_and_on_what_came_before(position):
    config = tiny(position=position, num_layers=1)
    query, key = np.mgrid[:LENGTH, :LENGTH]
    for prefix in (0, 1, 4, LENGTH):
        allowed = (key <= query) | (key < prefix)
        np.testing.assert_array_equal(seen(config, prefix) > 0, allowed)


@pytest.mark.parametrize("attention", ["reference", "blockwise"])
def test_a_window_limits_the_past_alone(attention):
    config = tiny(windows=(3,), num_layers=1, attention=attention)
    query, key = np.mgrid[:LENGTH, :LENGTH]
    allowed = (query - 3 < key) & ((key <= query) | (key < 4))
    np.testing.assert_array_equal(seen(config, 4) > 0, allowed)


def test_blockwise_attention_changes_nothing():
    """A prefix opens blocks of 128 keys that lie ahead of the queries, and not in all rows."""
    config, inputs = tiny(num_layers=1), tokens(2, 300)
    blockwise = replace(config, attention="blockwise")
    parameters = random_parameters(config)
    for prefix in ([2, 5], [0, 300], [140, 290]):
        options = {"prefix": jnp.array(prefix), "segments": jnp.ones_like(inputs)}
        gradients, logits = gradients_of(blockwise, parameters, inputs, **options)
        expected, expected_logits = gradients_of(config, parameters, inputs, **options)
        close(logits, expected_logits)
        for name, gradient in expected.items():
            largest = np.abs(gradient).max()
            np.testing.assert_allclose(
                gradients[name], gradient, rtol=0, atol=2e-5 * largest, err_msg=name
            )


# Against the same model written out in NumPy ------------------------------------------------------

WRITTEN_OUT = tiny(
    position=Learned(max_length=16),
    **{"feed_forward.gated": False, "feed_forward.activation": "relu", "feed_forward.bias": True},
    num_kv_heads=6,
)


def rms(x, scale, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def written_out(parameters, ids, prefix):
    """The logits of one row, float64, with loops where the model has none."""
    block = "transformer.stack.group.0."
    get = {name: np.asarray(x, np.float64) for name, x in parameters.items()}
    eps, length = WRITTEN_OUT.norm.eps, len(ids)
    x = get["embedding.table"][ids] + get["transformer.inputs.position_table"][:length]
    for layer in range(WRITTEN_OUT.num_layers):
        part = {n.removeprefix(block): v[layer] for n, v in get.items() if n.startswith(block)}
        normed = rms(x, part["norms.0.scale"], eps)
        query, key, value = (
            np.einsum("td,dnh->tnh", normed, part[f"sublayers.0.attention.{name}.kernel"])
            for name in ("query", "key", "value")
        )
        mixed = np.zeros_like(query)
        for t in range(length):
            visible = [s for s in range(length) if s <= t or s < prefix]
            scores = np.einsum("nh,snh->sn", query[t], key[visible]) / 2.0  # sqrt(head_dim)
            weights = np.exp(scores - scores.max(0))
            mixed[t] = np.einsum("sn,snh->nh", weights / weights.sum(0), value[visible])
        x = x + np.einsum("tnh,nhd->td", mixed, part["sublayers.0.attention.output.kernel"])
        normed = rms(x, part["norms.1.scale"], eps)
        hidden = np.maximum(
            normed @ part["sublayers.1.up.kernel"] + part["sublayers.1.up.bias"], 0.0
        )
        x = x + hidden @ part["sublayers.1.down.kernel"] + part["sublayers.1.down.bias"]
    return rms(x, get["transformer.final_norm.scale"], eps) @ get["embedding.table"].T


def rows_of_the_objective(num_rows):
    """What the objective makes of rows of random tokens, the last one with padding."""
    make = PrefixLM(min_fraction=0.2, max_fraction=0.9).bind(None, LENGTH)
    random, examples = np.random.default_rng(0), []
    for row in range(num_rows):
        text = random.integers(0, 31, LENGTH + 1).astype(np.int32)
        valid = np.arange(LENGTH) < (5 if row == num_rows - 1 else LENGTH)
        examples.append(make(TokenRow(text[:-1], text[1:], valid, None, None), random))
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def test_the_loss_is_that_of_the_model_written_out():
    batch = rows_of_the_objective(6)
    assert len(set(batch["prefix"].tolist())) > 2
    parameters = random_parameters(WRITTEN_OUT)
    sums = jax.jit(lambda p, b: structure_of(WRITTEN_OUT).module(p).loss(b)[1])(parameters, batch)
    total, weight = 0.0, 0.0
    for ids, targets, weights, prefix in zip(
        *(batch[name] for name in ("inputs", "targets", "weights", "prefix")), strict=True
    ):
        logits = written_out(parameters, ids, prefix)
        for t in np.flatnonzero(weights):
            assert t >= prefix - 1  # what is predicted was not seen
            total += np.log(np.exp(logits[t]).sum()) - logits[t, targets[t]]
            weight += weights[t]
    np.testing.assert_allclose(sums["language_model"].loss, total, rtol=2e-5)
    assert float(sums["language_model"].weight) == weight
