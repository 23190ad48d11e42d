"""A run from a file without the head it trains: fresh, and said; `load` says what to do."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import change_settings, change_tensors, save_tiny
from transfers import transfer

from jaxformer.errors import DataError
from jaxformer.models import AbstractModel
from jaxformer.pretrained.auto import load
from jaxformer.training.transfer.fields import model_for
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.torch

LABEL = {"heads.label.output.kernel", "heads.label.output.bias"}
POOLER = {"pooler.kernel", "pooler.bias"}


def classifier(folder):
    """The model of a classifier of three labels from a folder, its fresh parameters, the report."""
    model = model_for(
        open_named(folder, "init_from", may_lack_parts=True).description, "classification", 3
    )
    fresh = AbstractModel(model.build).init(jax.random.key(0))
    taken, report = transfer(fresh, folder, model)
    return model, fresh, taken, report


def drop(folder, *starts):
    def change(tensors):
        for name in [name for name in tensors if name.startswith(starts)]:
            del tensors[name]

    change_tensors(folder, change)


@pytest.mark.parametrize(
    ("kind", "head", "new"),
    [
        ("bert", "Model", LABEL),
        ("bert", "ForMaskedLM", LABEL | POOLER),
        ("bert", "ForPreTraining", LABEL),
        ("deberta-v2", "ForMaskedLM", LABEL | POOLER),
    ],
)
@pytest.mark.quick("bert-Model-*")
def test_the_head_starts_fresh(kind, head, new, tmp_path):
    folder = save_tiny(kind, tmp_path, head)
    _, fresh, taken, report = classifier(folder)
    assert set(report.new) == new
    assert f"new here: {', '.join(report.new)}" in report.report
    for name, array in taken.items():
        assert np.array_equal(array, fresh[name]) == (name in new)


def test_the_pooler_of_pre_training_is_taken_whatever_class_is_named(tmp_path):
    """As bert-base-uncased lies on the hub: its config.json says BertForMaskedLM."""
    folder = save_tiny("bert", tmp_path, "ForPreTraining")
    change_settings(folder, architectures=["BertForMaskedLM"])
    _, _, taken, report = classifier(folder)
    assert set(report.new) == LABEL
    tensor = load_file(folder / "model.safetensors")["bert.pooler.dense.weight"]
    np.testing.assert_array_equal(taken["pooler.kernel"], tensor.T)


def test_a_head_of_another_kind_is_not_mistaken_for_this_one(tmp_path):
    folder = save_tiny("bert", tmp_path, "ForTokenClassification", num_labels=3)
    _, _, _, report = classifier(folder)
    assert "heads.label.output.kernel" in report.new
    assert "heads.tags.output.kernel" in report.left


@pytest.mark.parametrize(
    ("dropped", "parts"),
    [(("classifier",), "label"), (("bert.pooler",), "pooler"), (("classifier", "bert.p"), "label")],
)
def test_a_class_without_its_head_trains_and_does_not_load(dropped, parts, tmp_path):
    folder = save_tiny("bert", tmp_path, "ForSequenceClassification", num_labels=3)
    drop(folder, *dropped)
    with pytest.raises(DataError, match=r"is missing.*The file lacks whole parts") as error:
        load(folder)
    assert parts in str(error.value)
    assert "such as BertModel" in str(error.value)
    assert "--init-from" in str(error.value)
    _, _, _, report = classifier(folder)
    assert any(parts in name for name in report.new)
    assert "new here" in report.report


def test_a_part_of_a_head_is_no_head(tmp_path):
    folder = save_tiny("bert", tmp_path, "ForSequenceClassification")
    drop(folder, "classifier.bias")
    with pytest.raises(DataError, match=r"classifier\.bias is missing") as error:
        load(folder)
    assert "whole parts" not in str(error.value)
    with pytest.raises(Exception, match=r"classifier\.bias is missing"):
        open_named(folder, "init_from")
