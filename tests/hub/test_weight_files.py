"""Parameters to and from tensors: names, stacked layers, old spellings, mixed dtypes."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import change_tensors, copy_of, rename_tensors, save_tiny

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.weights.tensors import SINGLE
from jaxformer.hub.weights.weight_file import described, tensors_of
from jaxformer.hub.weights.weight_map import Fused, WeightMap, attention, block
from jaxformer.pretrained.reader import open_folder

IDS = np.arange(1, 7).reshape(2, 3)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.mark.torch
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "Model"])
@pytest.mark.quick("Model")
def test_the_heads_of_pre_training_are_left_out(head, tmp_path, caplog):
    """As in the files of bert-base-uncased: LayerNorm.gamma, position_ids, and all heads."""
    theirs = save_tiny("bert", tmp_path / "own", head)
    before = jaxformer.forward(jaxformer.load(theirs), {"input_ids": IDS})
    whole = save_tiny("bert", tmp_path / "whole", "ForPreTraining")
    folder = copy_of(theirs, tmp_path / "published")
    own = {name.removeprefix("bert.") for name in load_file(folder / SINGLE)}
    others = {
        name: array
        for name, array in load_file(whole / SINGLE).items()
        if name.removeprefix("bert.") not in own
    }
    change_tensors(folder, lambda tensors: tensors.update(others))
    norms = {r"LayerNorm\.weight": "LayerNorm.gamma", r"LayerNorm\.bias": "LayerNorm.beta"}
    rename_tensors(folder, norms)
    after = jaxformer.forward(jaxformer.load(folder), {"input_ids": IDS})
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    (record,) = caplog.records
    assert "left out, because the model has no such part" in record.message
    assert "cls.seq_relationship.bias, cls.seq_relationship.weight" in record.message
    assert ("bert.pooler.dense.bias" in record.message) == (head == "ForMaskedLM")


def test_many_problems_are_counted(bert, tmp_path):
    folder = copy_of(bert, tmp_path / "empty")
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]])
    with pytest.raises(DataError, match=r"is missing; .* \.\.\. \(\d\d in all\)"):
        jaxformer.load(folder)


def test_each_parameter_keeps_its_dtype(bert, tmp_path):
    folder = copy_of(bert, tmp_path / "mixed")

    def change(tensors):
        for name in tensors:
            kept = "LayerNorm" in name
            tensors[name] = tensors[name].astype(np.float32 if kept else jnp.bfloat16)

    change_tensors(folder, change)
    model = jaxformer.load(folder, dtype=None)
    assert {str(array.dtype) for array in model.parameters.values()} == {"bfloat16", "float32"}
    jaxformer.save(model, tmp_path / "out")
    before, after = (load_file(x / "model.safetensors") for x in (folder, tmp_path / "out"))
    assert {name: x.tobytes() for name, x in after.items()} == {
        name: x.tobytes() for name, x in before.items()
    }
    assert np.isfinite(jaxformer.forward(model, {"input_ids": [[1, 2]]})["last_hidden_state"]).all()


def test_one_parameter_is_read_alone(bert):
    opened, model = open_folder(bert), jaxformer.load(bert)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(opened.read(name), array)
        np.testing.assert_array_equal(opened.file.read(name, array.shape), array)


def test_what_is_described_is_what_comes(bert):
    model = jaxformer.load(bert)
    kinds = described(model.parameters, model.placements, "float16")
    tensors = dict(tensors_of(model.parameters, model.placements))
    assert list(kinds) == list(tensors)
    for name, (shape, dtype) in kinds.items():
        assert (shape, dtype) == (tensors[name].shape, np.float16)


def test_tables(bert):
    abstract_model = jaxformer.load(bert).abstract_model
    with pytest.raises(ConfigError, match="the parameter "):
        WeightMap({}).placements(abstract_model)
    assert block("encoder", "h.{}", {"norms.0": "ln"}) == {
        "encoder.stack.group.*.norms.0": "h.{}.ln"
    }
    assert attention(1, "q", "k", "v", "o")["sublayers.1.attention.output"] == "o"
    fused = Fused(("a", "b"), "ab", None)
    names, tensor, _ = WeightMap({}, (fused,))._find("b.bias")
    assert (names, tensor) == (["a.bias", "b.bias"], "ab.bias")
