"""Sublayers, blocks and losses of one's own: those of `examples/own_parts.py`, and own widths."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    batch_for,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder_decoder,
    tokens,
)
from train_steps import program_of, stepped

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import load_config
from jaxformer.config.train import TrainConfig
from jaxformer.config.user_code import import_file
from jaxformer.distributed.sharding import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional import RoPE, Sinusoidal, causal, per_device
from jaxformer.functional.activations import with_cache
from jaxformer.functional.arrays import on_mesh, spec_of
from jaxformer.hub.describe import describe
from jaxformer.models import DecoderConfig, LanguageModel
from jaxformer.models.heads.base import LossOptions, class_loss
from jaxformer.nn import Attention, CacheShape, Context, SelfAttentionConfig
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.more

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_parts.py"
OWN = import_file(EXAMPLE)
SUBLAYERS = {name: parts for name, parts in OWN.PARTS.items() if parts}
IN_ATTENTIONS_PLACE = [name for name, parts in SUBLAYERS.items() if "self_attention" in parts]
each_part = pytest.mark.parametrize("part", SUBLAYERS)


def tiny_with(part, **changes) -> DecoderConfig:
    """A tiny decoder with a part, with N = K where the part asks for it."""
    sizes = {"num_heads": 6, "num_kv_heads": 2 if part == "differential" else 6, "model_dim": 20}
    fixed = {"position": Sinusoidal(theta=100.0)} | sizes
    return tiny(**(fixed | SUBLAYERS[part] | changes))


def model_with(config):
    return structure_of(config).module(random_parameters(config))


def first_sublayer(config):
    return model_with(config).transformer.stack.layers()[0].sublayers[0]


def projections(x, heads):
    """Queries, keys and values of states `[..., D]`, in NumPy."""
    kernels = (heads.query.kernel, heads.key.kernel, heads.value.kernel)
    return [np.einsum("...d,dnh->...nh", x, kernel[...]) for kernel in kernels]


# Each part as a part of a model -------------------------------------------------------------------


@each_part
@pytest.mark.quick("differential", "gru", "linear")
def test_no_token_sees_a_later_one(part):
    transformer = model_with(tiny_with(part)).transformer
    x = jax.random.normal(jax.random.key(1), (7, 20))
    jacobian = jax.jit(jax.jacrev(lambda x: transformer(x[None], mask=causal())[0]))(x)
    moved = np.abs(jacobian).max((1, 3))
    assert (np.triu(moved, 1) == 0).all()
    assert (np.diag(moved) > 0).all()
    if part not in ("gated", "convolution"):
        assert (moved[-1] > 0).all()


@each_part
@pytest.mark.quick("differential", "gru", "linear", "additive")
def test_steps_with_a_cache_give_the_states_of_whole_rows(part):
    model = model_with(tiny_with(part))
    inputs = tokens(3, 9)
    whole = jax.jit(model.hidden)(inputs)
    cache = model.init_cache(CacheShape(3, 9, 3, "float32"))
    step = jax.jit(lambda x, cache, count: model.step(x, cache, count=count))
    done = np.zeros(3, int)
    for counts in ([3, 1, 0], [2, 3, 3], [1, 3, 0], [3, 2, 3], [0, 0, 3]):
        places = np.minimum(done[:, None] + np.arange(3), 8)
        states, cache = step(np.take_along_axis(inputs, places, 1), cache, jnp.asarray(counts))
        for row, count in enumerate(counts):
            expected = whole[row, done[row] : done[row] + count]
            np.testing.assert_allclose(states[row, :count], expected, rtol=2e-5, atol=2e-5)
        done += counts
    assert (done == 9).all()
    # A row that begins anew starts from nothing.
    first, _ = step(inputs[:, :3], cache.reset(), jnp.full(3, 3))
    np.testing.assert_allclose(first, whole[:, :3], rtol=2e-5, atol=2e-5)
    assert cache.can_undo == (part not in ("linear", "gru", "convolution"))


@each_part
@pytest.mark.quick("gru")
def test_beams_take_their_caches_along(part):
    model = model_with(tiny_with(part))
    inputs = tokens(4, 5)
    cache = model.init_cache(CacheShape(4, 5, 4, "float32"))
    _, cache = jax.jit(model.step)(inputs[:, :4], cache)
    chosen = np.array([[1, 1], [1, 0]])
    rows = np.add(chosen, [[0], [2]]).reshape(-1)
    cache = jax.jit(lambda cache: cache.reorder(jnp.asarray(chosen)))(cache)
    states, _ = jax.jit(model.step)(inputs[:, 4:][rows], cache)
    expected = jax.jit(model.hidden)(inputs)[rows][:, 4:]
    np.testing.assert_allclose(states, expected, rtol=2e-5, atol=2e-5)


@each_part
def test_every_kernel_counts_as_flops(part):
    config = tiny_with(part)
    names = structure_of(config).kernels
    sizes = [structure_of(config).shapes[name].size for name in names if "stack" in name]
    products = config.num_layers * sum(x.products(config) for x in config.sublayers)
    if part == "macaron":
        products += config.num_layers * config.feed_forward.products(config)
    assert sum(sizes) == products


@pytest.mark.slow
def test_activations_of_own_parts_have_names():
    config = tiny_with("macaron", self_attention=OWN.AdditiveAttention())
    model = model_with(config)
    wanted = "blocks.1.*"
    _, found = with_cache(model.hidden, wanted)(tokens(2, 5))
    assert found["blocks.1.attn.hook_pattern"].shape == (2, 6, 5, 5)
    assert {"blocks.1.mlp.hook_post", "blocks.1.mlp_2.hook_post"} <= found.keys()


# Against formulas ---------------------------------------------------------------------------------


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def test_differential_attention_is_the_papers():
    config = tiny(
        num_heads=6, num_kv_heads=2, head_dim=8, value_dim=6, position=RoPE(theta=100.0),
        self_attention=OWN.DifferentialAttention(),
    )  # fmt: skip
    heads = first_sublayer(config).attention
    x = np.random.default_rng(0).normal(size=(1, 5, 20)).astype("f4")
    found = jax.jit(lambda x: heads(x, mask=causal(), positions=np.arange(5)[None]))(x)
    q, k, v = projections(x[0], heads)
    k, v = k.repeat(3, 1), v.repeat(3, 1)
    q1, k1, q2, k2 = (np.asarray(each[...]) for each in heads.lambdas)
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + 0.8
    maps = []
    for part in (slice(4), slice(4, 8)):
        turned = config.position.rotate(
            q[None, ..., part], k[None, ..., part], *[np.arange(5)[None]] * 2
        )
        logits = np.einsum("tnh,snh->nts", *(np.asarray(each[0]) for each in turned)) / 2
        maps.append(softmax(np.where(np.tri(5) > 0, logits, -np.inf)))
    z = np.einsum("nts,snh->tnh", maps[0] - factor * maps[1], v)
    z = z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-5) * np.asarray(heads.norm.scale[...]) * 0.2
    expected = np.einsum("tnh,nhd->td", z, heads.output.kernel[...])
    np.testing.assert_allclose(found[0], expected, rtol=2e-4, atol=2e-5)


def test_additive_attention_is_bahdanaus():
    heads = first_sublayer(tiny_with("additive")).attention
    x = np.random.default_rng(0).normal(size=(2, 5, 20)).astype("f4")
    found = heads(x, mask=causal(), positions=np.arange(5)[None])
    q, k, v = projections(x, heads)
    expected = np.zeros_like(x)
    for t in range(5):
        scores = np.tanh(q[:, None, t] + k[:, : t + 1]) * np.asarray(heads.score_bias[...])
        weights = softmax(scores.sum(-1).transpose(0, 2, 1))
        z = np.einsum("bns,bsnh->bnh", weights, v[:, : t + 1])
        expected[:, t] = np.einsum("bnh,nhd->bd", z, heads.output.kernel[...])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_linear_attention_is_a_recurrence():
    layer = first_sublayer(tiny_with("linear"))
    x = np.random.default_rng(0).normal(size=(1, 6, 20)).astype("f4")
    found = layer(x, Context(np.arange(6)[None], causal()), None)
    heads = layer.heads

    def features(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    q, k, v = projections(x[0], heads)
    state, total = np.zeros((6, 4, 4)), np.zeros((6, 4))
    for t in range(6):
        state += features(k[t])[:, :, None] * v[t][:, None]
        total += features(k[t])
        z = np.einsum("nh,nhv->nv", features(q[t]), state)
        z /= np.einsum("nh,nh->n", features(q[t]), total)[:, None]
        expected = np.einsum("nh,nhd->d", z, heads.output.kernel[...])
        np.testing.assert_allclose(found[0, t], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
def test_the_gru_is_that_of_torch():
    torch = pytest.importorskip("torch")
    layer = first_sublayer(tiny_with("gru"))
    theirs = torch.nn.GRU(20, 20, batch_first=True)
    weights = zip(("ih", "hh"), (layer.inputs, layer.recurrent), strict=True)
    for name, ours in weights:
        getattr(theirs, f"weight_{name}_l0").data = torch.tensor(np.array(ours.kernel[...]).T)
        getattr(theirs, f"bias_{name}_l0").data = torch.tensor(np.array(ours.bias[...]))
    x = np.random.default_rng(0).normal(size=(2, 7, 20)).astype("f4")
    found = layer(jnp.asarray(x), Context(np.arange(7)[None], causal()), None)
    states = theirs(torch.tensor(x))[0].detach().numpy()
    np.testing.assert_allclose(found, states @ layer.output.kernel[...], rtol=2e-5, atol=2e-5)


# The loss -----------------------------------------------------------------------------------------


def test_a_mixture_of_losses():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 5, 7)).astype("f4")
    targets, weights = random.integers(0, 7, (2, 5)), np.array([[1, 1, 1, 2, 0], [0, 1, 1, 1, 1.0]])
    targets[0, 4] = -100
    mixture = OWN.Mixture(focal=0.5, gamma=2.0, unlikelihood=0.3)
    found = class_loss(
        logits, jnp.asarray(targets), jnp.asarray(weights, "f4"), LossOptions(function=mixture)
    )
    p, total = softmax(logits), 0.0
    for row in range(2):
        for t in np.flatnonzero(weights[row]):
            y = p[row, t, targets[row, t]]
            earlier = [
                s for s in range(t) if weights[row, s] and targets[row, s] != targets[row, t]
            ]
            unlikely = -sum(np.log(1 - p[row, t, targets[row, s]]) for s in earlier)
            total += weights[row, t] * (
                -np.log(y) - 0.5 * (1 - y) ** 2 * np.log(y) + 0.3 * unlikely
            )
    np.testing.assert_allclose(found.loss, total, rtol=1e-5)
    assert found.weight == weights.sum()
    plain = class_loss(logits, jnp.asarray(targets), jnp.asarray(weights, "f4"), LossOptions())
    assert found.correct == plain.correct


def test_a_loss_replaces_all_terms_of_the_cross_entropy():
    for name, value in {"label_smoothing": 0.1, "z_loss": 1e-4, "loss_chunk": 4}.items():
        with pytest.raises(
            ConfigError, match=rf"train\.{name} = {value}: must be .* with train.loss"
        ):
            TrainConfig(loss=OWN.Mixture(), **{name: value})


# Own widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.slow
def test_an_encoder_and_a_decoder_of_different_width(share):
    sizes = {"encoder_dim": 12, "encoder_heads": 4, "encoder_mlp_dim": 9}
    sizes |= {"head_dim": 6, "value_dim": 10}
    config = tiny_encoder_decoder(**sizes, share_embeddings=share)
    model = model_with(config)
    batch = {name: jnp.asarray(x) for name, x in batch_for(config, rows=3).items()}
    outputs = jax.jit(model.outputs)(batch)
    assert outputs.hidden.shape == (3, 5, 20)
    memory = jax.jit(model.encode)(batch["inputs"])
    assert memory.shape == (3, 7, 12)
    whole, step = jax.jit(model.decode)(batch["decoder_inputs"], memory), jax.jit(model.step)
    cache = model.init_cache(CacheShape(3, 5, 5, "float32"), memory)
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        states, cache = step(batch["decoder_inputs"][:, start:stop], cache)
        np.testing.assert_allclose(states, whole[:, start:stop], rtol=2e-5, atol=2e-5)
    assert set(config.batch_spec(3, {"inputs": 7, "decoder_inputs": 5})) <= set(batch)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (tiny_with("differential"), "model.self_attention = DifferentialAttention()"),
        (tiny_with("macaron"), "model.block = Macaron()"),
        (tiny(value_dim=10, heads=(LanguageModel(),)), "value_dim = 10"),
        (tiny_encoder_decoder(encoder_dim=12), "encoder_dim = 12"),
        (tiny_encoder_decoder(encoder_heads=4, num_kv_heads=None), "encoder_heads = 4"),
    ],
    ids=["attention", "block", "values", "encoder", "heads"],
)
@pytest.mark.quick("heads", "values")
def test_no_format_says_them(config, said):
    with pytest.raises(ConfigError, match="no known system") as error:
        describe(config, FORMATS.values())
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# On meshes ----------------------------------------------------------------------------------------


def losses_on(config, sizes):
    """The losses of three steps."""
    program = program_of(config, sizes, OWN.get_config().optimizer, steps=3)
    batch = batch_for(config, rows=8)
    batch = {name: batch[name] for name in config.batch_spec(8, {"inputs": 7}) if name in batch}
    _, history = stepped(program, batch, steps=3)
    return [metrics["loss"] for metrics in history]


def sharded_with(part):
    """A model that can be cut four ways."""
    return tiny_with(part, model_dim=24, num_heads=4, num_kv_heads=4, mlp_dim=16, vocab_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["differential", "additive", "linear", "gru", "gated", "macaron"])
def test_rows_may_be_cut_over_devices(part):
    config = sharded_with(part)
    np.testing.assert_allclose(
        losses_on(config, (2, 2, 1)), losses_on(config, (1, 1, 1)), rtol=1e-4
    )


@pytest.mark.slow
def test_heads_may_be_cut_where_each_device_treats_its_own():
    config = sharded_with("differential")
    np.testing.assert_allclose(
        losses_on(config, (1, 1, 2)), losses_on(config, (1, 1, 1)), rtol=1e-4
    )


@dataclass(frozen=True)
class Reshaped(SelfAttentionConfig):
    """Attention that reshapes heads of queries without a word about sharding."""

    def build(self, key, config, position, window):
        class Reshaping(Attention):
            def queries(self, x, factor=None):
                query = super().queries(x, factor)
                return OWN._halves(query).reshape(query.shape)

        return jaxformer.nn.SelfAttention(key, config, position, window, Reshaping)


@pytest.mark.slow
def test_what_a_mesh_refuses_says_what_to_write():
    config = replace(sharded_with("gated"), self_attention=Reshaped())
    assert np.isfinite(losses_on(config, (1, 1, 1))).all()
    with pytest.raises(
        ConfigError, match=r"SelfAttention cannot run on a mesh of \{'tensor': 2\}"
    ) as error:
        losses_on(config, (1, 1, 2))
    assert "jaxformer.functional.per_device(function, *arrays)" in str(error.value)


def test_a_function_of_each_devices_rows_and_heads():
    x = np.random.default_rng(0).normal(size=(4, 3, 4, 6)).astype("f4")

    def merge(x):
        return x.reshape(*x.shape[:2], -1)

    np.testing.assert_array_equal(per_device(merge, x), merge(x))
    mesh = make_mesh(MeshConfig(2, 1, 2), jax.devices()[:4])
    with on_mesh(mesh):
        placed = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data", None, "tensor", None)))
        found = jax.jit(lambda x: per_device(merge, x))(placed)
        assert spec_of(found)[2] == "tensor"
    np.testing.assert_array_equal(found, merge(x))


# Runs ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", OWN.PARTS)
def test_a_run_is_trained_resumed_generated_from_and_not_exported(part, tmp_path, capsys):
    spec = f"{EXAMPLE}:{part}"
    assert load_config(spec).model is not None
    small = "--data.source.max-bytes 100000 --train.sample-tokens 0 --train.eval-interval 4"
    small += " --train.checkpoint-interval 2 --data.max-validation-batches 1"
    once, twice = str(tmp_path / "once"), str(tmp_path / "twice")
    for run, steps in ((once, "4"), (twice, "2"), (twice, "4")):
        short = ["--train.steps", steps, *small.split()]
        assert main(["train", spec, "--run-dir", run, *short]) == 0
    capsys.readouterr()
    hashes = []
    for run in (once, twice):
        assert main(["inspect", run]) == 0
        hashes.append([x for x in capsys.readouterr().out.splitlines() if "content hash" in x])
    assert hashes[0] == hashes[1] != []
    for options in ([], ["--num-beams", "2"]):
        assert main(["generate", once, "--prompt", "def", "--max-new-tokens", "4", *options]) == 0
    assert main(["evaluate", once]) == 0
    capsys.readouterr()
    if part != "mixture":
        assert main(["export", once, str(tmp_path / "exported")]) != 0
        error = capsys.readouterr().err
        assert "no known system" in error
        assert "Traceback" not in error
