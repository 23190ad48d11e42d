"""SigLIP 2: images of several shapes in one batch, and what its files may not say."""

import jax
import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_files, check_gradients, check_outputs, models

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.compare import gradient_differences
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.torch
TOWER = "siglip2_vision_model"


def shaped(model, grids, length):
    """Images with these grids of patches, padded to one length with numbers that must not count."""
    config = model.config.parts.get("image", model.config)
    size = config.patch_size[0] * config.patch_size[1] * config.channels
    pixels = np.random.default_rng(1).normal(size=(len(grids), length, size))
    counts = np.prod(grids, axis=1)[:, None]
    return {
        "pixel_values": pixels.astype(np.float32),
        "pixel_attention_mask": (np.arange(length) < counts).astype(np.int64),
        "spatial_shapes": np.array(grids),
    }


@pytest.mark.parametrize(
    "changes",
    [{"vision_use_head": False}, {"hidden_act": "gelu", "num_patches": 36, "patch_size": 3}],
    ids=["without its pooler", "a larger table"],
)
@pytest.mark.quick("a larger table")
def test_images_of_many_shapes(changes, tmp_path):
    """Smaller and larger than the table, narrow, alone in their batch, with and without padding."""
    ours, theirs = models(save_tiny(TOWER, tmp_path, **changes))
    shapes = [(1, 1), (6, 6), (1, 17), (13, 2), (5, 7), (2, 3)]
    check_outputs(ours, theirs, shaped(ours, shapes, 41))
    check_outputs(ours, theirs, shaped(ours, [(7, 4)], 28))


def test_the_mask_says_which_patches_are_read(tmp_path):
    """Not the shapes: transformers gives the patches of neither a meaning by the other."""
    ours, theirs = models(save_tiny(TOWER, tmp_path))
    inputs = shaped(ours, [(3, 3), (2, 4)], 9)
    inputs["pixel_attention_mask"] = np.array([[1, 1, 0, 1, 1, 1, 1, 0, 1], [1] * 9])
    check_outputs(ours, theirs, inputs)


@pytest.mark.parametrize("head", ["Model", "ForImageClassification"])
@pytest.mark.slow
def test_gradients_of_a_batch_of_many_shapes(head, tmp_path):
    ours, theirs = models(save_tiny("siglip2", tmp_path, head))
    inputs = example_inputs(ours.checkpoint, "right") | shaped(ours, [(2, 9), (5, 1), (4, 4)], 19)
    check_gradients(ours, theirs, inputs)


@pytest.mark.slow
def test_on_a_mesh(tmp_path):
    model = load(save_tiny("siglip2", tmp_path, "ForImageClassification"))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    inputs = example_inputs(model.checkpoint, "right", rows=4)
    actual, expected = gradients(load(tmp_path, mesh=mesh), inputs), gradients(model, inputs)
    assert max(gradient_differences(actual, expected).values()) <= 2e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_attention_mask": None}, "pixel_attention_mask is missing"),
        ({"spatial_shapes": None}, "spatial_shapes is missing"),
        ({"pixel_values": np.zeros((2, 2, 12, 12), "f4")}, r"must be \[B, patches, 32\]"),
        ({"pixel_values": np.zeros((2, 9, 48), "f4")}, r"must be \[B, patches, 32\]"),
        ({"spatial_shapes": [[3, 3]]}, r"spatial_shapes has shape \(1, 2\): must be \(2, 2\)"),
        ({"spatial_shapes": [[3, 3], [2, 5]]}, r"\(2, 5\): must be .* 9 patches at most"),
        ({"spatial_shapes": [[0, 3], [2, 4]]}, r"\(0, 3\): must be the rows and columns"),
        ({"pixel_attention_mask": np.ones((2, 8), int)}, r"must be \(2, 9\)"),
        ({"pixel_attention_mask": np.full((2, 9), 2)}, "must hold 0 and 1"),
        ({"bool_masked_pos": np.zeros((2, 9), int)}, "bool_masked_pos"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused(changes, message, siglip2_tower):
    inputs = shaped(siglip2_tower, [(3, 3), (2, 4)], 9) | changes
    with pytest.raises(DataError, match=message):
        forward(siglip2_tower, {name: x for name, x in inputs.items() if x is not None})


@pytest.fixture(scope="module")
def siglip2_tower(tmp_path_factory):
    return load(save_tiny(TOWER, tmp_path_factory.mktemp("tower")))


def test_images_of_one_shape_take_no_shapes(tmp_path):
    model = load(save_tiny("siglip_vision_model", tmp_path))
    inputs = example_inputs(model.checkpoint)
    with pytest.raises(DataError, match="spatial_shapes"):
        forward(model, inputs | {"spatial_shapes": [[3, 3]] * 3})


def test_a_model_of_ours_becomes_one():
    """Also with the table of another resolution, which its config.json counts."""
    config = SYSTEMS["siglip2-base-patch16-naflex"].config
    larger = config.with_fields(image=config.image.for_grid((24, 24)))
    described = describe(larger, FORMATS.values())
    assert described.architecture.name == "Siglip2Model"
    vision = described.hf_config.values["vision_config"]
    assert (vision["num_patches"], vision["patch_size"]) == (576, 16)
    assert described.hf_config.values["text_config"]["vocab_size"] == 256_000
    assert read_checkpoint(described.hf_config, FORMATS).config.image == larger.image
    wide = config.with_fields(image=config.image.for_grid((24, 12)))
    with pytest.raises(ConfigError, match="siglip2"):
        describe(wide, FORMATS.values(), {"model_type": "siglip2"})


@pytest.mark.slow
def test_trained_on_images_of_one_shape_it_computes_the_same(tmp_path):
    """What training reads as pixels, and files as patches."""
    model = load(save_tiny("siglip2", tmp_path / "theirs", "ForImageClassification"))
    images = np.random.default_rng(0).normal(size=(2, 12, 12, 2)).astype(np.float32)
    patches = images.reshape(2, 3, 4, 3, 4, 2).swapaxes(2, 3).reshape(2, 9, 32)
    inputs = shaped(model, [(3, 3)] * 2, 9) | {"pixel_values": patches}
    scores = model.model.scores({"images": images})["label"]
    np.testing.assert_allclose(forward(model, inputs)["logits"], scores, rtol=2e-5, atol=2e-5)
    save(model, tmp_path / "ours")
    check_files(tmp_path / "ours", tmp_path / "theirs")


def test_an_end_beyond_the_vocabulary_is_in_no_example():
    """The default of the class, which transformers writes into the file of a SigLIP."""
    text = {"vocab_size": 32_000, "eos_token_id": 49_407}
    checkpoint = read_checkpoint(HFConfig({"model_type": "siglip", "text_config": text}), FORMATS)
    assert example_inputs(checkpoint, rows=2)["input_ids"].max() < 32_000
