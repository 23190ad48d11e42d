"""Weights under other names, in other numbers and beside others, and what cannot be read."""

import json
import time

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import (
    assert_same_parameters,
    change_settings,
    change_tensors,
    copy_of,
    rename_tensors,
    save_tiny,
)

from jaxformer.errors import ConfigError, DataError
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch

transformers = pytest.importorskip("transformers")
SINGLE = "model.safetensors"


@pytest.mark.parametrize(
    ("before", "wrapper"),
    [
        ("^", "_orig_mod."),
        ("^", "module."),
        ("^", "model."),
        ("^", "module._orig_mod."),
        ("^", "0.auto_model."),
        ("(?<=self_attn\\.)", "_orig_mod."),
    ],
)
def test_names_of_modules_around_the_model(before, wrapper, llama, spoiled, caplog):
    rename_tensors(spoiled, {before: wrapper})
    expected, found = (load(folder) for folder in (llama, spoiled))
    load(spoiled)  # is said once, however often the folder is opened
    assert len(caplog.records) == 1
    assert_same_parameters(found, expected)


@pytest.mark.parametrize(
    "kind", ["vit", "deit", "beit", "dinov2", "dinov3_vit", "vit_mae", "gpt_neox", "esm"]
)
@pytest.mark.quick("beit", "vit_mae")
def test_names_of_the_modules_of_transformers(kind, tmp_path):
    """Files of a `state_dict()` have them, where they differ from those of transformers' files."""
    folder = save_tiny(kind, tmp_path / "it")
    expected = load(folder)
    name = expected.checkpoint.architecture.name
    tensors = getattr(transformers, name).from_pretrained(folder).state_dict()
    arrays = {n: x.numpy().copy() for n, x in tensors.items()}
    assert not arrays.keys() >= load_file(folder / SINGLE).keys()
    save_file(arrays, folder / SINGLE, {"format": "pt"})
    assert_same_parameters(load(folder), expected)


def test_a_variant_is_taken_where_there_is_nothing_else(spoiled, tmp_path, caplog):
    half = {n: x.astype(np.float16) for n, x in load_file(spoiled / SINGLE).items()}
    save_file(half, spoiled / "model.fp16.safetensors", {"format": "pt"})
    assert load(spoiled, dtype=None).parameters["embedding.table"].dtype == jnp.float32
    assert not caplog.records
    (spoiled / SINGLE).unlink()
    model = load(spoiled, dtype=None)
    assert len(caplog.records) == 1
    assert model.parameters["embedding.table"].dtype == jnp.float16
    save(model, tmp_path / "out")
    assert (tmp_path / "out" / SINGLE).read_bytes() == (
        spoiled / "model.fp16.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("file", "word"),
    [("x.gguf", "llama.cpp"), ("tf_model.h5", "TensorFlow"), ("model.onnx", "compiled")],
)
def test_what_cannot_be_read_is_named(file, word, spoiled):
    (spoiled / SINGLE).rename(spoiled / file)
    with pytest.raises(DataError, match=f"{file}.*{word}"):
        load(spoiled)
    (spoiled / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"{file}.*{word}"):
        load(spoiled)


def test_an_adapter_is_no_model(spoiled):
    (spoiled / SINGLE).rename(spoiled / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"adapter_model\.safetensors.*load\(BASE, "):
        load(spoiled)


def test_an_old_folder_of_sentence_transformers(llama, tmp_path):
    copy_of(llama, tmp_path / "it" / "0_Transformer")
    with pytest.raises(ConfigError, match="its model is in 0_Transformer"):
        load(tmp_path / "it")


@pytest.mark.parametrize("name", [SINGLE, "config.json"])
def test_a_pointer_in_place_of_a_file(name, spoiled):
    (spoiled / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises((ConfigError, DataError), match="git lfs pull"):
        load(spoiled)


def many_tensors(first, last):
    return {f"x{number}": np.zeros(0, np.float32) for number in range(first, last)}


@pytest.mark.parametrize("key", [b"data_offsets", rb"data\u005foffsets"])
@pytest.mark.quick("data_offsets")
def test_a_header_of_many_empty_tensors_is_refused_at_once(key, spoiled):
    file = spoiled / SINGLE
    save_file(many_tensors(0, 100_000), file, {"format": "pt"})
    header = file.read_bytes()[8:].replace(b"data_offsets", key)
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    start = time.perf_counter()
    with pytest.raises(DataError, match="its header has 100,000 tensors"):
        load(spoiled)
    assert time.perf_counter() - start < 5


@pytest.mark.more
def test_many_empty_tensors_in_several_files_are_refused(spoiled):
    (spoiled / SINGLE).unlink()
    places = {}
    for start in (0, 40_000):
        file, tensors = f"model-{start}.safetensors", many_tensors(start, start + 40_000)
        save_file(tensors, spoiled / file, {"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"weight_map": places}
    (spoiled / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="its files have 80,000 tensors"):
        load(spoiled)


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
