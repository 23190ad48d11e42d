"""DeepSeek-V3 in its variants has the logits of transformers, and generates the same tokens."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import change_tensors, save_tiny
from variants import check_greedy_tokens, check_outputs, models

from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import save_random
from jaxformer.pretrained.auto import load

PROMPTS = np.array([[7, 3, 90, 11, 5], [60, 2, 2, 17, 33]])
VARIANTS = {
    "published": {"attention_bias": False},
    "one query projection": {"q_lora_rank": None},
    "halves": {"rope_interleave": False, "rope_parameters": {"rope_type": "default"}},
    "no dense layer": {"first_k_dense_replace": 0, "norm_topk_prob": False},
    "dense layers alone": {"first_k_dense_replace": 3},
}


@pytest.mark.torch
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick("published")
def test_logits_and_greedy_tokens_are_those_of_transformers(changes, tmp_path):
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


@pytest.mark.slow
@pytest.mark.torch
def test_the_layer_that_predicts_a_second_token_is_left_out(tmp_path):
    save_random("deepseek_v3", "DeepseekV3ForCausalLM", tmp_path)
    expected = load(tmp_path).outputs({"input_ids": PROMPTS})["logits"]
    path = tmp_path / "model.safetensors"
    more = {"model.layers.61.eh_proj.weight": np.ones((48, 96), np.float32)}
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    np.testing.assert_array_equal(
        load(tmp_path).outputs({"input_ids": PROMPTS})["logits"], expected
    )
