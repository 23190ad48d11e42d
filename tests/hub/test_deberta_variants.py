"""What configurations of DeBERTa can say besides what its small models say."""

import logging

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import change_settings, change_tensors, save_tiny
from variants import check_outputs, check_variant, models

from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch

PLAIN = {"conv_kernel_size": 0, "share_att_key": False}
VARIANTS = {
    "content to position": ("deberta", {"pos_att_type": ["c2p"], "type_vocab_size": 0}),
    "position to content": ("deberta", {"pos_att_type": "p2c", "max_relative_positions": -1}),
    "vectors without terms": ("deberta", {"pos_att_type": "none"}),
    "a scale without terms": ("deberta", {"relative_attention": False}),
    "neither": ("deberta", {"relative_attention": False, "pos_att_type": None}),
    "distances alone, and narrow embeddings": (
        "deberta",
        {"position_biased_input": False, "embedding_size": 20},
    ),
    "the newer head": ("deberta", {"legacy": False}),
    "separate projections": ("deberta-v2", PLAIN),
    "one separate projection": ("deberta-v2", PLAIN | {"pos_att_type": ["p2c"]}),
    "no buckets": ("deberta-v2", PLAIN | {"position_buckets": -1, "norm_rel_ebd": "none"}),
    "no terms": ("deberta-v2", PLAIN | {"pos_att_type": [], "norm_rel_ebd": "none"}),
    "a wide convolution, the newer head": (
        "deberta-v2",
        {"conv_kernel_size": 5, "conv_act": "tanh", "legacy": False, "tie_word_embeddings": False},
    ),
    "shared projections, one term": (
        "deberta-v2",
        {"pos_att_type": "c2p", "position_biased_input": False, "type_vocab_size": 0},
    ),
    "version 2 without distances": (
        "deberta-v2",
        PLAIN | {"relative_attention": False, "norm_rel_ebd": "none"},
    ),
}


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick("distances alone*")
def test_variants(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes)


def test_rows_longer_than_all_positions(tmp_path):
    """Without positions in the embeddings, the configured length limits nothing."""
    changes = {"position_biased_input": False, "max_position_embeddings": 12}
    ours, theirs = models(save_tiny("deberta-v2", tmp_path, "Model", **changes))
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "left", length=45))


@pytest.mark.more
def test_a_published_file_has_the_head_and_a_discriminator(tmp_path, caplog):
    """Its config.json names neither a class nor the kind of head."""
    theirs = save_tiny("deberta-v2", tmp_path / "theirs", legacy=False)
    expected = load(theirs)
    change_settings(theirs, "architectures", "legacy")

    def published(tensors):
        tensors["mask_predictions.dense.weight"] = np.ones((48, 48), np.float32)
        tensors["mask_predictions.classifier.bias"] = np.ones(1, np.float32)
        tensors["deberta.embeddings.position_ids"] = np.arange(20)[None]

    change_tensors(theirs, published)
    with caplog.at_level(logging.WARNING):
        found = load(theirs)
    (warning,) = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert "mask_predictions.dense.weight" in warning
    inputs = example_inputs(found.checkpoint, "right")
    actual, wanted = forward(found, inputs), forward(expected, inputs)
    np.testing.assert_array_equal(actual["logits"], wanted["logits"])
    save(found, tmp_path / "ours")
    assert "cls.predictions.bias" in load_file(tmp_path / "ours" / "model.safetensors")


def test_where_a_file_has_both_heads_that_of_the_class_counts(tmp_path):
    folder = save_tiny("deberta", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    other = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head."): 2 * tensor
        for name, tensor in tensors.items()
        if "transform" in name
    }
    wanted = load(folder).parameters["heads.masked_language_model.dense.kernel"]
    save_file(tensors | other, folder / "model.safetensors", metadata={"format": "pt"})
    found = load(folder).parameters["heads.masked_language_model.dense.kernel"]
    np.testing.assert_array_equal(found, wanted)
