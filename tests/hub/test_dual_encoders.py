"""CLIP, SigLIP and other dual encoders, with their towers and image classifiers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, save_tiny
from variants import check_outputs, models

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.families import PATCHES
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.parts import PartsMap
from jaxformer.hub.tasks.classes import end_positions
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.models import DualEncoderConfig
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained import outputs as pretrained
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.torch

ANY, HEAD = "vision-text-dual-encoder", "ForImageClassification"
TOWERS = [
    ("roberta", "clip_vision_model"),
    ("bert", "deit"),
    ("clip_text_model", "dinov2"),
    ("albert", "siglip_vision_model"),
]


@pytest.mark.parametrize(("text", "image"), TOWERS, ids=["-".join(pair) for pair in TOWERS])
@pytest.mark.quick("roberta*")
def test_any_text_with_any_image(text, image, tmp_path):
    changes = {
        "text_config": TINY[text] | {"model_type": text},
        "vision_config": TINY[image] | {"model_type": image},
    }
    ours, theirs = models(save_tiny(ANY, tmp_path, **changes))
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "right"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "siglip2"])
def test_texts_alone_and_images_alone_give_their_vectors(kind, tmp_path):
    model = load(save_tiny(kind, tmp_path))
    inputs = example_inputs(model.checkpoint, "right")
    both = pretrained.forward(model, inputs)
    two = {name: inputs[name][:2] for name in PATCHES if name in inputs}
    images = pretrained.forward(model, two)
    np.testing.assert_allclose(images["image_embeds"], both["image_embeds"][:2], atol=1e-6)
    texts = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    found = pretrained.forward(model, texts)
    np.testing.assert_allclose(found["text_embeds"], both["text_embeds"], atol=1e-6)
    assert "logits_per_text" not in found
    more = texts | two
    assert pretrained.forward(model, more)["logits_per_image"].shape == (2, 3)
    assert "loss" not in pretrained.forward(model, inputs | {"return_loss": False})
    with pytest.raises(DataError, match="3 texts and 2 images do not pair up"):
        pretrained.forward(model, more | {"return_loss": True})
    with pytest.raises(DataError, match="input_ids and pixel_values are missing"):
        pretrained.forward(model, {"attention_mask": texts["attention_mask"]})


def test_config_of_version_4(tmp_path):
    """Its text_config_dict comes first, completed by the defaults of transformers."""
    values = {
        "model_type": "clip",
        "text_config": {"hidden_size": 96, "num_attention_heads": 4, "dropout": 0.0},
        "text_config_dict": {"hidden_size": 768, "num_attention_heads": 12},
        "vision_config": None,
        "vision_config_dict": {"patch_size": 14, "hidden_size": 1024, "num_attention_heads": 16},
        "projection_dim": 768,
    }
    from transformers import CLIPConfig

    theirs = CLIPConfig(**{k: v for k, v in values.items() if k not in ("model_type",)})
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    assert isinstance(checkpoint.model_format.config_map, PartsMap)
    assert isinstance(checkpoint.architecture.task, ContrastiveTask)
    ours = checkpoint.config
    assert (ours.text.model_dim, ours.text.num_heads) == (768, 12)
    assert ours.text.mlp_dim == theirs.text_config.intermediate_size == 2048
    assert ours.image.patch_size == (14, 14)
    assert [part.heads[0].width for part in (ours.text, ours.image)] == [768, 768]


def test_a_changed_part_is_written_in_its_section(tmp_path):
    model = load(save_tiny("clip", tmp_path))
    values = json.loads((tmp_path / "config.json").read_text())
    text = model.config.text
    config = model.config.with_fields(text=text.with_fields(**{"feed_forward.activation": "gelu"}))
    found = describe(config, FORMATS.values(), values).hf_config.given
    assert found["text_config"] == values["text_config"] | {"hidden_act": "gelu"}
    assert found["vision_config"] == values["vision_config"]


def test_a_model_of_ours_becomes_one(tmp_path):
    model = load(save_tiny("siglip", tmp_path, HEAD))
    config = replace(model.config, norm=replace(model.config.norm, eps=1e-4))
    described = describe(config, FORMATS.values(), {"model_type": "siglip"})
    assert described.architecture.name == "SiglipForImageClassification"
    assert described.hf_config.values["vision_config"]["layer_norm_eps"] == 1e-4
    assert described.config == config


def test_the_whole_model_stays_two_towers(tmp_path):
    folder = save_tiny("siglip", tmp_path)
    assert isinstance(load(folder).config, DualEncoderConfig)
    change_settings(folder, architectures=["SiglipForMasks"])
    with pytest.raises(ConfigError, match=r"must be one of .*SiglipForImageClassification"):
        load(folder)


def test_what_describes_the_tower_is_checked(tmp_path):
    folder = save_tiny("siglip", tmp_path, HEAD)
    model = load(folder)
    tower = model.checkpoint.hf_config.values["vision_config"]
    change_settings(folder, vision_config=tower | {"window_size": 3})
    with pytest.raises(ConfigError, match=r"vision_config\.window_size = 3"):
        load(folder, strict=True)
    change_settings(folder, vision_config=tower | {"hidden_act": "mish"})
    with pytest.raises(ConfigError, match=r"vision_config: hidden_act = 'mish'"):
        load(folder)
    np.testing.assert_equal(model.config.num_tokens, 9)


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
    assert empty == config
