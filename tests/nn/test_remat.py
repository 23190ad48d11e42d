"""Remat by name: the same gradients from fewer activations, some of them on the host."""

from dataclasses import replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny

from jaxformer.config import Config
from jaxformer.config.overrides import parse
from jaxformer.functional import causal
from jaxformer.io.serialization import from_json, to_json
from jaxformer.nn import Context, Stack
from jaxformer.nn.config import RematNames

B, T, L = 5, 9, 3
POLICIES = {
    "kernel": RematNames(save=("attention_context",)),
    "products": RematNames(save=("query_key_value", "mlp_hidden")),
    "host": RematNames(
        save=("mlp_input", "attention_output"), offload=("block_input", "attention_context")
    ),
}


def config_with(remat):
    return tiny(num_layers=L, compute_dtype="float32", attention="blockwise", remat=remat)


def stack_of(config):
    block = partial(config.block.build, sublayers=config.sublayers)
    group = (partial(block, config=config, position=config.position, window=None),)
    return lambda: Stack(jax.random.key(0), L, group)


def run(stack, x, remat, scan=True):
    return stack(x, Context(jnp.arange(T)[None], causal()), None, scan=scan, remat=remat)


@lru_cache
def gradients(remat):
    config = config_with(remat)
    stack = jax.jit(stack_of(config))()
    x = jax.random.normal(jax.random.key(1), (B, T, config.model_dim))
    found = jax.jit(jax.grad(lambda stack, x: jnp.sum(run(stack, x, remat) ** 2), (0, 1)))
    return jax.tree.map(np.asarray, jax.tree.leaves(found(stack, x)))


@pytest.mark.first("dots", "kernel")
@pytest.mark.parametrize("name", [*POLICIES, "dots", "full"])
@pytest.mark.quick("dots", "host", "kernel")
def test_gradients_are_those_without_remat(name):
    found = gradients(POLICIES.get(name, name))
    for actual, expected in zip(found, gradients("none"), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def numbers_of_a_token(config):
    """The numbers that each name keeps of a token."""
    heads, kv_heads = config.num_heads * config.head_width, config.kv_heads * config.head_width
    states = dict.fromkeys(
        ("block_input", "mlp_input", "mlp_output", "attention_output"), config.model_dim
    )
    return states | {
        "mlp_hidden": config.mlp_dim * (2 if config.feed_forward.gated else 1),
        "query_key_value": heads + 2 * kv_heads,
        "attention_context": heads + config.num_heads,  # and the logs of the sums
    }


def kept_bytes(remat, scan):
    """Of what each layer of a stack really keeps, parameters aside."""
    config = config_with(remat)
    x = jax.ShapeDtypeStruct((B, T, config.model_dim), jnp.float32)
    stack = jax.eval_shape(stack_of(config))
    runs = partial(run, remat=remat, scan=scan)
    pullback = jax.eval_shape(lambda *args: jax.vjp(runs, *args)[1], stack, x)
    tokens = (L, B) if scan else (B,)
    arrays = [a for a in jax.tree.leaves(pullback) if a.shape[: len(tokens)] == tokens]
    return sum(a.size * a.dtype.itemsize for a in arrays) // L


KEPT = {"full": set(), "dots": {"query_key_value", "attention_output", "mlp_hidden"}} | {
    name: {*policy.save, *policy.offload} for name, policy in POLICIES.items()
}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_a_layer_keeps_its_input_and_what_is_named(name, scan):
    numbers = numbers_of_a_token(config_with("none"))
    kept = sum(numbers[each] for each in {"block_input"} | KEPT[name])
    assert kept_bytes(POLICIES.get(name, name), scan) == 4 * B * T * kept


def test_what_is_offloaded_waits_on_the_host():
    remat = POLICIES["host"]
    config = config_with(remat)
    x = jax.ShapeDtypeStruct((B, T, config.model_dim), jnp.float32)
    total = jax.grad(lambda stack, x: jnp.sum(run(stack, x, remat)))
    program = str(jax.make_jaxpr(total)(jax.eval_shape(stack_of(config)), x))
    assert f"<host>[{L},{B},{T},{config.model_dim}]" in program


def test_the_command_line_and_a_file_can_choose_names():
    words = "--model.remat RematNames --model.remat.save mlp_hidden mlp_input"
    words += " --model.remat.offload block_input"
    config = parse(Config(model=tiny()), words.split(), "train")
    expected = RematNames(save=("mlp_hidden", "mlp_input"), offload=("block_input",))
    assert config.model.remat == expected
    assert from_json(to_json(config), Config) == config
    back = parse(config, ["--model.remat", "full"], "train")
    assert back.model == replace(config.model, remat="full")
