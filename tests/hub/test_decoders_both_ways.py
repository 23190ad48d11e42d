"""Decoders whose tokens see each other both ways: `is_causal = false`, and EmbeddingGemma."""

import json
from functools import partial

import numpy as np
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
from jaxformer.pretrained.outputs import forward
from jaxformer.zoo import FORMATS
from jaxformer.zoo.common.decoders import DecoderMap

pytestmark = pytest.mark.torch

BOTH_WAYS = {"is_causal": False}
GEMMA = {"use_bidirectional_attention": True, "sliding_window": 7}
LONG = partial(example_inputs, length=17)
LEFT, RIGHT = (partial(LONG, padding=side) for side in ("left", "right"))
KINDS = [kind for kind, each in FORMATS.items() if isinstance(each.config_map, DecoderMap)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("mistral")
def test_states_are_those_of_transformers(kind, tmp_path):
    ours, theirs = models(save_tiny(kind, tmp_path, "Model", **BOTH_WAYS))
    assert isinstance(ours.config, EncoderConfig)
    check_outputs(ours, theirs, LEFT(ours.checkpoint))
    assert config_values(ours.checkpoint)["is_causal"] is False


def test_a_window_reaches_as_far_ahead_as_back(tmp_path):
    ours = check_variant(tmp_path, "mistral", BOTH_WAYS, "SequenceClassification", LEFT)
    width = TINY["mistral"]["sliding_window"]
    assert ours.config.windows == (width + 1,)
    described = describe(ours.config, FORMATS.values(), {"model_type": "mistral"}).hf_config.values
    assert (described["is_causal"], described["sliding_window"]) == (False, width)


@pytest.mark.parametrize(("kind", "changes"), [("llama", BOTH_WAYS), ("gemma3_text", GEMMA)])
@pytest.mark.slow
def test_a_language_model_sees_what_comes_and_writes_nothing(kind, changes, tmp_path):
    ours = check_variant(tmp_path, kind, changes)
    with pytest.raises(ConfigError, match="decoder"):
        generate(ours, "the dog", max_new_tokens=1)


def test_causal_is_what_a_file_says_by_default(tmp_path):
    folder = save_tiny("qwen2", tmp_path)
    expected = load(folder).config
    change_settings(folder, is_causal=True)
    assert load(folder).config == expected
    assert "is_causal" in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.quick("left")
def test_states_of_embeddinggemma_are_those_of_transformers(padding, tmp_path):
    ours, theirs = models(save_tiny("gemma3_text", tmp_path, "Model", **GEMMA))
    # transformers halves it: 3 tokens on either side, and the token itself.
    assert ours.config.windows == (4, None)
    inputs = LONG(ours.checkpoint, padding)
    check_outputs(ours, theirs, inputs)
    # A later token changes the first one's state, but not through a window.
    changed = {**inputs, "input_ids": np.copy(inputs["input_ids"])}
    changed["input_ids"][0, 16] = (changed["input_ids"][0, 16] + 7) % 100 + 10
    states, others = (
        forward(ours, each, output_hidden_states=True)["hidden_states"]
        for each in (inputs, changed)
    )
    np.testing.assert_array_equal(states[1, 0, :13], others[1, 0, :13])
    assert (states[1, 0, 13:] != others[1, 0, 13:]).any(axis=-1).all()
    assert (states[2, 0] != others[2, 0]).any(axis=-1).all()


def unmasked(checkpoint):
    inputs = RIGHT(checkpoint)
    del inputs["attention_mask"]
    return inputs


@pytest.mark.parametrize("inputs", [LEFT, RIGHT, unmasked], ids=["left", "right", "by its id"])
@pytest.mark.slow
def test_a_classifier_reads_the_last_token(inputs, tmp_path):
    check_variant(tmp_path, "gemma3_text", GEMMA, "SequenceClassification", inputs)


def test_transformers_reads_what_we_write(tmp_path):
    from transformers import AutoConfig

    ours = load(save_tiny("gemma3_text", tmp_path, "Model", **GEMMA))
    again = describe(ours.config, FORMATS.values())
    assert again.architecture.name == "Gemma3TextModel"
    written = AutoConfig.for_model(**again.hf_config.values)
    assert (written.use_bidirectional_attention, written.sliding_window) == (True, 4)
