"""Images of another size than a model's equal transformers, which resizes positions too."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import DataError
from jaxformer.functional import PatchBias
from jaxformer.parity.compare import differences, gradient_differences
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients

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
