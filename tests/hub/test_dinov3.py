"""DINOv3 in transformers, which has no loss: outputs, and the gradient of a sum of its states."""

import pytest
from saved_folders import save_tiny
from variants import check_gradients_of_outputs, check_outputs, check_tensors, models

from jaxformer.parity.examples import example_inputs

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


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick("gated")
def test_variants(changes, tmp_path):
    ours, theirs = models(save_tiny("dinov3_vit", tmp_path, **changes))
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, inputs)
    check_gradients_of_outputs(ours, inputs, ["last_hidden_state"])
    check_tensors(ours)
