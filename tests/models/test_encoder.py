"""Encoders: who sees whom, what padding and packing may not change, and shared layers."""

from dataclasses import replace
from functools import partial

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import assert_gradients_close
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import (
    SCHEMES,
    batch_for,
    close,
    hidden_of,
    influence,
    loss_and_gradients_of,
    packed,
    padded,
    random_parameters,
    scores_of,
    structure_of,
    tiny_encoder,
    tokens,
)

from jaxformer.functional import NoPosition, T5Bias
from jaxformer.models import Classification, MaskedLanguageModel
from jaxformer.nn import PreNorm

BOTH_WAYS = SCHEMES | {"t5": T5Bias(8, 12, bidirectional=True)}
with_scheme = pytest.mark.parametrize("position", BOTH_WAYS.values(), ids=BOTH_WAYS)


@pytest.mark.first("*learned")
@with_scheme
@pytest.mark.quick("*learned", "*t5")
def test_every_output_depends_on_every_input(position):
    config = tiny_encoder(position=position)
    assert (influence(config, 7, random_parameters(config)) > 0).all()


def test_without_positions_permuted_tokens_give_permuted_outputs():
    config, ids = tiny_encoder(position=NoPosition()), tokens(2, 7)
    hidden = partial(hidden_of, config, random_parameters(config))
    plain = hidden(ids)

    @given(order=st.permutations(range(7)))
    def check(order):
        close(hidden(ids[:, jnp.array(order)]), plain[:, jnp.array(order)])

    check()


@with_scheme
@pytest.mark.quick("*learned", "*rope_half", "*t5")
def test_with_positions_the_order_of_tokens_matters(position):
    config, ids = tiny_encoder(position=position), tokens(2, 7)
    hidden = partial(hidden_of, config, random_parameters(config))
    # Shifted by three: even a scheme of distances tells that from the plain order.
    moved = jnp.roll(hidden(jnp.roll(ids, 3, axis=1)), -3, axis=1)
    assert jnp.abs(moved - hidden(ids)).max() > 1e-2


POOLED = tuple(
    Classification(label=pooling, pooling=pooling) for pooling in ("first", "last", "mean")
)


@with_scheme
@pytest.mark.parametrize("attention", ["reference", "blockwise"])
@pytest.mark.quick("*rope_half")
def test_padding_on_either_side_changes_nothing(position, attention):
    heads = (MaskedLanguageModel(), *POOLED)
    config = tiny_encoder(position=position, attention=attention, heads=heads)
    parameters, inputs = random_parameters(config), tokens(2, 5)
    alone = scores_of(config, parameters, {"inputs": inputs})
    batch, places = padded(inputs, 8, starts=(3, 0))
    scores = scores_of(config, parameters, batch)
    close(scores["masked_language_model"][places], alone["masked_language_model"])
    for head in POOLED:
        close(scores[head.name], alone[head.name], err_msg=head.name)
    chex.assert_tree_all_finite(scores)


@with_scheme
@pytest.mark.quick("*t5")
def test_packed_documents_are_as_separate_ones(position):
    config, documents = tiny_encoder(position=position), tokens(2, 5)
    parameters = random_parameters(config)
    scores = scores_of(config, parameters, packed(documents))["masked_language_model"][0]
    separate = scores_of(config, parameters, {"inputs": documents})["masked_language_model"]
    close(scores[:10].reshape(separate.shape), separate)
    assert jnp.isfinite(scores).all()


@pytest.mark.more
@pytest.mark.parametrize("scan", [pytest.param(False, marks=pytest.mark.slow), True])
def test_shared_layers_are_copies_of_one_another(scan):
    """Equal values, and a gradient that is the sum over the copies."""
    shared = tiny_encoder(num_layers=4, layer_repeats=2, scan_layers=scan)
    apart = replace(shared, layer_repeats=1)
    parameters, batch = random_parameters(shared), batch_for(shared)

    def copied(name, x):
        return jnp.repeat(x, 2, axis=0) if "stack" in name else x

    copies = {name: copied(name, x) for name, x in parameters.items()}
    loss, gradients = loss_and_gradients_of(shared, parameters, batch)
    expected_loss, expected = loss_and_gradients_of(apart, copies, batch)
    close(loss, expected_loss)
    totals = {
        name: x.reshape(-1, 2, *x.shape[1:]).sum(1) if "stack" in name else x
        for name, x in expected.items()
    }
    assert_gradients_close(gradients, totals)


@pytest.mark.more
def test_kinds_that_are_not_given_are_the_first():
    config = tiny_encoder(**{"embeddings.task_types": 2})
    parameters, batch = random_parameters(config), {"inputs": tokens(2, 5)}
    zeros = {name: jnp.zeros((2, 5), jnp.int32) for name in ("token_types", "task_types")}
    plain = scores_of(config, parameters, batch)
    chex.assert_trees_all_close(scores_of(config, parameters, batch | zeros), plain, rtol=1e-6)
    for name in zeros:
        other = scores_of(config, parameters, batch | {name: zeros[name].at[:, 2].set(1)})
        for head, scores in other.items():
            assert jnp.abs(scores - plain[head]).max() > 1e-2, (name, head)


def test_windows_reach_as_far_ahead_as_back():
    """After one layer with a window of 3, a state depends on two tokens on either side."""
    config = tiny_encoder(num_layers=1, windows=(3,))
    seen = influence(config, 9, random_parameters(config)) > 0
    distances = np.subtract.outer(np.arange(9), np.arange(9))
    np.testing.assert_array_equal(seen, np.abs(distances) <= 2)


def test_the_first_norm_can_only_be_left_out_of_a_layer_of_its_own():
    config = tiny_encoder(residual=PreNorm(first_norm=False), windows=(None, 3))
    norms = [name for name in structure_of(config).shapes if ".norms.0.scale" in name]
    assert norms == ["transformer.stack.group.1.norms.0.scale"]


def test_a_second_scheme_counts_places_whatever_the_positions_are():
    config = tiny_encoder(relative_position=T5Bias(8, 12, bidirectional=True))
    parameters = random_parameters(config)
    ids, same = tokens(2, 7), jnp.zeros((1, 7), jnp.int32)
    silent = parameters | {"transformer.inputs.relative_table": jnp.zeros((8, 6))}
    without = hidden_of(config, silent, ids, positions=same)
    assert jnp.abs(hidden_of(config, parameters, ids, positions=same) - without).max() > 1e-2
    plain = {name: x for name, x in parameters.items() if "relative" not in name}
    close(without, hidden_of(tiny_encoder(), plain, ids, positions=same))


def test_biases_of_each_layers_own():
    """With equal tables in all layers it is the model that shares one."""
    shared = tiny_encoder(position=T5Bias(8, 12, bidirectional=True))
    own = tiny_encoder(position=T5Bias(8, 12, bidirectional=True, shared=False))
    parameters = random_parameters(shared)
    table = parameters.pop("transformer.inputs.position_table")
    name = "transformer.stack.group.0.sublayers.0.position_table"
    assert structure_of(own).shapes[name].shape == (2, 8, 6)
    ids = tokens(2, 7)
    with_table = parameters | {"transformer.inputs.position_table": table}
    expected = hidden_of(shared, with_table, ids)
    equal, other = (
        hidden_of(own, parameters | {name: jnp.stack([table, second])}, ids)
        for second in (table, -table)
    )
    close(equal, expected)
    assert jnp.abs(other - expected).max() > 1e-2
