"""Decoders with experts against transformers: balancing losses, texts, files, and DeepSeek."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import assert_same_parameters, change_settings, change_tensors, save_tiny
from variants import check_greedy_tokens, check_outputs, check_variant, models

import jaxformer
from jaxformer.functional.losses.terms import collect_terms, with_products
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load

pytestmark = pytest.mark.torch

KINDS = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
TOLERANCE = 2e-5


def both(kind, folder):
    change_settings(save_tiny(kind, folder), router_aux_loss_coef=0.5)
    return models(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("mixtral")
def test_the_balancing_loss_and_its_gradients(kind, tmp_path):
    ours, theirs = both(kind, tmp_path / "model")
    inputs = example_inputs(ours.checkpoint, "left", length=17)
    mask = np.asarray(inputs["attention_mask"])
    theirs.model.config.output_router_logits = True
    expected = theirs.forward(inputs).aux_loss

    def own(parameters):
        model = ours.abstract_model.module(parameters)
        batch = {"inputs": inputs["input_ids"], "segments": mask}
        _, terms = collect_terms(model.outputs)(batch)
        return with_products(terms)["weighted", "balance_loss"]

    value, found = jax.jit(jax.value_and_grad(own))(ours.parameters)
    np.testing.assert_allclose(value, 0.5 * expected.detach().numpy(), rtol=1e-5)
    theirs.model.zero_grad()
    (0.5 * expected).backward()
    wanted = {name: p.grad for name, p in theirs.model.named_parameters() if p.grad is not None}
    tensors = dict(tensors_of(found, ours.placements))
    compared = 0
    for name, gradient in wanted.items():
        name = name.replace("mlp.gate.", "block_sparse_moe.gate.") if kind == "mixtral" else name
        if name in tensors:  # the experts' are apart in files
            largest = float(gradient.abs().max())
            np.testing.assert_allclose(
                tensors[name], gradient.numpy(), atol=TOLERANCE * largest, err_msg=name
            )
            compared += 1
    assert compared > 3 * ours.config.num_layers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_generated_tokens(kind, tmp_path):
    import torch

    ours, theirs = both(kind, tmp_path / "model")
    random = np.random.default_rng(0)
    ids, mask = random.integers(6, 131, (3, 9)), np.ones((3, 9), int)
    mask[0, :4] = mask[2, :1] = 0
    inputs = {"input_ids": np.where(mask, ids, 5), "attention_mask": mask}
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": 130}
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    expected = theirs.model.generate(**tensors, **options).numpy()
    found = jaxformer.generate(ours, inputs, max_new_tokens=24, eos_token_id=130)["sequences"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.more
@pytest.mark.quick("mixtral", "deepseek_v3")
@pytest.mark.parametrize("kind", [*KINDS, "deepseek_v3"])
def test_files_with_all_experts_in_one_tensor(kind, tmp_path):
    apart, together, again = (tmp_path / each for each in ("apart", "together", "again"))
    _, theirs = models(save_tiny(kind, apart))
    theirs.model.save_pretrained(together, save_original_format=False)
    tensors = load_file(together / "model.safetensors")
    assert any(each.endswith("experts.gate_up_proj") for each in tensors)
    expected, found = load(apart), load(together)
    assert found.config == expected.config
    assert_same_parameters(found, expected)
    jaxformer.save(found, again)
    tensors, saved = (load_file(each / "model.safetensors") for each in (apart, again))
    assert tensors.keys() == saved.keys()


def test_noise_of_routers_is_left_out_with_a_warning(tmp_path):
    save_tiny("mixtral", tmp_path, router_jitter_noise=0.1)
    with pytest.warns(UserWarning, match="router_jitter_noise = 0.1"):
        load(tmp_path)


SECOND = {
    "V2": {"q_lora_rank": 20, "attention_bias": False, "num_hidden_layers": 2},
    "V2-Lite": {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "greedy ignores groups": {"topk_method": "greedy", "first_k_dense_replace": 0},
    "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
}
THIRD = {
    "published": {"attention_bias": False, "num_hidden_layers": 2},
    "one query projection": {"q_lora_rank": None},
    "halves": {"rope_interleave": False, "rope_parameters": {"rope_type": "default"}},
    "no dense layer": {"first_k_dense_replace": 0, "norm_topk_prob": False},
    "dense layers alone": {"first_k_dense_replace": 3},
}


@pytest.mark.quick("V2")
@pytest.mark.parametrize("changes", SECOND.values(), ids=SECOND)
def test_logits_gradients_and_texts_of_deepseek_v2(changes, tmp_path):
    check_variant(tmp_path, "deepseek_v2", changes)
    check_greedy_tokens(*models(tmp_path))


@pytest.mark.parametrize("changes", THIRD.values(), ids=THIRD)
@pytest.mark.quick("published")
def test_logits_and_texts_of_deepseek_v3(changes, tmp_path):
    save_tiny("deepseek_v3", tmp_path, **changes)
    random = np.random.default_rng(0)

    def with_biases_of_the_router(tensors):
        for name in tensors:
            if name.endswith("e_score_correction_bias"):
                tensors[name] = random.normal(0, 0.3, tensors[name].shape).astype(np.float32)

    change_tensors(tmp_path, with_biases_of_the_router)
    ours, theirs = models(tmp_path)
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "left"))
    check_greedy_tokens(ours, theirs)
