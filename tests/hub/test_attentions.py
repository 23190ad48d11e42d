"""The attention probabilities of every class of every system, compared with transformers."""

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.parity.tiny import TINY
from jaxformer.zoo import FORMATS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CLASSES = {
    f"{kind}-{architecture.name}": (kind, architecture.name)
    for kind, format in FORMATS.items()
    for architecture in format.architectures
    # transformers returns none: the layers that it replaces at the first call are not observed.
    if architecture.name != "BigBirdForCausalLM"
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
    if architecture in ("T5GemmaForSequenceClassification", "T5GemmaForTokenClassification"):
        # transformers returns those of the decoder alone, under a name without it.
        outputs = {"decoder_attentions": outputs["attentions"]}
        actual = {"decoder_attentions": actual["decoder_attentions"]}
    names = [name for name in MASKS if outputs.get(name)]
    assert names == [name for name in MASKS if name in actual]
    for name in names:
        expected = np.stack([layer.detach().numpy() for layer in outputs[name]])
        if expected.ndim == 6:
            expected = whole_rows(expected, actual[name].shape[-2])
        if kind == "big_bird":
            expected = with_repeated_block(expected)
        assert actual[name].shape == expected.shape
        length = expected.shape[3]
        mask = inputs.get(MASKS[name], np.ones((expected.shape[1], length)))
        # The mask of waveforms, which are rows of samples, is one of samples.
        hears = np.ndim(inputs.get("input_values")) == 2
        if hears and name in ("attentions", "encoder_attentions"):
            mask = frames_of(theirs.model, length, mask)
        real = mask.reshape(1, -1, 1, length, 1) > 0
        np.testing.assert_allclose(
            np.where(real, actual[name], 0), np.where(real, expected, 0), atol=2e-5
        )


def frames_of(model, length: int, mask: np.ndarray) -> np.ndarray:
    """Which of `length` frames are real, `[B, length]`, of sounds with a mask of samples."""
    name = "_get_feature_vector_attention_mask"
    encoder = model if hasattr(model, name) else model.encoder
    return getattr(encoder, name)(length, torch.asarray(mask)).numpy()


def whole_rows(blocks: np.ndarray, length: int) -> np.ndarray:
    """LongT5's probabilities as `[L, B, N, T, G + T]` of `[L, B, blocks, N, size, 3 size + G]`."""
    depth, rows, count, heads, size, _ = blocks.shape
    # A block of queries has its own block of keys, the one before and the one after.
    near = np.zeros((depth, rows, heads, count, size, (count + 2) * size), blocks.dtype)
    for block in range(count):
        first = block * size
        near[:, :, :, block, :, first : first + 3 * size] = blocks[:, :, block, :, :, : 3 * size]
    far = blocks[..., 3 * size :].swapaxes(2, 3)
    whole = np.concatenate([far, near[..., size : size + length]], axis=-1)
    return whole.reshape(depth, rows, heads, count * size, -1)[:, :, :, :length]


def with_repeated_block(probabilities: np.ndarray) -> np.ndarray:
    """BigBird's probabilities `[L, B, N, T, T]`, with the first block as often as it counts.

    transformers writes the times over each other, so that its rows do not add up to 1.
    """
    size, times = (TINY["big_bird"][name] for name in ("block_size", "num_random_blocks"))
    if probabilities.shape[-1] <= (5 + 2 * times) * size:
        return probabilities  # Each token attends to all.
    whole = probabilities.copy()
    whole[..., size:-size, :size] *= 1 + times
    return whole
