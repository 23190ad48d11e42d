"""DINOv3 in transformers, which has no loss: outputs, and the gradient of a sum of its states."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_outputs

from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.parity.compare import beyond_rounding, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.table import tensors_by_current_name
from jaxformer.pretrained.auto import load

pytestmark = pytest.mark.torch

VARIANTS = {
    "gated": {},
    "without gates and registers": {
        "use_gated_mlp": False,
        "num_register_tokens": 0,
        "proj_bias": False,
    },
    "all biases": {"key_bias": True, "image_size": 12, "patch_size": 4},
    "no biases": {"query_bias": False, "value_bias": False, "mlp_bias": False},
}


def weights_of(states):
    return np.random.default_rng(5).standard_normal(states.shape).astype(np.float32)


class WithLoss(Reference):
    """The reference, with a weighted sum of the last states as its loss."""

    def forward(self, inputs, **options):
        outputs = super().forward(inputs, **options)
        states = outputs.last_hidden_state
        if not options:
            weights = self._torch.tensor(weights_of(states), dtype=states.dtype)
            outputs.loss = (states * weights).sum()
        return outputs


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick("gated")
def test_variants(changes, tmp_path):
    ours = load(save_tiny("dinov3_vit", tmp_path, **changes))
    theirs = WithLoss(tmp_path, "DINOv3ViTModel")
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, inputs)

    def loss(parameters):
        states = replace(ours, parameters=parameters).outputs(
            {"pixel_values": jnp.asarray(inputs["pixel_values"])}
        )["last_hidden_state"]
        return jnp.sum(states * weights_of(states))

    learned = [each for each in ours.placements if each.places]
    found = dict(tensors_of(jax.grad(loss)(ours.parameters), learned))
    expected, exact = theirs.gradients(inputs), theirs.exact.gradients(inputs)
    assert not beyond_rounding(gradient_errors(found, expected, exact))
    written = dict(tensors_of(ours.parameters, ours.placements))
    saved = tensors_by_current_name(tmp_path / "model.safetensors", ours.checkpoint.model_format)
    assert written.keys() == saved.keys()
    assert all(np.array_equal(written[name], saved[name]) for name in saved)
