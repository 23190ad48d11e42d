"""DeepSeek-V2 and -V3 in their variants have the logits of transformers, and its texts."""

import numpy as np
import pytest
from saved_folders import change_tensors, save_tiny
from variants import check_files, check_gradients, check_greedy_tokens, check_outputs, models

from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch

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
def test_logits_gradients_and_texts_of_the_second_version(changes, tmp_path):
    ours, theirs = models(save_tiny("deepseek_v2", tmp_path / "theirs", **changes))
    inputs = example_inputs(ours.checkpoint, "left")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    check_greedy_tokens(ours, theirs)
    save(ours, tmp_path / "again")
    check_files(tmp_path / "again", tmp_path / "theirs")
    assert load(tmp_path / "again").config == ours.config


@pytest.mark.parametrize("changes", THIRD.values(), ids=THIRD)
@pytest.mark.quick("published")
def test_logits_and_texts_of_the_third_version(changes, tmp_path):
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
