"""Whole CLIP and SigLIP models and vision-text dual encoders: files of all ages, and bad input."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import change_settings, save_tiny
from variants import check_outputs, models

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.families import PATCHES
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.parts import PartsMap
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained import outputs as pretrained
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

ANY = "vision-text-dual-encoder"
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


def test_a_missing_tensor_is_named(tmp_path):
    folder = save_tiny("clip", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["logit_scale"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="logit_scale is missing"):
        load(folder)
    change_settings(folder, architectures=["CLIPTowers"])
    with pytest.raises(ConfigError, match="CLIPModel"):
        load(folder)
