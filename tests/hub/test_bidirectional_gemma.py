"""EmbeddingGemma: Gemma 3 whose tokens see each other both ways."""

from functools import partial

import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_outputs, check_variant, models

from jaxformer.errors import ConfigError
from jaxformer.generation.api import generate
from jaxformer.hub.describe import describe
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.zoo import FORMATS

BOTH_WAYS = {"use_bidirectional_attention": True, "sliding_window": 7}
LONG = partial(example_inputs, length=17)


@pytest.mark.torch
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.quick("left")
def test_states_are_those_of_transformers(padding, tmp_path):
    ours, theirs = models(save_tiny("gemma3_text", tmp_path, "Model", **BOTH_WAYS))
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
    inputs = LONG(checkpoint, "right")
    del inputs["attention_mask"]
    return inputs


@pytest.mark.torch
@pytest.mark.parametrize(
    "inputs",
    [partial(LONG, padding="left"), partial(LONG, padding="right"), unmasked],
    ids=["left", "right", "padding by its id"],
)
@pytest.mark.slow
def test_a_classifier_reads_the_last_token(inputs, tmp_path):
    check_variant(tmp_path, "gemma3_text", BOTH_WAYS, "SequenceClassification", inputs)


@pytest.mark.torch
@pytest.mark.slow
def test_a_language_model_sees_what_comes_as_in_transformers(tmp_path):
    ours = check_variant(tmp_path, "gemma3_text", BOTH_WAYS)
    with pytest.raises(ConfigError, match="decoder"):
        generate(ours, "the dog", max_new_tokens=1)


@pytest.mark.torch
def test_transformers_reads_what_we_write(tmp_path):
    from transformers import AutoConfig

    ours = load(save_tiny("gemma3_text", tmp_path, "Model", **BOTH_WAYS))
    again = describe(ours.config, FORMATS.values())
    assert again.architecture.name == "Gemma3TextModel"
    written = AutoConfig.for_model(**again.hf_config.values)
    assert (written.use_bidirectional_attention, written.sliding_window) == (True, 4)
