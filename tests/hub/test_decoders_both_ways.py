"""Decoders whose config.json says `is_causal = false`, as that of text embedding models may."""

import json
from functools import partial

import pytest
from saved_folders import change_settings, save_tiny
from variants import check_outputs, check_variant, models

from jaxformer.errors import ConfigError
from jaxformer.generation.api import generate
from jaxformer.hub.describe import config_values, describe
from jaxformer.models import EncoderConfig
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS
from jaxformer.zoo.common.decoders import DecoderMap

BOTH_WAYS = {"is_causal": False}
LONG = partial(example_inputs, padding="left", length=17)
KINDS = [kind for kind, each in FORMATS.items() if isinstance(each.config_map, DecoderMap)]


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("mistral")
def test_states_are_those_of_transformers(kind, tmp_path):
    ours, theirs = models(save_tiny(kind, tmp_path, "Model", **BOTH_WAYS))
    assert isinstance(ours.config, EncoderConfig)
    check_outputs(ours, theirs, LONG(ours.checkpoint))
    assert config_values(ours.checkpoint)["is_causal"] is False


@pytest.mark.torch
def test_a_window_reaches_as_far_ahead_as_back(tmp_path):
    ours = check_variant(tmp_path, "mistral", BOTH_WAYS, "SequenceClassification", LONG)
    width = TINY["mistral"]["sliding_window"]
    assert ours.config.windows == (width + 1,)
    described = describe(ours.config, FORMATS.values(), {"model_type": "mistral"}).hf_config.values
    assert (described["is_causal"], described["sliding_window"]) == (False, width)


@pytest.mark.torch
@pytest.mark.slow
def test_a_language_model_sees_what_comes_and_writes_nothing(tmp_path):
    ours = check_variant(tmp_path, "llama", BOTH_WAYS)
    with pytest.raises(ConfigError, match="decoder"):
        generate(ours, "the dog", max_new_tokens=1)


@pytest.mark.torch
def test_causal_is_what_a_file_says_by_default(tmp_path):
    folder = save_tiny("qwen2", tmp_path)
    expected = load(folder).config
    change_settings(folder, is_causal=True)
    assert load(folder).config == expected
    assert "is_causal" in json.loads((folder / "config.json").read_text())
