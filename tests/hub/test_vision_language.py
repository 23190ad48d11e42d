"""What CLIP and SigLIP can say besides what their small models say."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_gradients_of_outputs, check_outputs, models

from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks.classes import end_positions
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained import outputs as pretrained
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.torch

TOWERS = [
    format for format in FORMATS.values() if "lip" in format.model_type and "_" in format.model_type
]
CLASSES = [(format, each) for format in TOWERS for each in format.architectures]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("clip_text_model", {"hidden_act": "gelu", "projection_dim": 48}),
        ("clip_vision_model", {"hidden_act": "gelu", "image_size": 12}),
        ("siglip_text_model", {"projection_size": None}),
        ("siglip_vision_model", {"vision_use_head": False}),
    ],
)
@pytest.mark.quick("clip_text*")
def test_variants(model_type, changes, tmp_path):
    ours, theirs = models(save_tiny(model_type, tmp_path, **changes))
    inputs = example_inputs(ours.checkpoint, "right")
    check_outputs(ours, theirs, inputs)
    found = pretrained.forward(ours, inputs)
    assert set(found) == {name for name in theirs.outputs(inputs) if name != "hidden_states"}


@pytest.mark.parametrize(("end", "places"), [(7, [2, 0]), (2, [1, 3])])
def test_a_text_ends_at_its_first_end_token_or_at_the_largest_id(end, places):
    ids = np.array([[3, 9, 7, 7, 2], [5, 4, 2, 8, 1]])
    found = end_positions(ids, HFConfig({"eos_token_id": end}))
    np.testing.assert_array_equal(np.argmax(found, axis=1), places)
    assert (np.sum(found, axis=1) == 1).all()


@pytest.mark.parametrize("head", ["WithProjection", "TextModel"])
@pytest.mark.quick("TextModel")
def test_files_with_the_wrong_end_token_pool_the_largest_id(head, tmp_path):
    ours, theirs = models(save_tiny("clip_text_model", tmp_path, head, eos_token_id=2))
    ids = np.array([[3, 9, 130, 2, 130, 7], [2, 40, 41, 7, 6, 5]])
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    check_outputs(ours, theirs, inputs)
    if head == "TextModel":
        found = pretrained.forward(ours, inputs)
        np.testing.assert_allclose(
            found["pooler_output"], found["last_hidden_state"][[0, 1], [2, 2]], rtol=1e-5, atol=1e-5
        )


def test_a_text_without_an_end_pools_its_first_place(tmp_path):
    ours, theirs = models(save_tiny("clip_text_model", tmp_path, "TextModel"))
    check_outputs(ours, theirs, {"input_ids": np.array([[3, 9, 8], [9, 4, 4]])})


@pytest.mark.parametrize(("format", "architecture"), CLASSES, ids=[a.name for _, a in CLASSES])
@pytest.mark.quick("SiglipVisionModel")
def test_gradients(format, architecture, tmp_path):
    ours, theirs = models(save_tiny(format.model_type, tmp_path, architecture.name))
    inputs = example_inputs(ours.checkpoint, "right")
    names = set(theirs.outputs(inputs)) - {"hidden_states", "last_hidden_state"}  # of padding
    assert names
    check_gradients_of_outputs(ours, inputs, sorted(names))


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("clip-vit-base-patch32", "clip"),
        ("siglip-base-patch16-224", "siglip"),
        ("clip-vit-base-patch32-text", "clip_text_model"),
        ("clip-vit-base-patch32-vision", "clip_vision_model"),
        ("siglip-base-patch16-224-text", "siglip_text_model"),
        ("siglip-base-patch16-224-vision", "siglip_vision_model"),
        ("siglip2-base-patch16-naflex-vision", "siglip2_vision_model"),
    ],
)
def test_systems_of_the_zoo_are_what_an_empty_file_says(name, model_type):
    config = SYSTEMS[name].config
    checkpoint = describe(config, FORMATS.values())
    assert checkpoint.model_format.model_type == model_type
    assert json.loads(json.dumps(checkpoint.hf_config.values)) == checkpoint.hf_config.values
    empty = read_checkpoint(HFConfig({"model_type": model_type}), FORMATS).config
    # How it would be trained aside.
    assert replace(empty, heads=config.heads) == config
    assert empty.heads == config.heads
