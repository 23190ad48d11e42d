"""The names of a model's activations, that they are what the model computes, and cost nothing."""

import re
from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import (
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_vision,
    tokens,
)

from jaxformer.functional import (
    LayerNorm,
    RMSNorm,
    RoPE,
    Sinusoidal,
    attention,
    causal,
    feedforward,
)
from jaxformer.functional.activations import tap, with_cache, with_hooks
from jaxformer.functional.attention import api, reference
from jaxformer.nn import (
    Block,
    BranchNorm,
    Context,
    FeedForward,
    NormLayer,
    Parallel,
    PostNorm,
    PreNorm,
    SandwichNorm,
    SelfAttention,
    inputs,
    residual,
    stack,
    transformer,
)
from jaxformer.nn import attention as nn_attention
from jaxformer.nn.cache import CacheShape

pytestmark = pytest.mark.more

IDS = tokens(2, 7)
ATTENTION = ["hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern", "hook_z"]
ROTATED = [*ATTENTION[:3], "hook_rot_q", "hook_rot_k", *ATTENTION[3:]]


@lru_cache
def model_of(config):
    return structure_of(config).module(random_parameters(config))


@lru_cache
def recorded(config):
    """All activations of a decoder or an encoder."""
    return jax.jit(with_cache(model_of(config).hidden))(IDS)


def names_of(run, *arguments):
    """The names of all activations, in the order in which they are computed."""
    names = []
    jax.eval_shape(lambda: names.extend(with_cache(run)(*arguments)[1]))
    return names


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def norm(name):
    return [f"{name}.hook_normalized", f"{name}.hook_out"]


START, END = ["hook_resid_pre"], ["hook_resid_post"]
ATTN = [*(f"attn.{name}" for name in ATTENTION)]
MLP = [f"mlp.{name}" for name in ("hook_pre", "hook_pre_linear", "hook_post")]
OUT, MIDDLE = ["hook_attn_out"], ["hook_resid_mid"]
MLP_OUT = ["hook_mlp_out"]


def test_a_decoder_has_the_names_of_transformer_lens():
    attn = [f"attn.{name}" for name in ROTATED]
    block = [*START, *norm("ln1"), *attn, *OUT, *MIDDLE, *norm("ln2"), *MLP, *MLP_OUT, *END]
    names = [f"blocks.{layer}.{name}" for layer in range(2) for name in block]
    config = tiny(position=RoPE(theta=100.0))
    found = names_of(model_of(config).hidden, IDS)
    assert found == ["hook_embed", *names, *norm("ln_final")]
    cache = recorded(config)[1]
    assert cache["blocks.1.attn.hook_k"].shape == (2, 7, 2, 4)
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 6, 7, 7)
    assert cache["blocks.1.mlp.hook_post"].shape == (2, 7, 14)


N1, N2 = norm("ln1"), norm("ln2")
AFTER1, AFTER2 = norm("ln1_post"), norm("ln2_post")
ORDER = {
    "pre": (PreNorm(), [N1, ATTN, OUT, MIDDLE, N2, MLP, MLP_OUT, END]),
    "post": (
        PostNorm(),
        [ATTN, OUT, MIDDLE, N1, MLP, MLP_OUT, END, N2, ["hook_normalized_resid_post"]],
    ),
    "branch": (BranchNorm(), [ATTN, N1, OUT, MIDDLE, MLP, N2, MLP_OUT, END]),
    "sandwich": (
        SandwichNorm(),
        [N1, ATTN, AFTER1, OUT, MIDDLE, N2, MLP, AFTER2, MLP_OUT, END],
    ),
    "parallel": (Parallel(), [N1, ATTN, OUT, MLP, MLP_OUT, END]),
    "parallel apart": (Parallel(shared_norm=False), [N1, ATTN, OUT, N2, MLP, MLP_OUT, END]),
}


@pytest.mark.parametrize(("arrangement", "names"), ORDER.values(), ids=ORDER)
@pytest.mark.quick("pre", "post", "parallel")
def test_the_stream_of_every_arrangement(arrangement, names):
    names = [*START, *(name for part in names for name in part)]
    config = tiny(residual=arrangement, position=Sinusoidal(theta=100.0), num_layers=1)
    found = names_of(model_of(config).hidden, IDS)
    prefix = "blocks.0."
    assert [name[len(prefix) :] for name in found if name.startswith(prefix)] == names
    hidden, cache = recorded(config)
    block = {name: cache[prefix + name] for name in names}
    written = block["hook_attn_out"], block["hook_mlp_out"]
    read = block["hook_resid_pre"]
    close(cache["hook_embed"] + cache["hook_pos_embed"], read)
    middle = block.get("hook_resid_mid", read + written[0])
    close(middle, read + written[0])
    if isinstance(arrangement, PostNorm):
        middle = block["ln1.hook_out"]
    close(block["hook_resid_post"], middle + written[1])
    last = block.get("hook_normalized_resid_post", block["hook_resid_post"])
    close(hidden, cache.get("ln_final.hook_out", last))


def test_attention_from_its_own_activations():
    config = tiny(position=RoPE(theta=100.0), **{"self_attention.softcap": 3.0}, windows=(None, 3))
    cache = recorded(config)[1]
    query, key, value, scores, pattern, z = (
        cache[f"blocks.1.attn.{name}"] for name in [*ROTATED[3:5], "hook_v", *ATTENTION[3:]]
    )
    key, value = (jnp.repeat(x, 3, axis=2) for x in (key, value))
    logits = 3 * jnp.tanh(jnp.einsum("btnh,bsnh->bnts", query, key) / 2 / 3)
    distance = np.arange(7)[:, None] - np.arange(7)
    seen = (distance >= 0) & (distance < 3)
    np.testing.assert_array_equal(np.isneginf(scores), np.broadcast_to(~seen, scores.shape))
    close(np.where(seen, scores, 0), np.where(seen, logits, 0))
    close(pattern, jax.nn.softmax(np.where(seen, logits, -np.inf)))
    close(z, jnp.einsum("bnts,bsnh->btnh", pattern, value))


PATCHES = {"hook_attn_scores": (0.0, -jnp.inf), "hook_pattern": (1.0, 0.0)}


@pytest.mark.parametrize(("name", "values"), PATCHES.items(), ids=PATCHES)
def test_patched_probabilities_change_what_follows(name, values):
    """Each token is made to attend to itself alone."""
    model = model_of(tiny(position=RoPE(theta=100.0)))
    alone = jnp.where(jnp.eye(7, dtype=bool), *values)
    hooks = {f"blocks.0.attn.{name}": lambda x: jnp.broadcast_to(alone, x.shape)}
    cache = jax.jit(with_cache(with_hooks(model.hidden, hooks), "blocks.0.attn.hook_[vz]"))(IDS)[1]
    value = jnp.repeat(cache["blocks.0.attn.hook_v"], 3, axis=2)
    close(cache["blocks.0.attn.hook_z"], value)


def test_masked_scores_have_finite_gradients():
    model = model_of(tiny(position=RoPE(theta=100.0)))

    @jax.jit
    def total(slope):
        hooks = {"*.hook_attn_scores": lambda x: x + slope * jnp.arange(7.0)[None, None, None]}
        return jnp.square(with_hooks(model.hidden, hooks)(IDS)[..., :3]).sum()

    change = float(total(0.503) - total(0.497)) / 0.006
    assert jax.grad(total)(0.5) == pytest.approx(change, rel=2e-2)


NORMS = {
    "layer": LayerNorm(eps=1e-3),
    "rms": RMSNorm(eps=1e-3),
    "one more": RMSNorm(eps=1e-3, unit_offset=True),
    "bare": LayerNorm(bias=False, scale=False),
}


@pytest.mark.parametrize("kind", NORMS.values(), ids=NORMS)
def test_a_norm_has_names_before_and_behind_its_parameters(kind):
    layer = NormLayer(jax.random.key(0), kind, 20)
    for parameter in jax.tree.leaves(nnx.state(layer)):
        assert parameter.shape == (20,)
    nnx.update(layer, jax.tree.map(lambda x: x + jnp.arange(20.0) / 7, nnx.state(layer)))
    x = jax.random.normal(jax.random.key(1), (2, 20))
    y, cache = with_cache(layer.named)("ln", x)
    close(cache["ln.hook_out"], layer(x))
    close(cache["ln.hook_normalized"], kind(x, None))
    # A hook that changes nothing but takes the other way.
    close(with_hooks(layer.named, {"ln.hook_normalized": lambda x: x + 0})("ln", x), y)
    twice = with_hooks(layer.named, {"ln.hook_normalized": lambda x: 2 * x})("ln", x)
    bias = 0 if layer.bias is None else layer.bias[...][None]
    close(twice, 2 * y - bias)


CONFIGS = {
    "decoder": tiny(position=RoPE(theta=100.0), num_layers=4, windows=(None, 3)),
    "repeats": tiny(position=RoPE(theta=100.0), num_layers=4, layer_repeats=2),
    "encoder": tiny_encoder(),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.quick("full-repeats")
def test_scanned_layers_are_those_that_are_recorded(config, remat):
    config = replace(config, scan_layers=True, remat=remat)
    model = model_of(config)
    key = jax.random.key(3)
    expected = jax.jit(model.hidden)(IDS, key=key)
    hidden, cache = jax.jit(with_cache(model.hidden, "blocks.*.hook_resid_post"))(IDS, key=key)
    close(hidden, expected)
    assert len(cache) == config.num_layers


def test_layers_are_numbered_as_they_are_applied():
    """Layers that share parameters, in groups of two, have separate numbers."""
    config = tiny(num_layers=4, layer_repeats=2, windows=(None, 3))
    patterns = with_cache(model_of(config).hidden, "blocks.*.attn.hook_pattern")
    cache = jax.jit(patterns)(IDS)[1]
    found = sorted(int(name.split(".")[1]) for name in cache)
    assert found == list(range(4))
    ahead = np.tril(np.ones((7, 7)), -3) > 0
    windowed = [not (cache[f"blocks.{i}.attn.hook_pattern"][..., ahead] > 0).any() for i in found]
    assert windowed == [False, True] * 2


def test_encoder_decoders_have_two_stacks():
    config = tiny_encoder_decoder(num_layers=2, num_decoder_layers=3)
    model, targets = model_of(config), tokens(2, 5, seed=1)
    scores, cache = jax.jit(with_cache(model))(IDS, targets)
    close(scores, jax.jit(model)(IDS, targets))
    stacks = {name.partition(".")[0] for name in cache}
    assert stacks == {"encoder", "decoder"}
    assert cache["decoder.blocks.2.cross_attn.hook_pattern"].shape == (2, 6, 5, 7)
    assert cache["encoder.blocks.1.attn.hook_pattern"].shape == (2, 6, 7, 7)
    block = {name.removeprefix("decoder.blocks.2."): x for name, x in cache.items()}
    x = block["hook_resid_pre"]
    for written, stream in {
        "hook_attn_out": "hook_resid_mid",
        "hook_cross_attn_out": "hook_resid_mid_cross",
        "hook_mlp_out": "hook_resid_post",
    }.items():
        x = x + block[written]
        close(block[stream], x)
    assert {"ln1.hook_out", "ln2.hook_out", "ln3.hook_out"} <= set(block)


def test_images_are_embedded_before_their_positions():
    model = model_of(tiny_vision())
    images = jax.random.normal(jax.random.key(0), (2, 8, 12, 2))
    cache = jax.jit(with_cache(model.hidden, ["hook_*", "*.0.hook_resid_pre"]))(images)[1]
    close(cache["hook_embed"] + cache["hook_pos_embed"], cache["blocks.0.hook_resid_pre"])
    assert cache["hook_embed"].shape == (2, 9, 20)


def test_embeddings_of_types_and_their_norm():
    model = model_of(tiny_encoder())
    types = {"token_types": IDS % 3}
    names = ["hook_embed", "hook_pos_embed", "hook_token_type_embed"]
    cache = with_cache(model.transformer.inputs)(
        model.embedding(IDS, "float32"), jnp.arange(7)[None], types
    )[1]
    total = sum(cache[name] for name in names)
    layer = model.transformer.inputs.embedding_norm
    close(layer(total), cache["embed.ln.hook_out"])
    moved = with_hooks(model.hidden, {"hook_pos_embed": lambda x: x + 1})
    first = jax.jit(with_cache(moved, "blocks.0.hook_resid_pre"))(IDS, type_ids=types)[1]
    close(layer(total + 1), first["blocks.0.hook_resid_pre"])


def test_sublayers_of_one_name_are_numbered():
    config = tiny(norm=LayerNorm(eps=1e-5))
    keys = jax.random.split(jax.random.key(0), 3)
    sublayers = [
        SelfAttention(keys[0], config, RoPE()),
        *[FeedForward(k, config) for k in keys[1:]],
    ]
    block = Block(keys[0], config, sublayers)
    x, context = jnp.ones((1, 3, 20)), Context(jnp.arange(3)[None], causal())
    cache = names_of(lambda: block(x, context, None))
    assert {"hook_mlp_out", "hook_mlp_2_out", "mlp_2.hook_pre", "hook_resid_mid_mlp"} <= set(cache)


def test_a_pass_with_a_cache_has_the_same_names():
    config = tiny(position=RoPE(theta=100.0))
    model, whole = model_of(config), recorded(config)[1]
    cache, parts = model.init_cache(CacheShape(2, capacity=8, chunk=4, storage="float32")), []
    for part in (IDS[:, :4], IDS[:, 4:6], IDS[:, 6:]):
        (_, cache), found = jax.jit(with_cache(model.step))(part, cache)
        parts.append(found)
    names = set(whole) - {n for n in whole if n.endswith(("hook_attn_scores", "hook_pattern"))}
    assert set(whole) == set(parts[0])
    for name in names:
        close(jnp.concatenate([part[name] for part in parts], axis=1), whole[name])


MODULES = (nn_attention, inputs, residual, stack, transformer, feedforward, reference)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.quick("encoder")
def test_where_nothing_is_asked_the_program_is_the_same(kind, monkeypatch):
    config = CONFIGS[kind]
    model = model_of(config)

    def program():
        lowered = jax.jit(lambda ids: model.hidden(ids)).lower(IDS)
        # Without the places in source files, of which there are tables too.
        text = re.sub(r", metadata=\{[^}]*\}", "", lowered.compile().as_text())
        return lowered.as_text(), text[text.index("\n%") :]

    named = program()
    jax.eval_shape(with_hooks(with_cache(model.hidden), {"hook_embed": jnp.zeros_like}), IDS)
    again = program()
    for module in MODULES:
        for name, nothing in {"tap": lambda name, x: x, "is_active": lambda: False}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, nothing)
    monkeypatch.setattr(api, "is_wanted", lambda *names: False)
    monkeypatch.setattr(inputs, "is_wanted", lambda *names: False)
    assert program() == named == again


@pytest.mark.slow
def test_the_usual_kernel_runs_unless_probabilities_are_wanted(monkeypatch):
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 4))
    chosen = []
    monkeypatch.setattr(api, "_choose", lambda *_: chosen.append(1) or reference.attend)

    def attend(**options):
        return attention(x, x, x, mask=causal(), implementation="blockwise", **options)

    with_cache(lambda: tap("x", attend()), "x")()
    assert len(chosen) == 1
    with_cache(attend, "hook_pattern")()
    assert len(chosen) == 1
    weights = attend(return_weights=True)[1]
    (out, again), cache = with_cache(attend, "hook_pattern")(return_weights=True)
    close(again, weights)
    close(cache["hook_pattern"], weights)
    close(out, attend())
