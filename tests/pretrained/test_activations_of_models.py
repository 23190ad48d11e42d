"""Activations of loaded models: under every transformation of JAX, and what is said of mistakes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.distributed.sharding import MeshConfig, make_mesh
from jaxformer.errors import ArgumentError, DataError
from jaxformer.functional.hooks import add_vector, at_positions, replace_with, zero_head

pytestmark = pytest.mark.torch

IDS = np.random.default_rng(0).integers(8, 30, (2, 7))
MASK = np.array([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
INPUTS = {"input_ids": IDS, "attention_mask": MASK}
Z = "blocks.1.attn.hook_z"
WIDTH = 48


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return jaxformer.load(save_tiny("gpt2", tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module")
def plain(gpt2):
    return jaxformer.run_with_cache(gpt2, INPUTS)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_outputs_are_those_of_forward_and_names_have_shapes(gpt2, plain):
    outputs, cache = plain
    for name, array in jaxformer.forward(gpt2, INPUTS).items():
        close(outputs[name], array)
    named = jaxformer.activation_names(gpt2, INPUTS)
    assert {name: x.shape for name, x in cache.items()} == {n: x.shape for n, x in named.items()}
    assert list(cache) == list(named), "compiled or not, in the order of computation"
    assert (next(iter(cache)), list(cache)[-1]) == ("hook_embed", "ln_final.hook_out")
    assert list(jaxformer.activation_names(gpt2, INPUTS, "*.1.attn.hook_z")) == [Z]


def test_attentions_and_hidden_states_are_activations(gpt2, plain):
    found = jaxformer.forward(gpt2, INPUTS, output_attentions=True, output_hidden_states=True)
    for layer, weights in enumerate(found["attentions"]):
        close(weights, plain[1][f"blocks.{layer}.attn.hook_pattern"])
    for layer, state in enumerate(found["hidden_states"][1:-1]):
        close(state, plain[1][f"blocks.{layer}.hook_resid_post"])


@pytest.mark.slow
def test_a_zeroed_head_adds_nothing(gpt2, plain):
    hooks = {"blocks.0.attn.hook_z": zero_head(2)}
    _, cache = jaxformer.run_with_cache(gpt2, INPUTS, ["blocks.0.attn.hook_z", "*.0.hook_attn_out"])
    kernel = gpt2.model.transformer.stack.layers()[0].sublayers[0].attention.output
    written = jnp.einsum("btnh,nhd->btnd", cache["blocks.0.attn.hook_z"], kernel.kernel[...])
    expected = plain[1]["blocks.0.hook_attn_out"] - written[:, :, 2]
    replaced = {"blocks.0.hook_attn_out": replace_with(expected)}
    close(
        jaxformer.run_with_hooks(gpt2, INPUTS, hooks)["logits"],
        jaxformer.run_with_hooks(gpt2, INPUTS, replaced)["logits"],
    )


@pytest.mark.more
def test_patching_from_another_run_gives_that_run(gpt2):
    """From a layer on, the residual stream is all that counts."""
    other = INPUTS | {"input_ids": IDS[::-1].copy()}
    outputs, cache = jaxformer.run_with_cache(gpt2, other, "blocks.1.hook_resid_pre")
    hooks = {name: replace_with(array) for name, array in cache.items()}
    close(jaxformer.run_with_hooks(gpt2, other, hooks)["logits"], outputs["logits"])
    some = {"blocks.1.hook_resid_pre": at_positions((5,), add_vector(np.arange(WIDTH) / 9))}
    moved = jaxformer.run_with_hooks(gpt2, other, some)["logits"] - outputs["logits"]
    assert np.abs(moved[:, :5]).max() < 1e-5 < 1e-3 < np.abs(moved[:, 5:]).min(-1).max()


def test_vmap_over_inputs_and_jit(gpt2, plain):
    def one(ids, mask):
        inputs = {"input_ids": ids[None], "attention_mask": mask[None]}
        return jaxformer.run_with_cache(gpt2, inputs, Z)

    outputs, cache = jax.jit(jax.vmap(one))(IDS, MASK)
    close(outputs["logits"][:, 0], plain[0]["logits"])
    close(cache[Z][:, 0], plain[1][Z])


@pytest.mark.slow
def test_gradients_by_parameters_and_by_a_steering_vector(gpt2):
    name = next(name for name in gpt2.parameters if name.endswith("query.kernel"))

    def total(parameters, vector):
        model = replace(gpt2, parameters=parameters)
        hooks = {"blocks.1.hook_resid_pre": add_vector(vector)}
        return jaxformer.run_with_hooks(model, INPUTS, hooks)["logits"][0, -1, 3]

    vector = jnp.zeros(WIDTH)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=WIDTH), jnp.float32)
    by_parameters, by_vector = jax.grad(total, (0, 1))(gpt2.parameters, vector)
    assert np.abs(by_parameters[name]).max() > 0
    step = 1e-2 * direction
    slope = float(total(gpt2.parameters, step) - total(gpt2.parameters, -step)) / 2e-2
    assert by_vector @ direction == pytest.approx(slope, rel=2e-2, abs=1e-4)


def last_logit(outputs):
    return outputs["logits"][1, -1, 5]


def test_gradients_by_activations(gpt2):
    found = jaxformer.activation_gradients(gpt2, INPUTS, last_logit, [Z, "blocks.0.*.hook_pattern"])
    assert sorted(found) == ["blocks.0.attn.hook_pattern", Z]
    assert not found[Z][0].any()
    direction = np.random.default_rng(2).normal(size=found[Z].shape).astype(np.float32)

    def total(size):
        return last_logit(jaxformer.run_with_hooks(gpt2, INPUTS, {Z: add_vector(direction, size)}))

    slope = float(total(1e-2) - total(-1e-2)) / 2e-2
    assert (found[Z] * direction).sum() == pytest.approx(slope, rel=2e-2, abs=1e-4)


def squares(outputs):
    return jnp.square(outputs["logits"]).mean()


@pytest.mark.slow
def test_sharded_is_unsharded(tmp_path):
    folder = save_tiny("gpt2", tmp_path, n_embd=32, n_head=4, vocab_size=32)
    whole = jaxformer.load(folder)
    cut = jaxformer.load(folder, mesh=make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    inputs = {name: np.repeat(array, 2, axis=0) for name, array in INPUTS.items()}
    hooks = {"blocks.0.attn.hook_z": zero_head(1), "*hook_resid_mid": add_vector(np.arange(32.0))}
    names = ["*hook_pattern", "*hook_attn_scores", "*.1.mlp.hook_post"]
    expected, of_one = jaxformer.run_with_cache(whole, inputs, names)
    actual, of_many = jaxformer.run_with_cache(cut, inputs, names)
    close(actual["logits"], expected["logits"])
    for name, array in of_one.items():
        close(of_many[name], array)
    expected = jaxformer.run_with_hooks(whole, inputs, hooks)["logits"]
    close(jaxformer.run_with_hooks(cut, inputs, hooks)["logits"], expected)
    for model in (whole, cut):
        gradients = jaxformer.activation_gradients(model, inputs, squares, "*.1.attn.hook_z")
        if model is whole:
            expected = gradients[Z]
    close(gradients[Z], expected)


def test_mistakes_are_named(gpt2):
    with pytest.raises(ArgumentError, match=r"did you mean 'blocks\.\d\.attn\.hook_pattern'"):
        jaxformer.run_with_cache(gpt2, INPUTS, "blocks.*.attn.hook_patern")
    with pytest.raises(ArgumentError, match=r"did you mean 'blocks\.\d\.hook_resid_pre'"):
        jaxformer.run_with_hooks(gpt2, INPUTS, {"blocks.77.hook_resid_pre": zero_head(0)})
    with pytest.raises(ArgumentError, match=r"heads = \(60,\)"):
        jaxformer.run_with_hooks(gpt2, INPUTS, {Z: zero_head(60)})
    with pytest.raises(ArgumentError, match="must be a mapping from names to functions"):
        jaxformer.run_with_hooks(gpt2, INPUTS, [zero_head(0)])
    with pytest.raises(ArgumentError, match="output_attentions = 3"):
        jaxformer.forward(gpt2, INPUTS, output_attentions=3)
    with pytest.raises(ArgumentError, match="metric = 3"):
        jaxformer.activation_gradients(gpt2, INPUTS, 3)
    with pytest.raises(ArgumentError, match="pretrained is a dict"):
        jaxformer.run_with_cache({}, INPUTS)
    with pytest.raises(DataError, match="the vocabulary has 0 to"):
        jaxformer.run_with_cache(gpt2, {"input_ids": IDS + 10**6})
    with pytest.raises(DataError, match="inputs: nonsense is not known"):
        jax.vmap(lambda ids: jaxformer.run_with_cache(gpt2, {"nonsense": ids}))(IDS)


def test_a_model_without_attention_probabilities_says_so(gpt2, monkeypatch):
    monkeypatch.setattr("jaxformer.nn.attention.attention", lambda query, *_, **__: query)
    model = replace(gpt2)
    with pytest.raises(ArgumentError, match="no layer of the model has attention probabilities"):
        jaxformer.forward(model, INPUTS, output_attentions=True)
