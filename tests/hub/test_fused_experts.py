"""Experts in files: all in one tensor, or in the four bits of gpt-oss."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from variants import check_greedy_tokens, check_outputs

from jaxformer.errors import DataError
from jaxformer.hub.weights.tensors import Mxfp4Tensors, Tensor, TensorFiles
from jaxformer.hub.weights.views.fused_experts import SplitExperts, names_of_experts
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}


def test_one_tensor_is_read_as_the_kernels_of_each_expert(tmp_path):
    random = np.random.default_rng(0)
    shapes = {"gate_up_proj": (3, 8, 5), "down_proj": (3, 5, 4)}
    tensors = {f"a.experts.{name}": random.normal(size=x) for name, x in shapes.items()}
    tensors |= {"a.gate.weight": random.normal(size=(3, 5))}
    save_file(tensors, tmp_path / "model.safetensors")
    weight_map = WeightMap({f"x.{k}": f"a.experts.{{}}.{v}" for k, v in EXPERTS.items()})
    names = names_of_experts(weight_map)
    assert names == {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
    files = SplitExperts(TensorFiles(tmp_path), names)
    assert len(files.tensors) == 10
    same = np.testing.assert_array_equal
    for expert in range(3):
        both, down = (tensors[f"a.experts.{name}"][expert] for name in shapes)
        for name, expected in {"w1": both[:4], "w3": both[4:], "w2": down}.items():
            name = f"a.experts.{expert}.{name}.weight"
            same(files.read(name), expected)
            assert files.tensors[name] == Tensor(expected.shape, expected.dtype)
    same(files.read("a.gate.weight"), tensors["a.gate.weight"])


def test_a_model_whose_files_have_experts_together_keeps_them(tmp_path):
    tensors = {"a.experts.gate_up_proj": np.ones((3, 8, 5))}
    save_file(tensors, tmp_path / "model.safetensors")
    names = names_of_experts(WeightMap({"x.down.kernel": "a.experts.down_proj"}))
    assert names == {}
    assert SplitExperts(TensorFiles(tmp_path), names).tensors.keys() == tensors.keys()


def packed(random, experts, outputs, inputs):
    """The blocks and scales of random numbers."""
    groups = experts, outputs, inputs // 32
    blocks = random.integers(0, 256, (*groups, 16)).astype(np.uint8)
    return blocks, random.integers(118, 126, groups).astype(np.uint8)


def test_four_bits_and_a_scale_are_read_as_bfloat16(tmp_path):
    blocks, scales = packed(np.random.default_rng(0), 2, 3, 64)
    tensors = {"a_blocks": blocks, "a_scales": scales, "b": np.ones(3, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    files = Mxfp4Tensors(TensorFiles(tmp_path))
    assert files.tensors["a"] == ((2, 64, 3), np.dtype(jnp.bfloat16))
    np.testing.assert_array_equal(files.read("b"), np.ones(3))
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    found = files.read("a").astype(np.float64)
    for expert, row, column in np.ndindex(2, 64, 3):
        byte = blocks[expert, column, row // 32, row % 32 // 2]
        bits = byte >> 4 if row % 2 else byte & 15
        value = values[bits & 7] * (-1) ** int(bits >> 3)
        scale = 2.0 ** (int(scales[expert, column, row // 32]) - 127)
        assert found[expert, row, column] == value * scale


@pytest.mark.parametrize("scales", [None, np.zeros((2, 3), np.uint8)])
def test_blocks_without_their_scales_are_refused(scales, tmp_path):
    tensors = {"a_blocks": packed(np.random.default_rng(0), 2, 3, 64)[0]}
    save_file(
        tensors | ({} if scales is None else {"a_scales": scales}), tmp_path / "model.safetensors"
    )
    with pytest.raises(DataError, match="a_blocks"):
        Mxfp4Tensors(TensorFiles(tmp_path))


# A layer with a window and one without.
SIZES = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 12, "pad_token_id": None}
SIZES |= {"num_hidden_layers": 2}


@pytest.mark.torch
def test_files_in_mxfp4_have_the_outputs_and_texts_of_transformers(tmp_path):
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    theirs, quantised = tmp_path / "theirs", tmp_path / "quantised"
    save_random("gpt_oss", "GptOssForCausalLM", theirs, **SIZES)
    values = json.loads((theirs / "config.json").read_text())
    tensors, random = load_file(theirs / "model.safetensors"), np.random.default_rng(0)
    stored, whole = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors[name].shape
        blocks, scales = packed(random, experts, outputs, inputs)
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        parts = torch.tensor(blocks), torch.tensor(scales)
        whole[name] = convert_moe_packed_tensors(*parts).float().numpy()
    assert stored.keys() != tensors.keys()
    save_file(whole, theirs / "model.safetensors", metadata={"format": "pt"})
    quantised.mkdir()
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (quantised / "config.json").write_text(json.dumps(values | {"quantization_config": method}))

    ours = load(quantised)
    ours = replace(ours, config=ours.config.with_fields(compute_dtype="float32"))
    model = Reference(theirs, "GptOssForCausalLM")
    check_outputs(ours, model, example_inputs(ours.checkpoint, "left"))
    check_greedy_tokens(ours, model)

    save(ours, tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "quantization_config" not in saved
    again = load_file(tmp_path / "saved" / "model.safetensors")
    assert again.keys() == tensors.keys()
    for name, tensor in whole.items():
        np.testing.assert_array_equal(again[name].astype(np.float32), tensor, err_msg=name)
