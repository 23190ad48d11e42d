"""The image classifiers of CLIP, SigLIP and SigLIP 2: one tower of a dual encoder, and a head."""

from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, save_tiny
from variants import check_files, check_variant

from jaxformer.errors import ConfigError
from jaxformer.hub.describe import describe
from jaxformer.models import DualEncoderConfig, VisionConfig
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch
HEAD = "ForImageClassification"


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
@pytest.mark.quick("siglip")
def test_losses_gradients_and_files_are_those_of_transformers(kind, tmp_path):
    model = check_variant(tmp_path / "theirs", kind, {}, HEAD)
    assert isinstance(model.config, VisionConfig)
    save(model, tmp_path / "ours")
    check_files(tmp_path / "ours", tmp_path / "theirs")


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
