"""Images of other sizes than a model's, and of several shapes in a batch, equal transformers."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_files, check_gradients, check_outputs, models

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import PatchBias
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.compare import differences, gradient_differences
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.torch

SQUARE = {"image_size": 12, "patch_size": 4}
SHARED = {"use_relative_position_bias": False, "use_shared_relative_position_bias": True}
MODELS = {
    "vit": ("vit", "ForImageClassification", SQUARE),
    "deit": ("deit", "ForImageClassification", SQUARE),
    "dinov2": ("dinov2", "ForImageClassification", {}),
    "beit": ("beit", "ForImageClassification", {"use_absolute_position_embeddings": True}),
    "beit-shared": ("beit", "Model", SHARED | {"use_mean_pooling": False}),
    "dinov3": ("dinov3_vit", "Model", {}),
    "siglip": ("siglip_vision_model", "VisionModel", {"image_size": 14}),
    "clip": ("clip_vision_model", "VisionModel", {"image_size": 14}),
}
# Rows and columns of pixels; the last has pixels beyond its last whole patch.
IMAGES = [(20, 12), (4, 8), (18, 23)]
each_model = pytest.mark.parametrize("name", MODELS)
ALWAYS = ("dinov2", "dinov3", "beit", "beit-shared")


def case(name, folder):
    kind, head, changes = MODELS[name]
    save_tiny(kind, folder, head, **changes)
    model = load(folder, **({} if name in ALWAYS else {"interpolate_positions": True}))
    return model, Reference(folder, model.checkpoint.architecture.name)


def images(model, size, rows=2):
    shape = (rows, model.config.channels, *size)
    return {"pixel_values": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


@each_model
@pytest.mark.quick("vit")
def test_outputs_equal_those_of_transformers(name, tmp_path):
    model, reference = case(name, tmp_path)
    asked = {} if name in ("dinov2", "dinov3") else {"interpolate_pos_encoding": True}
    for size in IMAGES:
        inputs = images(model, size)
        with reference._torch.no_grad():
            wanted = reference.forward(inputs, **asked)
        wanted = {n: x.numpy() for n, x in wanted.items() if reference._torch.is_tensor(x)}
        found = forward(model, inputs)
        assert set(wanted) <= set(found)
        assert max(differences(found, wanted, inputs).values()) <= 2e-5


@pytest.mark.parametrize("name", ["deit", "beit"])
@pytest.mark.quick("deit")
def test_gradients_reach_the_table_of_the_file(name, tmp_path):
    model, reference = case(name, tmp_path)
    inputs = images(model, (16, 20)) | {"labels": np.array([1, 0])}
    reference.model.zero_grad()
    reference.forward(inputs, interpolate_pos_encoding=True).loss.backward()
    embeddings = getattr(reference.model, name).embeddings
    wanted = {f"{name}.embeddings.position_embeddings": embeddings.position_embeddings.grad.numpy()}
    if name == "beit":
        for number, layer in enumerate(reference.model.beit.layers):
            table = layer.relative_position_bias.relative_position_bias_table
            place = "attention.attention.relative_position_bias.relative_position_bias_table"
            wanted[f"beit.encoder.layer.{number}.{place}"] = table.grad.numpy()
    assert max(gradient_differences(gradients(model, inputs), wanted).values()) <= 2e-5


def test_sizes_are_refused_unless_asked_for(tmp_path):
    model = load(save_tiny("vit", tmp_path, **SQUARE))
    given = images(model, (20, 12))
    with pytest.raises(DataError, match=r"\[B, 2, 12, 12\].* interpolate_positions=True"):
        forward(model, given)
    flexible = load(tmp_path, interpolate_positions=True)
    with pytest.raises(DataError, match="must have 4 rows and 4 columns"):
        forward(flexible, images(model, (3, 12)))
    pixels = given["pixel_values"]
    with pytest.raises(DataError, match=r"transpose it with \(0, 3, 1, 2\)"):
        forward(flexible, {"pixel_values": pixels.transpose(0, 2, 3, 1)})
    with pytest.raises(DataError, match=r"1 channels"):
        forward(flexible, {"pixel_values": pixels[:, :1]})
    with pytest.raises(DataError, match=r"\(2, 20, 12\): must be \[B, 2, 12, 12\]"):
        forward(flexible, {"pixel_values": pixels[0]})


def test_the_file_s_own_size_needs_no_table_but_its_own(tmp_path):
    """A rectangle, which transformers would read as a square."""
    folder = save_tiny("vit", tmp_path)
    plain, flexible = load(folder), load(folder, interpolate_positions=True)
    inputs = images(plain, plain.config.image_size)
    wanted, found = forward(plain, inputs), forward(flexible, inputs)
    np.testing.assert_array_equal(wanted["logits"], found["logits"])
    beyond = np.pad(inputs["pixel_values"], ((0, 0), (0, 0), (0, 3), (0, 2)))
    np.testing.assert_array_equal(
        forward(flexible, {"pixel_values": beyond})["logits"], wanted["logits"]
    )


@pytest.mark.more
def test_on_a_mesh(tmp_path):
    model, _ = case("beit", tmp_path)
    mesh = make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])
    inputs = images(model, (8, 16))
    wanted, found = forward(model, inputs), forward(load(tmp_path, mesh=mesh), inputs)
    assert max(differences(found, wanted, inputs).values()) <= 2e-5


def test_a_configuration_for_another_grid(tmp_path):
    config = load(save_tiny("beit", tmp_path)).config
    larger = config.for_grid((5, 2))
    assert larger.image_size == (20, 8)
    assert larger.relative_position == PatchBias((5, 2), shared=False)
    assert (
        replace(larger, image_size=(12, 12), relative_position=PatchBias((3, 3), shared=False))
        == config
    )


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
