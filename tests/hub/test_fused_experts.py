"""Tensors with the kernels of all experts are read as those of each expert."""

import numpy as np
from safetensors.numpy import save_file

from jaxformer.hub.weights.tensors import Tensor, TensorFiles
from jaxformer.hub.weights.views.fused_experts import SplitExperts, names_of_experts
from jaxformer.hub.weights.weight_map import WeightMap

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
