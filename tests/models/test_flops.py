"""The formula for FLOPs against the matrix products that a decoder really makes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from tiny_models import structure_of, tiny, tiny_encoder_decoder

from jaxformer.functional import NoPosition
from jaxformer.nn import Parallel, VocabularyLogits

pytestmark = pytest.mark.optimized

BATCH, LENGTH = 2, 9
WIDE = {"head_dim": 6, "value_dim": 10}
CONFIGS = {
    "grouped and gated": tiny(),
    "multi-head, plain": tiny(num_kv_heads=6, **{"feed_forward.gated": False}, num_layers=1),
    "multi-query, untied": tiny(
        num_kv_heads=1, tie_embeddings=False, logits=VocabularyLogits(bias=True)
    ),
    "scanned, parallel": tiny(scan_layers=True, residual=Parallel(), num_layers=3),
    "other widths": tiny(**WIDE),
    "narrow embeddings": tiny(**{"embeddings.dim": 12, "embeddings.projection": "both"}),
}
TWO_STACKS = {"position": NoPosition(), "decoder_position": NoPosition()}
each = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def forward(config, parameters, inputs):
    return structure_of(config).module(parameters)(inputs).sum()


def decoded(config, parameters, source, inputs):
    model = structure_of(config).module(parameters)
    return model.logits(model.decode(inputs, model.encode(source)))


def arguments(config, *lengths):
    inputs = (jax.ShapeDtypeStruct((BATCH, length), jnp.int32) for length in lengths)
    return structure_of(config).shapes, *inputs


def product_flops(jaxpr):
    """2 FLOPs for each multiply-add of every `dot_general`; a loop's body as often as it runs."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * int(np.prod(out)) * int(np.prod([lhs[axis] for axis in contracted]))
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(product_flops(inner) for inner in jaxprs_in_params(equation.params))
    return total


def counted(function, config, *lengths):
    """For each token of the first input."""
    lengths = lengths or (LENGTH,)
    jaxpr = jax.make_jaxpr(partial(function, config))(*arguments(config, *lengths)).jaxpr
    return product_flops(jaxpr) / (BATCH * lengths[0])


gradient = jax.grad(forward, argnums=1)


@each
def test_forward_products_are_exactly_those_of_the_formula(config):
    flops = config.flops({"inputs": LENGTH})
    assert counted(forward, config) == flops.products + flops.attention


@pytest.mark.parametrize(
    "sizes",
    [{}, {"encoder_heads": 4, "encoder_mlp_dim": 9}, {"share_embeddings": False}],
    ids=str,
)
def test_each_stack_counts_by_its_tokens_and_widths(sizes):
    config = tiny_encoder_decoder(**TWO_STACKS, **WIDE, encoder_dim=12, **sizes)
    flops = config.flops({"inputs": 10, "decoder_inputs": 5})
    assert counted(decoded, config, 10, 5) == flops.products + flops.attention


@each
def test_a_training_step_makes_three_times_the_products(config):
    flops = config.flops({"inputs": LENGTH})
    assert counted(gradient, config) == flops.training(causal=False)


@pytest.mark.parametrize("scan", [False, True])
def test_remat_adds_what_it_recomputes(scan):
    config = tiny(scan_layers=scan)
    plain = config.flops({"inputs": LENGTH})
    dots, full = (
        counted(gradient, replace(config, remat=remat)) - plain.training(causal=False)
        for remat in ("dots", "full")
    )
    # No product with parameters is made twice, only (a part of) attention.
    assert 0 < dots <= plain.attention
    stack = plain.products - 2 * config.model_dim * config.vocab_size
    assert 0.7 * stack < full <= stack + plain.attention


@pytest.mark.parametrize("windows", [(None,), (4,), (1, 3), (100, None)])
def test_attention_counts_the_keys_of_the_window_or_of_the_mask(windows):
    config = tiny(windows=windows)
    query, key = np.mgrid[:LENGTH, :LENGTH]
    per_pair = 4 * config.num_heads * config.head_width * config.num_layers / len(windows)
    in_window = [min(w or LENGTH, LENGTH) for w in windows]
    allowed = [((key <= query) & (key > query - w)).sum() / LENGTH for w in in_window]
    flops = config.flops({"inputs": LENGTH})
    assert flops.attention == pytest.approx(per_pair * sum(in_window))
    assert flops.causal_attention == pytest.approx(per_pair * sum(allowed))
    assert flops.training(causal=True) == pytest.approx(
        3 * (flops.products + flops.causal_attention)
    )


def xla_flops(config, length):
    compiled = jax.jit(partial(forward, config)).lower(*arguments(config, length)).compile()
    return compiled.cost_analysis()["flops"] / (BATCH * length)


def test_xla_counts_the_same_and_a_few_elementwise_operations():
    config = tiny(num_layers=1, model_dim=256, head_dim=32, mlp_dim=320, vocab_size=700)
    length = 32
    flops = config.flops({"inputs": length})
    excess = xla_flops(config, length) - flops.products - flops.attention
    # XLA also counts elementwise operations: a few for each number that the model makes per token,
    # in the stream and its norms, the heads, the hidden layer, the logits and the attention
    # probabilities.
    numbers = 256 * 8 + 32 * (6 + 2 * 2) * 4 + 320 * 4 + 700 + 6 * length * 8
    assert 0 < excess < 4 * numbers
    assert excess < 0.03 * (flops.products + flops.attention)
