"""The attention probabilities of every class of every system, compared with transformers."""

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

CLASSES = {
    f"{format.model_type}-{architecture.name}": (format.model_type, architecture.name)
    for format in FORMATS.values()
    for architecture in format.architectures
}
# Their outputs -> what says which of their queries are real.
MASKS = {
    "attentions": "attention_mask",
    "encoder_attentions": "attention_mask",
    "decoder_attentions": "decoder_attention_mask",
    "cross_attentions": "decoder_attention_mask",
}


@pytest.mark.parametrize(("kind", "architecture"), CLASSES.values(), ids=CLASSES)
@pytest.mark.quick("left-t5-T5ForConditionalGeneration")
@pytest.mark.parametrize("padding", ["left", "right"])
def test_attentions_are_those_of_transformers(kind, architecture, padding, tmp_path):
    save_random(kind, architecture, tmp_path)
    ours, theirs = jaxformer.load(tmp_path), Reference(tmp_path, architecture)
    # Falcon's would add a mask of True and False to its scores.
    theirs.model.config._attn_implementation = "eager"
    inputs = example_inputs(ours.checkpoint, padding)
    actual = jaxformer.forward(ours, inputs, output_attentions=True)
    outputs = theirs.forward(inputs, output_attentions=True)
    jax.clear_caches()
    names = [name for name in MASKS if outputs.get(name)]
    assert names == [name for name in MASKS if name in actual]
    for name in names:
        expected = np.stack([layer.detach().numpy() for layer in outputs[name]])
        assert actual[name].shape == expected.shape
        mask = inputs.get(MASKS[name], np.ones((expected.shape[1], expected.shape[3])))
        real = mask[None, :, None, :, None] > 0
        np.testing.assert_allclose(
            np.where(real, actual[name], 0), np.where(real, expected, 0), atol=2e-5
        )


def test_weights_are_not_made_unless_asked_for(tmp_path):
    model = jaxformer.load(save_tiny("gpt2", tmp_path))
    inputs = {"input_ids": np.arange(12).reshape(2, 6)}
    assert not {"attentions", "hidden_states"} & set(jaxformer.forward(model, inputs))
