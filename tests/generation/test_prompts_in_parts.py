"""Prompts whose tokens are on several devices: the texts and scores of one device."""

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.distributed import MeshConfig, make_mesh

pytestmark = pytest.mark.usefixtures("compiled_here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        pytest.param("llama", {"num_beams": 3}, marks=pytest.mark.more),
        pytest.param("t5", {}, marks=pytest.mark.more),
    ],
)
def test_texts_are_those_of_one_device(kind, options, tmp_path):
    folder = save_tiny(kind, tmp_path / "model")
    mesh = make_mesh(MeshConfig(sequence=4), jax.devices()[:4])
    tokens = np.random.default_rng(0).integers(5, 120, (2, 12))
    real = np.arange(12) >= 5 * np.arange(2)[:, None]
    inputs = {"input_ids": tokens, "attention_mask": real.astype(int)}
    expected, actual = (
        jaxformer.generate(model, inputs, max_new_tokens=5, **options)["sequences"]
        for model in (jaxformer.load(folder), jaxformer.load(folder, mesh=mesh))
    )
    np.testing.assert_array_equal(actual, expected)
