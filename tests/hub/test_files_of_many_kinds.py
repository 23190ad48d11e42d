"""One model in files of many kinds: shards, narrower numbers, other prefixes, parts it lacks."""

import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import (
    assert_same_parameters,
    change_settings,
    change_tensors,
    copy_of,
    save_tiny,
)

from jaxformer.pretrained.auto import load

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", params=["gpt2", "bert", "t5", "bart"])
def model(request, tmp_path_factory):
    """A model of each family; its class has a head."""
    return load(save_tiny(request.param, tmp_path_factory.mktemp("models") / request.param))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.quick("t5-bfloat16")
def test_narrower_numbers(model, dtype, tmp_path):
    folder = copy_of(model.folder, tmp_path / "narrow")

    def narrow(tensors):
        for name, array in tensors.items():
            tensors[name] = array.astype(jnp.dtype(dtype))

    change_tensors(folder, narrow)
    kept, wide = load(folder, dtype=None), load(folder)
    for name, array in model.parameters.items():
        assert kept.parameters[name].dtype == dtype
        np.testing.assert_array_equal(kept.parameters[name], array.astype(dtype))
        np.testing.assert_array_equal(wide.parameters[name], array.astype(dtype).astype("f4"))


def test_with_and_without_the_prefix_of_the_body(model, tmp_path):
    folder = copy_of(model.folder, tmp_path / "renamed")
    prefix = model.checkpoint.model_format.prefix
    heads = ("lm_head.", "cls.", "final_logits_bias")

    def rename(tensors):
        for name in list(tensors):
            if name.startswith(prefix):
                tensors[name.removeprefix(prefix)] = tensors.pop(name)
            elif not name.startswith(heads):
                tensors[prefix + name] = tensors.pop(name)

    change_tensors(folder, rename)
    assert_same_parameters(load(folder), model)


def test_a_body_in_a_file_with_heads(model, tmp_path):
    folder = copy_of(model.folder, tmp_path / "headed")
    base = model.checkpoint.architecture.name.partition("LMHead")[0].partition("For")[0]
    change_settings(folder, architectures=[f"{base.removesuffix('Model')}Model"])
    found = load(folder)
    assert not found.config.heads
    for name, array in found.parameters.items():
        np.testing.assert_array_equal(array, model.parameters[name], err_msg=name)


def test_an_encoder_in_a_file_with_a_decoder(tmp_path, caplog):
    """As where text encoders are made of T5: the decoder is left out, and named."""
    whole = load(save_tiny("t5", tmp_path / "whole"))
    folder = copy_of(whole.folder, tmp_path / "encoder")
    change_settings(folder, architectures=["T5EncoderModel"])
    found = load(folder)
    assert "decoder.block.0.layer.0.SelfAttention.k.weight" in caplog.text
    for name, array in found.parameters.items():
        own = name.replace("transformer.", "encoder.")
        np.testing.assert_array_equal(array, whole.parameters[own], err_msg=name)


def test_a_decoder_with_a_copy_of_its_table(tmp_path):
    folder = save_tiny("bart", tmp_path / "model", "ForCausalLM")
    alone = load(folder)
    assert type(alone.config).__name__ == "DecoderConfig"
    learning = alone.abstract_model.learning
    unused = [name for name in alone.parameters if ".unused." in name]
    assert unused
    assert not set(unused) & set(learning)

    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].copy()

    change_tensors(folder, copy)
    assert_same_parameters(load(folder), alone)
