"""DeepSeek's latent attention is its definition, and its cache holds latents alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64 import filled, normalised, projected, stream
from tiny_models import random_parameters, structure_of, tiny, tokens

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.sharding import batch_sharding, parameter_shardings
from jaxformer.errors import ConfigError
from jaxformer.functional import Mask, RMSNorm, RoPE, YaRN, causal
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import Engine, row_keys
from jaxformer.generation.inputs import Prompts
from jaxformer.generation.tokens import new_tokens
from jaxformer.nn import Context, LatentAttention
from jaxformer.nn.cache import CacheShape

T, THETA = 6, 100.0
POSITIONS = jnp.array([[0, 1, 2, 3, 4, 5], [7, 9, 10, 11, 15, 16]])
LATENT = LatentAttention(rank=5, query_rank=7, rope_dim=4, norm=RMSNorm(eps=1e-2))
CASES = {
    "low-rank queries": LATENT,
    "whole queries": replace(LATENT, query_rank=None),
    "biases": replace(LATENT, bias=True, scale=0.7),
}
each_case = pytest.mark.parametrize("settings", CASES.values(), ids=CASES)


def config_of(settings=LATENT, **changes):
    sizes = {"num_kv_heads": None, "head_dim": 10, "value_dim": 6}
    position = RoPE(theta=THETA, layout="interleaved")
    return tiny(**({"position": position} | sizes | changes), self_attention=settings)


def made(config):
    def build(key):
        return config.self_attention.build(key, config, config.position, None)

    return filled(jax.eval_shape(build, jax.random.key(0)))


def turned(x):
    """Interleaved RoPE as multiplication by complex numbers."""
    half = x.shape[-1] // 2
    angles = np.asarray(POSITIONS)[..., None, None] / THETA ** (np.arange(half) / half)
    rotated = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def written_out(layer, x, scale):
    """The definition with keys and values for each head, in float64."""
    query = projected(layer.query, x)
    if layer.query_up is not None:
        query = projected(layer.query_up, normalised(query, layer.query_norm))
    latent = normalised(projected(layer.value, x), layer.value_norm)[:, :, 0]
    shared = np.repeat(turned(projected(layer.key, x)), 6, axis=2)
    key = np.concatenate([projected(layer.key_up, latent), shared], axis=-1)
    query = np.concatenate([query[..., :6], turned(query[..., 6:])], axis=-1)
    logits = scale * np.einsum("btnh,bsnh->bnts", query, key)
    weights = np.exp(logits) * np.tri(T)
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum("bnts,bsnh->btnh", weights, projected(layer.value_up, latent))
    return projected(layer.output, output)


@each_case
@pytest.mark.parametrize("way", ["_with_heads", "_with_latents"])
def test_it_is_its_definition_in_either_order_of_the_products(settings, way, monkeypatch):
    sublayer = made(config_of(settings))
    layer = sublayer.attention
    monkeypatch.setattr(layer, "attended", getattr(layer, way))
    actual = sublayer(stream(T), Context(positions=POSITIONS, mask=causal()), None)
    expected = written_out(layer, stream(T), settings.scale or 10**-0.5)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_few_queries_meet_the_latents_and_many_have_keys_and_values_of_their_own(monkeypatch):
    layer, taken = made(config_of(replace(LATENT, rank=32))).attention, []
    for way in ("_with_heads", "_with_latents"):
        monkeypatch.setattr(layer, way, lambda query, *_, way=way, **__: taken.append(way) or query)
    for length, num_keys in ((1, 1), (1, 50), (3, 50), (50, 50)):
        arrays = [jnp.zeros((1, n, 1, 1)) for n in (length, num_keys, num_keys)]
        layer.attended(*arrays, mask=Mask())
    assert taken == ["_with_heads", "_with_latents", "_with_latents", "_with_heads"]


def test_the_cache_holds_a_latent_and_a_rotated_key():
    config = config_of()
    model = structure_of(config).module(random_parameters(config))
    cache = model.init_cache(CacheShape(1, capacity=9, chunk=1, storage="float32"))
    numbers = sum(x.size for x in jax.tree.leaves(cache.layers))
    assert numbers == config.num_layers * 9 * (LATENT.rank + LATENT.rope_dim)


def test_yarn_raises_the_temperature_of_the_logits():
    scaling = YaRN(40.0, original_max_length=16, mscale=1.0, mscale_all_dim=1.0)
    config = config_of(position=RoPE(theta=THETA, scaling=scaling))
    factor = (0.1 * np.log(40) + 1) ** 2
    assert made(config).attention.scale == pytest.approx(factor * 10**-0.5)
    assert made(config_of()).attention.scale == pytest.approx(10**-0.5)
    given = config_of(replace(LATENT, scale=0.5), position=config.position)
    assert made(given).attention.scale == 0.5


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3], [8, 9, 7, 9, 3]]


def generated(engine, **changes):
    decoding = GenerationConfig(max_new_tokens=6, **changes)
    return new_tokens(engine, Prompts.of_rows(PROMPTS), decoding, row_keys(0, np.arange(3)))


@pytest.mark.slow
def test_generation_scores_each_token_as_the_whole_row_does():
    config = config_of(replace(LATENT, rank=8), windows=(3, None))
    parameters = random_parameters(config)
    found = generated(Engine(config, structure_of(config), parameters))
    for row, prompt in enumerate(PROMPTS):
        whole = jnp.asarray([[*prompt, *found.tokens[row]]])
        scores = jax.nn.log_softmax(structure_of(config).module(parameters)(whole)[0])
        expected = [scores[len(prompt) - 1 + n, token] for n, token in enumerate(found.tokens[row])]
        np.testing.assert_allclose(found.log_probs[row], expected, atol=2e-5)


@pytest.mark.slow
def test_on_several_devices_it_is_what_it_is_on_one():
    """The hidden states of whole rows, their gradients, and the tokens that follow prompts."""
    sizes = {"model_dim": 24, "mlp_dim": 12, "vocab_size": 36, "num_heads": 4}
    # As wide as this, whole rows have keys and values for each head, and single tokens do not.
    config = config_of(replace(LATENT, rank=8), attention="blockwise", **sizes)
    structure, parameters = structure_of(config), random_parameters(config)
    inputs = tokens(6, 7)

    @jax.jit
    def run(parameters, inputs):
        def total(parameters):
            hidden = structure.module(parameters).hidden(inputs)
            return jnp.sum(jnp.sin(hidden)), hidden

        gradients, hidden = jax.grad(total, has_aux=True)(parameters)
        return hidden, gradients

    expected = run(parameters, inputs)
    one = generated(Engine(config, structure, parameters))
    mesh = make_mesh(MeshConfig(fsdp=3, tensor=2))
    placed = jax.device_put(parameters, parameter_shardings(mesh, structure.axes, structure.shapes))
    with jax.set_mesh(mesh):
        actual = run(placed, jax.device_put(inputs, batch_sharding(mesh)))
    several = generated(Engine(config, structure, placed, mesh))
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5 * max(1, np.abs(y).max()))
    np.testing.assert_array_equal(several.tokens, one.tokens)
    np.testing.assert_allclose(several.log_probs, one.log_probs, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "changes", "field"),
    [
        (replace(LATENT, rope_dim=10), {}, "self_attention.rope_dim"),
        (LATENT, {"num_kv_heads": 2}, "num_kv_heads = 2"),
        (LATENT, {"position": RoPE(values=True)}, "values=False"),
        (replace(LATENT, rope_dim=3), {}, "fraction"),
    ],
)
def test_what_does_not_fit_is_refused(settings, changes, field):
    with pytest.raises(ConfigError, match=field):
        config_of(settings, **changes)
