"""The classes that predict hidden patches, and ViT-MAE, equal transformers, and learn."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny
from tiny_models import random_parameters, structure_of, tiny_vision
from transfers import transfer
from variants import check_outputs, models

from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.describe import describe
from jaxformer.hub.tasks.images import MaskedPixelsTask, VisualTokensTask
from jaxformer.models import (
    AbstractModel,
    LossOptions,
    MaskedAutoencoder,
    MaskedPixels,
    VisualTokens,
)
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.training.loss import check_batch
from jaxformer.training.transfer.fields import model_for
from jaxformer.zoo import FORMATS

torch_only = pytest.mark.torch
HEAD = "ForMaskedImageModeling"


@torch_only
def test_without_hidden_patches_there_is_no_loss(tmp_path):
    model = load(save_tiny("vit", tmp_path, HEAD))
    inputs = {"pixel_values": example_inputs(model.checkpoint)["pixel_values"]}
    found = forward(model, inputs)
    assert "loss" not in found
    assert found["reconstruction"].shape == inputs["pixel_values"].shape


@torch_only
def test_a_rectangle_is_reconstructed_in_place(tmp_path):
    """Transformers refuses it; a patch must not end where another one was."""
    folder = save_tiny("vit", tmp_path, HEAD, image_size=[8, 16])
    model = load(folder)
    rows = np.random.default_rng(0)
    pixels = rows.normal(size=(2, 2, 8, 16)).astype(np.float32)
    hidden = jnp.asarray(forward(model, {"pixel_values": pixels})["last_hidden_state"][:, 1:])
    head = model.model.heads["masked_pixels"]
    patches = np.asarray(head.output(hidden)).reshape(2, 2, 4, 4, 4, 2)
    image = forward(model, {"pixel_values": pixels})["reconstruction"]
    np.testing.assert_allclose(image[1, 1, 4:, 8:12], patches[1, 1, 2, :, :, 1], atol=1e-5)


@torch_only
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(3, int)}, r"labels has shape \(3,\): must be \[\d+\], one for each"),
        ({"labels": np.zeros(3, int), "bool_masked_pos": None}, "give bool_masked_pos too"),
        ({"bool_masked_pos": np.ones((3, 8), int)}, r"\(3, 8\): must be \(3, 9\), one for each"),
        ({"labels": 19}, "labels holds .* 19, but the model has 0 to 18"),
    ],
    ids=str,
)
def test_labels_that_do_not_fit_are_refused(changes, message, tmp_path):
    model = load(save_tiny("beit", tmp_path, HEAD))
    inputs = example_inputs(model.checkpoint)
    if changes.keys() == {"labels"} and np.ndim(changes["labels"]) == 0:
        changes = {"labels": np.full_like(inputs["labels"], 19)}
    inputs = {k: v for k, v in (inputs | changes).items() if v is not None}
    with pytest.raises(DataError, match=message):
        forward(model, inputs)


@torch_only
def test_what_a_file_cannot_have_is_refused(tmp_path):
    model = load(save_tiny("vit", tmp_path, HEAD, encoder_stride=2))
    with pytest.raises(DataError, match=r"encoder_stride = 2 must be the size of the patches"):
        forward(model, example_inputs(model.checkpoint))


# Training ----------------------------------------------------------------------------------------


PIXELS = tiny_vision(
    mask_token=True, patch_size=(4, 4), position=tiny_vision().position.for_grid((2, 3), 1)
)
HEADS = {"pixels": MaskedPixels(stride=4), "tokens": VisualTokens(num_tokens=5)}


def batch_of(config, rows=4):
    random = np.random.default_rng(0)
    shape = rows, config.num_patches
    return {
        # One colour each, so that hidden patches can be told from the others.
        "images": np.tile(random.normal(size=(rows, 1, 1, 2)), (1, *config.image_size, 1)).astype(
            "f4"
        ),
        "masked": random.random(shape) < 0.6,
        "visual_tokens": random.integers(0, 5, shape).astype(np.int32),
    }


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.slow
def test_hidden_patches_are_learned(head):
    config = replace(PIXELS, heads=(HEADS[head],), dropout=0.0)
    batch, structure = batch_of(config), structure_of(config)
    check_batch(config, batch)

    @jax.jit
    def step(parameters):
        def loss(parameters):
            sums = structure.module(parameters).loss(batch)[1][HEADS[head].name]
            return sums.loss / sums.weight

        value, gradient = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(lambda p, g: p - 0.3 * g, parameters, gradient)

    parameters, history = structure.init(jax.random.key(0)), []
    for _ in range(30):
        value, parameters = step(parameters)
        history.append(float(value))
    assert history[-1] < 0.8 * history[0]


@pytest.mark.slow
def test_what_is_seen_has_no_loss():
    config = replace(PIXELS, heads=tuple(HEADS.values()))
    structure, batch = structure_of(config), batch_of(config)
    model = structure.module(structure.init(jax.random.key(0)))
    states = model.outputs(batch)
    changed = dict(batch)
    changed["visual_tokens"] = np.where(batch["masked"], batch["visual_tokens"], 99)
    for head in model.heads.values():
        once = head.loss(states, batch, LossOptions(), None)
        again = head.loss(states, changed, LossOptions(), None)
        assert float(once.loss) == float(again.loss) > 0
        assert float(once.weight) == batch["masked"].sum()


@pytest.mark.more
def test_batches_that_do_not_fit_are_refused():
    config = replace(PIXELS, heads=(MaskedPixels(stride=4),))
    batch = batch_of(config)
    with pytest.raises(ArgumentError, match="masked, which the head masked_pixels reads, is miss"):
        check_batch(config, {"images": batch["images"]})
    with pytest.raises(ArgumentError, match=r"has dtype .*: must be true or false"):
        check_batch(config, batch | {"masked": batch["masked"].astype(int)})
    with pytest.raises(AssertionError, match="masked"):
        check_batch(config, batch | {"masked": batch["masked"][:, :-1]})
    other_config = replace(config, heads=(MaskedPixels(stride=2),))
    other = structure_of(other_config)
    model = other.module(random_parameters(other_config))
    with pytest.raises(ArgumentError, match=r"stride = 2: must be \(4, 4\)"):
        jax.eval_shape(model.loss, batch)


@torch_only
def test_a_model_of_ours_has_a_class_there(tmp_path):
    for kind, task in (("vit", MaskedPixelsTask()), ("beit", VisualTokensTask())):
        model = load(save_tiny(kind, tmp_path / kind, HEAD))
        assert model.checkpoint.architecture.task == task
        described = describe(replace(model.config, compute_dtype="bfloat16"), FORMATS.values())
        assert described.architecture == model.checkpoint.architecture
        assert task.heads(described.hf_config) == model.config.heads


@torch_only
def test_its_body_starts_a_classifier_and_a_classifier_s_starts_it(tmp_path):
    """The token for hidden patches comes and goes with the head that predicts them."""
    folder = save_tiny("vit", tmp_path / "hidden", HEAD)
    checkpoint = load(folder).checkpoint
    classifier = model_for(checkpoint, "classification", 3)
    assert (classifier.mask_token, classifier.pooler) == (False, None)
    for model, source in ((classifier, folder), (checkpoint.config, tmp_path / "labels")):
        if not source.exists():
            save_tiny("vit", source, image_size=12, patch_size=4)
        parameters, report = transfer(random_parameters(model), source, model)
        assert parameters.keys() == structure_of(model).shapes.keys()
        others = {name for name in (*report.new, *report.left) if not name.startswith("heads.")}
        assert others == {"mask_token"}


@torch_only
def test_all_patches_are_read_in_any_order(tmp_path):
    ours, theirs = models(save_tiny("vit_mae", tmp_path, "Model", mask_ratio=0.0))
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, inputs)
    order = np.argsort(inputs["noise"], axis=1)
    shuffled = forward(ours, inputs)["last_hidden_state"]
    plain = forward(ours, {"pixel_values": inputs["pixel_values"]})["last_hidden_state"]
    moved = np.take_along_axis(plain[:, 1:], order[..., None], axis=1)
    np.testing.assert_allclose(shuffled[:, 1:], moved, rtol=1e-5, atol=1e-5)


@torch_only
def test_the_loss_in_training_is_that_of_transformers(tmp_path):
    ours, theirs = models(save_tiny("vit_mae", tmp_path))
    inputs = example_inputs(ours.checkpoint)
    wanted = theirs.outputs(inputs)
    images = jnp.asarray(inputs["pixel_values"]).transpose(0, 2, 3, 1)
    batch = {"images": images, "masked": jnp.asarray(wanted["mask"] > 0)}
    model = AbstractModel(ours.config.build).module(ours.parameters)
    sums = jax.jit(model.loss)(batch)[1]["reconstruction"]
    np.testing.assert_allclose(sums.loss / sums.weight, wanted["loss"], rtol=2e-5)


@torch_only
def test_inputs_that_cannot_be_read_are_refused(tmp_path):
    model = load(save_tiny("vit_mae", tmp_path))
    pixels = {"pixel_values": example_inputs(model.checkpoint)["pixel_values"]}
    for others, message in (
        ({}, "noise is missing"),
        ({"noise": np.zeros((3, 8), np.float32)}, "noise has shape"),
        ({"bool_masked_pos": np.zeros((3, 9), bool)}, "bool_masked_pos"),
    ):
        with pytest.raises(DataError, match=message):
            forward(model, pixels | others)
    assert "noise" not in forward(load(tmp_path, mask_ratio=0.0), pixels)


def test_a_model_of_our_own_has_such_a_head():
    head = MaskedAutoencoder(num_layers=1, model_dim=8, num_heads=2, mlp_dim=12)
    config = tiny_vision(heads=(head,), mask_ratio=0.5)
    assert any("reconstruction.transformer" in name for name in structure_of(config).shapes)
    spec = config.batch_spec(2, {})
    assert spec["masked"].shape == (2, config.num_patches)
    check_batch(config, {name: jnp.zeros(x.shape, x.dtype) for name, x in spec.items()})
    assert config.num_read == config.num_patches // 2
    all_read = replace(config, mask_ratio=None)
    assert config.flops({}).products < all_read.flops({}).products
    for ratio in (1.0, -0.1):
        with pytest.raises(ConfigError, match="mask_ratio"):
            replace(config, mask_ratio=ratio)
