"""The image classifiers of CLIP, SigLIP and SigLIP 2: one tower of a dual encoder, and a head."""

from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, save_tiny

from jaxformer.errors import ConfigError
from jaxformer.hub.describe import describe
from jaxformer.models import DualEncoderConfig, VisionConfig
from jaxformer.parity.compare import differences, gradient_differences
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch
HEAD = "ForImageClassification"


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
@pytest.mark.quick("siglip")
def test_losses_gradients_and_files_are_those_of_transformers(kind, tmp_path):
    folder = save_tiny(kind, tmp_path / "theirs", HEAD)
    model = load(folder)
    assert isinstance(model.config, VisionConfig)
    reference = Reference(folder, model.checkpoint.architecture.name)
    inputs = example_inputs(model.checkpoint)
    found, wanted = forward(model, inputs), reference.outputs(inputs)
    assert "loss" in found
    assert max(differences(found, wanted, inputs).values()) <= 2e-5
    actual, expected = gradients(model, inputs), reference.gradients(inputs)
    assert max(gradient_differences(actual, expected).values()) <= 2e-5
    save(model, tmp_path / "ours")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "ours" / name).read_bytes() == (folder / name).read_bytes()


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
