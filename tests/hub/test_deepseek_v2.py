"""DeepSeek-V2 in its variants has the logits and gradients of transformers, and its texts."""

import pytest
from saved_folders import save_tiny
from variants import check_files, check_gradients, check_greedy_tokens, check_outputs, models

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("norm_topk_prob", True),
        ("mlp_bias", True),
    ],
)
def test_another_router_is_refused(field, value):
    values = {"model_type": "deepseek_v2", "num_experts_per_tok": 6, field: value}
    with pytest.raises(ConfigError, match=field):
        read_checkpoint(HFConfig(values), FORMATS)
