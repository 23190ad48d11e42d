"""Weights under other names, and folders whose weights cannot be read."""

import json
import time

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import assert_same_parameters, copy_of, rename_tensors, save_tiny

import jaxformer
from jaxformer.errors import ConfigError, DataError

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
    expected, found = (jaxformer.load(folder) for folder in (llama, spoiled))
    jaxformer.load(spoiled)  # is said once, however often the folder is opened
    assert len(caplog.records) == 1
    assert_same_parameters(found, expected)


@pytest.mark.parametrize(
    "kind", ["vit", "deit", "beit", "dinov2", "dinov3_vit", "vit_mae", "gpt_neox", "esm"]
)
@pytest.mark.quick("beit", "vit_mae")
def test_names_of_the_modules_of_transformers(kind, tmp_path):
    """Files of a `state_dict()` have them, where they differ from those of transformers' files."""
    folder = save_tiny(kind, tmp_path / "it")
    expected = jaxformer.load(folder)
    name = expected.checkpoint.architecture.name
    tensors = getattr(transformers, name).from_pretrained(folder).state_dict()
    arrays = {n: x.numpy().copy() for n, x in tensors.items()}
    assert not arrays.keys() >= load_file(folder / SINGLE).keys()
    save_file(arrays, folder / SINGLE, {"format": "pt"})
    assert_same_parameters(jaxformer.load(folder), expected)


def test_a_variant_is_taken_where_there_is_nothing_else(spoiled, tmp_path, caplog):
    half = {n: x.astype(np.float16) for n, x in load_file(spoiled / SINGLE).items()}
    save_file(half, spoiled / "model.fp16.safetensors", {"format": "pt"})
    assert jaxformer.load(spoiled, dtype=None).parameters["embedding.table"].dtype == jnp.float32
    assert not caplog.records
    (spoiled / SINGLE).unlink()
    model = jaxformer.load(spoiled, dtype=None)
    assert len(caplog.records) == 1
    assert model.parameters["embedding.table"].dtype == jnp.float16
    jaxformer.save(model, tmp_path / "out")
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
        jaxformer.load(spoiled)
    (spoiled / "config.json").unlink()
    with pytest.raises(ConfigError, match=f"{file}.*{word}"):
        jaxformer.load(spoiled)


def test_an_adapter_is_no_model(spoiled):
    (spoiled / SINGLE).rename(spoiled / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"adapter_model\.safetensors.*load\(BASE, "):
        jaxformer.load(spoiled)


def test_an_old_folder_of_sentence_transformers(llama, tmp_path):
    copy_of(llama, tmp_path / "it" / "0_Transformer")
    with pytest.raises(ConfigError, match="its model is in 0_Transformer"):
        jaxformer.load(tmp_path / "it")


@pytest.mark.parametrize("name", [SINGLE, "config.json"])
def test_a_pointer_in_place_of_a_file(name, spoiled):
    (spoiled / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises((ConfigError, DataError), match="git lfs pull"):
        jaxformer.load(spoiled)


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
        jaxformer.load(spoiled)
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
        jaxformer.load(spoiled)
