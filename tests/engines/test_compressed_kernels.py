"""Packed kernels: what is rounded to what, what is refused, and what transformers computes."""

import numpy as np
import pytest
from engine_exports import exported, receipt_of

from jaxformer.engines.compressed_tensors import is_kernel, packed
from jaxformer.errors import ConfigError
from jaxformer.pretrained.auto import load


def unpacked(parts, bits):
    """The kernel that packed parts stand for, by the definition of the format."""
    outputs, inputs = parts["weight_shape"]
    words = parts["weight_packed"].view(np.uint32)[..., None]
    steps = (words >> (bits * np.arange(32 // bits, dtype=np.uint32))) & ((1 << bits) - 1)
    steps = steps.reshape(outputs, inputs).astype(np.int64) - (1 << (bits - 1))
    scale = np.repeat(parts["weight_scale"], inputs // parts["weight_scale"].shape[1], axis=1)
    return steps * scale


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 32)])
def test_each_weight_is_within_half_a_step(bits, group):
    kernel = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    kernel[2] = 0
    parts = packed(kernel, bits, group)
    assert parts["weight_packed"].shape == (6, 64 * bits // 32)
    assert parts["weight_scale"].shape == (6, 1 if group is None else 2)
    width = 64 // parts["weight_scale"].shape[1]
    half = np.repeat(parts["weight_scale"], width, axis=1) / 2
    assert (np.abs(unpacked(parts, bits) - kernel) <= half * (1 + 1e-4)).all()
    assert (unpacked(parts, bits)[2] == 0).all()


def test_kernels_of_layers_alone():
    assert is_kernel("model.layers.0.mlp.up_proj.weight", (8, 4))
    assert not is_kernel("model.embed_tokens.weight", (8, 4))
    assert not is_kernel("model.layers.0.input_layernorm.weight", (8,))
    assert not is_kernel("lm_head.weight", (8, 4))


@pytest.mark.torch
@pytest.mark.parametrize("quantise", ["int8", "int4"])
@pytest.mark.quick("int4")
def test_transformers_reads_packed_kernels(quantise, tmp_path):
    pytest.importorskip("compressed_tensors")
    _, out = exported("llama", tmp_path, "compressed-tensors", quantise)
    receipt = receipt_of(out, "transformers")
    assert 0 < receipt.max_difference < (0.05 if quantise == "int8" else 0.5) * receipt.largest
    assert receipt.equal_tokens_of_text
    with pytest.raises(ConfigError, match="quantised"):
        load(out)
