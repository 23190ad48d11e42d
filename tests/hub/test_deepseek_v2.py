"""DeepSeek-V2 in its variants has the logits and gradients of transformers, and its texts."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxformer.errors import ConfigError
from jaxformer.generation.api import generate
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.parity.reference import save_random
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

PROMPTS = np.array([[7, 3, 90, 11, 5], [60, 2, 2, 17, 33]])
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
    import torch
    import transformers

    theirs, again = tmp_path / "theirs", tmp_path / "again"
    save_random("deepseek_v2", "DeepseekV2ForCausalLM", theirs, pad_token_id=None, **changes)
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(theirs, dtype=torch.float32, experts_implementation="eager")
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    ids = torch.tensor(PROMPTS)
    result = model.eval()(ids, labels=ids)
    result.loss.backward()
    expected = result.logits.detach().numpy()
    ours = load(theirs)
    logits = ours.outputs({"input_ids": PROMPTS})["logits"]
    np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())
    texts = model.generate(ids, **options).numpy()
    found = generate(ours, {"input_ids": PROMPTS}, **options)["sequences"]
    np.testing.assert_array_equal(found, texts)

    batch = {"inputs": PROMPTS[:, :-1], "targets": PROMPTS[:, 1:]}
    batch = {name: jnp.asarray(x) for name, x in batch.items()} | {"weights": jnp.ones((2, 4))}

    def loss(parameters):
        _, sums = ours.abstract_model.module(parameters).loss(batch)
        return sum(each.loss for each in sums.values()) / 8

    gradients = dict(tensors_of(jax.jit(jax.grad(loss))(ours.parameters), ours.placements))
    compared = 0
    for name, parameter in model.named_parameters():
        if name in gradients and parameter.grad is not None:
            wanted = parameter.grad.numpy()
            largest = np.abs(wanted).max()
            np.testing.assert_allclose(gradients[name], wanted, atol=2e-5 * largest, err_msg=name)
            compared += 1
        elif name.endswith(("gate_up_proj", "down_proj")):
            path, _, fused = name.rpartition(".")
            parts = ("gate_proj", "up_proj") if fused == "gate_up_proj" else ("down_proj",)
            own = np.stack(
                [
                    np.concatenate([gradients[f"{path}.{e}.{part}.weight"] for part in parts])
                    for e in range(len(parameter))
                ]
            )
            wanted = parameter.grad.numpy()
            largest = np.abs(wanted).max()
            np.testing.assert_allclose(own, wanted, atol=2e-5 * largest, err_msg=name)
            compared += 1
        else:
            raise AssertionError(name)
    assert compared > 20

    save(ours, again)
    values = json.loads((again / "config.json").read_text())
    assert values["model_type"] == "deepseek_v2"
    assert load(again).config == ours.config
    saved, tensors = (load_file(each / "model.safetensors") for each in (again, theirs))
    assert saved.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(saved[name], tensor)


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
