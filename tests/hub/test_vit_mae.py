"""ViT-MAE equals transformers, with given noise; and learns from masks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny
from tiny_models import structure_of, tiny_vision
from variants import check_outputs, check_variant, models

from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import Learned
from jaxformer.models import AbstractModel, MaskedAutoencoder
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.training.loss import check_batch

torch_only = pytest.mark.torch


@torch_only
@pytest.mark.parametrize(
    "changes",
    [{"norm_pix_loss": False, "hidden_act": "gelu_new"}, {"mask_ratio": 0.2, "qkv_bias": False}],
    ids=str,
)
@pytest.mark.more
@pytest.mark.quick("{'mask_ratio': 0.2, 'qkv_bias': False}")
def test_variants(changes, tmp_path):
    check_variant(tmp_path, "vit_mae", changes)


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


def test_positions_are_a_table_that_does_not_learn():
    from jaxformer.zoo import SYSTEMS

    assert SYSTEMS["vit-mae-base"].config.position == Learned(max_length=197, learns=False)
