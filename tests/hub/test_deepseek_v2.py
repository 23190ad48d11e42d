"""DeepSeek-V2 in its variants has the logits and gradients of transformers, and its texts."""

import pytest
from saved_folders import save_tiny
from variants import check_files, check_gradients, check_greedy_tokens, check_outputs, models

from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

VARIANTS = {
    "V2": {"q_lora_rank": 20, "attention_bias": False},
    "V2-Lite": {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "greedy ignores groups": {"topk_method": "greedy", "first_k_dense_replace": 0},
    "plain": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
}


@pytest.mark.torch
@pytest.mark.more
@pytest.mark.quick("V2")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_gradients_and_greedy_tokens_are_those_of_transformers(changes, tmp_path):
    ours, theirs = models(save_tiny("deepseek_v2", tmp_path / "theirs", **changes))
    inputs = example_inputs(ours.checkpoint, "left")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    check_greedy_tokens(ours, theirs)
    save(ours, tmp_path / "again")
    check_files(tmp_path / "again", tmp_path / "theirs")
    assert load(tmp_path / "again").config == ours.config
