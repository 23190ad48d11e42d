"""Hooks inside a cached generation do what they do where everything is computed again."""

import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional.hooks import add_vector, at_heads, at_positions, mean_ablation, zero_head

pytestmark = pytest.mark.torch

RNG = np.random.default_rng(0)
IDS = RNG.integers(8, 30, (2, 21))
MASK = np.ones_like(IDS)
MASK[1, :3] = 0
STEER = 3 * RNG.normal(size=30).astype(np.float32)
NEW = 6
OPTIONS = {"max_new_tokens": NEW, "eos_token_id": None, "do_sample": False}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return jaxformer.load(save_tiny("llama", tmp_path_factory.mktemp("llama")))


def greedily(model, inputs, hooks, ids="input_ids", mask="attention_mask"):
    """The new tokens, all of the text computed again for each of them."""
    rows = inputs[ids].shape[0]
    inputs = inputs | {mask: inputs.get(mask, np.ones_like(inputs[ids]))}
    for _ in range(NEW):
        logits = jaxformer.run_with_hooks(model, inputs, hooks)["logits"]
        chosen = np.asarray(logits[:, -1].argmax(-1))[:, None]
        inputs |= {ids: np.concatenate([inputs[ids], chosen], 1)}
        inputs |= {mask: np.concatenate([inputs[mask], np.ones((rows, 1), int)], 1)}
    return inputs[ids][:, -NEW:]


def width(model):
    return model.config.model_dim


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_steering_is_that_of_recomputing(llama, padded):
    hooks = {
        "blocks.0.hook_resid_mid": add_vector(np.resize(STEER, width(llama))),
        "blocks.1.attn.hook_z": zero_head(1),
        "blocks.*.attn.hook_pattern": at_heads((2,), _halved, axis=1),
    }
    inputs = {"input_ids": IDS} | ({"attention_mask": MASK} if padded else {})
    found = jaxformer.generate(llama, inputs, hooks=hooks, **OPTIONS)["sequences"][:, -NEW:]
    np.testing.assert_array_equal(found, greedily(llama, inputs, hooks))
    plain = jaxformer.generate(llama, inputs, **OPTIONS)["sequences"][:, -NEW:]
    assert (found != plain).any()


def _halved(x):
    return x / 2


@pytest.mark.slow
def test_encoder_and_decoder_are_steered(t5):
    vector = add_vector(np.resize(STEER, width(t5)))
    hooks = {
        "encoder.blocks.0.hook_resid_pre": vector,
        "decoder.blocks.1.cross_attn.hook_k": zero_head(0),
        "decoder.blocks.1.hook_resid_mid": vector,
    }
    start = np.full((2, 1), 1)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": start}
    found = jaxformer.generate(t5, inputs, hooks=hooks, **OPTIONS)["sequences"][:, -NEW:]
    expected = greedily(t5, inputs, hooks, "decoder_input_ids", "decoder_attention_mask")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_beams_and_windows_that_slide_run_with_hooks(llama):
    hooks = {"blocks.0.hook_resid_mid": add_vector(np.resize(STEER, width(llama)))}
    inputs = {"input_ids": IDS}
    one = jaxformer.generate(llama, inputs, hooks=hooks, **OPTIONS)
    two = jaxformer.generate(llama, inputs, num_beams=3, hooks=hooks, **OPTIONS)
    plain = jaxformer.generate(llama, inputs, num_beams=3, **OPTIONS)
    assert (two["sequences_scores"] != plain["sequences_scores"]).any()
    total = one["log_probs"].sum(1) / NEW
    assert (two["sequences_scores"] >= total - 1e-4).all()  # Beams find nothing worse here.


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"blocks.*.hook_resid_mid": at_positions((1,), zero_head(0))}, "must change each token"),
        ({"blocks.*.hook_resid_mid": at_heads((1,), mean_ablation())}, "must change each token"),
        ({"blocks.9.hook_resid_mid": zero_head(0)}, "must match an activation; did you mean"),
        ({"blocks.0.attn.hook_z": zero_head(77)}, r"heads = \(77,\)"),
        ([zero_head(1)], "must be a mapping from names to functions"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(llama, hooks, message):
    with pytest.raises(ArgumentError, match=message):
        jaxformer.generate(llama, {"input_ids": IDS}, hooks=hooks, max_new_tokens=2)


def test_hooks_do_not_go_with_a_draft(llama):
    hooks = {"blocks.0.attn.hook_z": zero_head(0)}
    with pytest.raises(ConfigError, match="hooks: not with a draft: leave one of them out"):
        jaxformer.generate(llama, {"input_ids": IDS}, hooks=hooks, draft=llama)
