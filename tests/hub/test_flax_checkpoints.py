"""Flax checkpoints: what is written is read again, in every form that such folders have."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flax.serialization import msgpack_restore, msgpack_serialize
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file
from saved_folders import assert_same_parameters, change_settings, change_tensors, save_tiny

from jaxformer.cli.main import main
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.flax_layout import FlaxLayout
from jaxformer.hub.weights.flax_names import views_of
from jaxformer.hub.weights.flax_tree import flax_class
from jaxformer.hub.weights.msgpack_files import INDEX, SINGLE, MsgpackFiles
from jaxformer.hub.weights.opening import layout_of, read_layout
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.export.formats import EXPORT_FORMATS
from jaxformer.pretrained.flax_params import flax_params
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

KINDS = ("bert", "gpt2", "t5", "pegasus", "llama", "clip_vision_model", "dinov2", "whisper")


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    """A folder that transformers saved, and the same model as Flax's classes had it."""
    folder = tmp_path_factory.mktemp(request.param)
    # Of CLIP's image classes, transformers had only one without a projection in Flax.
    save_tiny(request.param, folder / "hf", "Model" if "clip" in request.param else "")
    if fixed := FORMATS[request.param].flax.fixed(HFConfig.of_folder(folder / "hf")):
        change_tensors(folder / "hf", lambda tensors: tensors.update(fixed))
    save(load(folder / "hf", dtype=None), folder / "flax", format="flax")
    return folder


each_kind = pytest.mark.quick("t5", "pegasus")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    save_tiny("gpt2", folder / "hf")
    save(load(folder / "hf", dtype=None), folder / "flax", format="flax")
    return folder


def assert_same_files(ours, theirs, pattern="*"):
    names = sorted(path.name for path in theirs.glob(pattern))
    assert names
    assert sorted(path.name for path in ours.glob(pattern)) == names
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def rewrite(source, target, tree):
    """A folder as another one, with another tree."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    (target / SINGLE).write_bytes(msgpack_serialize(tree))
    return target


def tree_of(folder):
    return msgpack_restore((folder / SINGLE).read_bytes())


@each_kind
def test_both_ways_are_exact(kind, tmp_path):
    ours = load(kind / "flax", dtype=None)
    assert_same_parameters(ours, load(kind / "hf", dtype=None))
    assert sorted(p.name for p in (kind / "flax").glob("*.msgpack")) == [SINGLE]
    save(ours, tmp_path / "flax", format="flax")
    assert_same_files(tmp_path / "flax", kind / "flax")


@each_kind
def test_the_tree_is_that_of_the_file_and_computed_as_flax_does(kind):
    tree = flatten_dict(flax_params(load(kind / "hf", dtype=None)))
    written = flatten_dict(tree_of(kind / "flax"))
    assert list(tree) == list(written)
    for path, array in written.items():
        np.testing.assert_array_equal(np.asarray(tree[path]), array, str(path))


def test_the_tree_has_the_shapes_of_flax(gpt2):
    tree = flax_params(load(gpt2 / "hf"))
    block = tree["transformer"]["h"]["0"]
    assert sorted(block) == ["attn", "ln_1", "ln_2", "mlp"]
    # GPT-2's kernels are (outputs, inputs) in Flax, and (inputs, outputs) in PyTorch.
    assert block["attn"]["c_attn"]["kernel"].shape == (144, 48)
    assert sorted(block["ln_1"]) == ["bias", "scale"]
    assert tree["transformer"]["wte"]["embedding"].shape == (131, 48)


def test_an_export_of_safetensors_is_that_of_the_original(gpt2, tmp_path):
    save(load(gpt2 / "flax", dtype=None), tmp_path / "hf")
    assert_same_files(tmp_path / "hf", gpt2 / "hf")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.quick("bfloat16")
def test_several_files_and_dtypes_come_back(gpt2, dtype, tmp_path):
    save(load(gpt2 / "flax"), tmp_path / "a", format="flax", dtype=dtype, max_shard_bytes=20_000)
    index = json.loads((tmp_path / "a" / INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 3
    assert "transformer/h/0/attn/c_attn/kernel" in index["weight_map"]
    again = load(tmp_path / "a", dtype=None)
    assert {str(array.dtype) for array in again.parameters.values()} == {dtype}
    save(again, tmp_path / "b", format="flax")
    assert_same_files(tmp_path / "b", tmp_path / "a")
    assert load(tmp_path / "a").parameters.keys() == again.parameters.keys()


@pytest.mark.slow
def test_a_run_remembers_its_flax_files(gpt2, tmp_path):
    save(load(gpt2 / "flax"), tmp_path / "a", format="flax", max_shard_bytes=20_000)
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    assert main(["export", run, out, "--format", "flax"]) == 0
    assert_same_files(tmp_path / "out", tmp_path / "a")
    assert main(["export", run, str(tmp_path / "hf")]) == 0
    assert_same_files(tmp_path / "hf", gpt2 / "hf", "*.safetensors")


@pytest.mark.slow
def test_verify_compares_a_flax_checkpoint(gpt2, capsys):
    assert main(["verify", str(gpt2 / "flax")]) == 0
    assert "equal in transformers" in capsys.readouterr().out


def stacked(layers, name):
    """Layers '0', '1', ... as one with a leading axis."""
    flat = [flatten_dict(layers[str(number)]) for number in range(len(layers))]
    joined = {}
    for path in flat[0]:
        inner = joined.setdefault(name, {})
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = np.stack([layer[path] for layer in flat])
    return joined


@pytest.mark.parametrize("name", ["ScanLayers", "FlaxGPT2Blocks"])
def test_stacked_layers_are_read_and_come_back(gpt2, name, tmp_path):
    tree = tree_of(gpt2 / "flax")
    tree["transformer"]["h"] = stacked(tree["transformer"]["h"], name)
    scanned = load(rewrite(gpt2 / "flax", tmp_path / "scanned", tree), dtype=None)
    assert_same_parameters(scanned, load(gpt2 / "flax", dtype=None))
    save(scanned, tmp_path / "again", format="flax")
    assert_same_files(tmp_path / "again", tmp_path / "scanned", "*.msgpack")


def test_too_many_stacked_layers_are_one_sentence():
    with pytest.raises(DataError, match=r"h/ScanLayers/bias: \[1000000, 3\]: too many layers"):
        views_of("h.ScanLayers.bias", (10**6, 3))


def test_safetensors_files_of_flax_are_read(gpt2, tmp_path):
    names = flatten_dict(tree_of(gpt2 / "flax"), sep=".")
    folder = rewrite(gpt2 / "flax", tmp_path / "a", {})
    (folder / SINGLE).unlink()
    save_file(names, folder / "model.safetensors", metadata={"format": "flax"})
    ours = load(folder, dtype=None)
    assert_same_parameters(ours, load(gpt2 / "flax", dtype=None))
    save(ours, tmp_path / "hf")
    assert_same_files(tmp_path / "hf", gpt2 / "hf", "*.safetensors")


def test_safetensors_come_first(gpt2, tmp_path):
    folder = rewrite(gpt2 / "flax", tmp_path / "both", {"other": np.ones(1)})
    tensors = load_file(gpt2 / "hf" / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert_same_parameters(load(folder), load(gpt2 / "hf"))
    assert layout_of(folder).kind == "hf"


def test_what_does_not_fit_is_one_sentence(gpt2, tmp_path):
    tree = tree_of(gpt2 / "flax")
    tree["transformer"]["ln_f"]["scale"] = np.ones(7, np.float32)
    tree["transformer"]["h"]["0"]["ln_1"].pop("bias")
    tree["surprise"] = np.ones(7, np.float32)
    folder = rewrite(gpt2 / "flax", tmp_path / "a", tree)
    with pytest.raises(DataError) as found:
        load(folder)
    for words in (
        "transformer.ln_f.weight has shape (7,), not (48,)",
        "transformer.h.0.ln_1.bias is missing",
        "surprise",
    ):
        assert words in str(found.value)


def test_two_arrays_for_one_tensor_are_one_sentence(gpt2, tmp_path):
    tree = tree_of(gpt2 / "flax")
    tree["transformer"]["ln_f"]["weight"] = tree["transformer"]["ln_f"]["scale"]
    folder = rewrite(gpt2 / "flax", tmp_path / "a", tree)
    with pytest.raises(DataError, match="ln_f/scale and transformer/ln_f/weight"):
        load(folder)


def test_what_is_not_finite_is_one_sentence(gpt2, tmp_path):
    tree = tree_of(gpt2 / "flax")
    tree["transformer"]["ln_f"]["scale"] = np.full(48, np.nan, np.float32)
    with pytest.raises(DataError, match=r"transformer.ln_f.weight has 48 NaN"):
        load(rewrite(gpt2 / "flax", tmp_path / "a", tree))


def test_a_head_that_flax_keeps_apart_is_written_and_ignored(tmp_path, caplog):
    save_tiny("llama", tmp_path / "hf", tie_word_embeddings=True)
    ours = load(tmp_path / "hf")
    tree = flax_params(ours)
    table = np.asarray(tree["model"]["embed_tokens"]["embedding"])
    np.testing.assert_array_equal(np.asarray(tree["lm_head"]["kernel"]), table.T)
    save(ours, tmp_path / "flax", format="flax")
    assert "FlaxLlamaForCausalLM will compute something else" in caplog.text
    tree = tree_of(tmp_path / "flax")
    tree["lm_head"]["kernel"] = tree["lm_head"]["kernel"] + 1.0
    assert_same_parameters(load(rewrite(tmp_path / "flax", tmp_path / "a", tree)), ours)
    assert "mlp_bias = False, not True" in caplog.text
    assert "lm_head.weight" in caplog.text


def test_a_table_that_flax_would_compute_otherwise_is_one_sentence(tmp_path):
    model = load(save_tiny("pegasus", tmp_path / "hf"))
    name = "encoder.inputs.position_table"
    changed = model.parameters | {name: model.parameters[name] + 1}
    model = replace(model, parameters=changed)
    message = r"coder.embed_positions.weight: must be the sinusoids that Flax's class computes"
    with pytest.raises(ConfigError, match=message):
        save(model, tmp_path / "out", format="flax")
    with pytest.raises(ConfigError, match=message):
        flax_params(model)


def test_a_system_without_flax_classes_is_one_sentence(tmp_path):
    model = load(save_tiny("qwen2", tmp_path / "hf"))
    message = "transformers never had a Flax class for Qwen2ForCausalLM"
    with pytest.raises(ConfigError, match=message):
        save(model, tmp_path / "out", format="flax")
    with pytest.raises(ConfigError, match=message):
        flax_params(model)
    assert not (tmp_path / "out").exists()


def test_no_model_is_one_sentence():
    with pytest.raises(ArgumentError, match="pretrained is a dict: must be a model"):
        flax_params({})


def test_an_unknown_format_is_one_sentence(gpt2, tmp_path):
    assert list(EXPORT_FORMATS) == ["hf", "flax"]
    with pytest.raises(ConfigError, match=r"format = 'flux': must be 'hf' or 'flax'.*flax"):
        save(load(gpt2 / "hf"), tmp_path / "out", format="flux")
    assert not list(tmp_path.iterdir())


def test_an_old_name_of_a_class(gpt2):
    checkpoint = load(gpt2 / "hf").checkpoint
    assert flax_class(checkpoint) == "FlaxGPT2LMHeadModel"
    names = [name for names in FLAX_CLASSES.values() for name in names]
    assert len(names) == len(set(names)) == 133


def test_fields_that_flax_read_in_another_way_are_named():
    flax = FlaxFormat(ignored={"rope_theta": 1e4})
    assert flax.notes(HFConfig({"rope_theta": 1e4})) == []
    (note,) = flax.notes(HFConfig({"rope_theta": 5e5}))
    assert note == "it always computes with rope_theta = 10000.0, not 500000.0"


def test_a_layout_survives_its_file(gpt2, tmp_path):
    layout = FlaxLayout.of_files(MsgpackFiles(gpt2 / "flax"))
    layout.write(tmp_path / "weights.json")
    assert read_layout(tmp_path / "weights.json").tensors == layout.tensors
    assert layout.usual_dtype == np.float32
    (tmp_path / "weights.json").write_text('{"files": {}, "other": 1}')
    with pytest.raises(DataError, match="must have the arrays of msgpack files"):
        read_layout(tmp_path / "weights.json")


def test_a_folder_with_nothing_names_what_could_be_there(gpt2, tmp_path):
    folder = rewrite(gpt2 / "flax", tmp_path / "a", {})
    (folder / SINGLE).unlink()
    with pytest.raises(DataError, match=r"neither model.safetensors .*, nor flax_model.msgpack"):
        load(folder)
    change_settings(folder, "model_type")
