"""What is asked what is right: transformers in float64, and nowhere in less."""

import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, float64_throughout
from jaxformer.pretrained.auto import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_what_is_cast_to_float32_stays_float64():
    x, places = torch.ones(3, dtype=torch.float64), torch.arange(3)
    with float64_throughout():
        assert x.float().dtype == torch.float64
        assert x.to(torch.float32).dtype == torch.float64
        assert x.to(dtype=torch.float32).dtype == torch.float64
        assert torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32).dtype == torch.float64
        loss = torch.nn.BCEWithLogitsLoss()(x, places.float())
        assert loss.dtype == torch.float64
        # Constants are those of float32.
        assert places.float().dtype == torch.float32
    assert x.float().dtype == torch.float32


# Their casts differ: norms and RoPE; norms; ALiBi; another rotation; tables of sinusoids.
@pytest.mark.parametrize("kind", ["llama", "t5", "bloom", "modernbert", "m2m_100"])
@pytest.mark.quick("llama", "t5")
def test_the_tenth_digit_counts(kind, tmp_path):
    """A cast to seven digits anywhere would hide such changes behind its rounding."""
    inputs = example_inputs(load(save_tiny(kind, tmp_path)).checkpoint, "left")
    exact = Reference(tmp_path, load(tmp_path).checkpoint.architecture.name).exact
    weights = [parameter.data.clone() for parameter in exact.model.parameters()]

    def logits(change):
        for parameter, weight in zip(exact.model.parameters(), weights, strict=True):
            parameter.data = weight * (1 + change)
        return exact.outputs(inputs)["logits"]

    plain = logits(0)
    once, twice = logits(1e-9) - plain, logits(2e-9) - plain
    assert plain.dtype == np.float64
    np.testing.assert_allclose(twice, 2 * once, rtol=0, atol=1e-4 * np.abs(once).max())


def test_float64_in_place(tmp_path):
    model = load(save_tiny("llama", tmp_path))
    inputs, theirs = example_inputs(model.checkpoint), Reference(tmp_path, "LlamaForCausalLM")
    single, exact = theirs.outputs(inputs), theirs.exact.outputs(inputs)
    assert single["logits"].dtype == np.float32
    assert theirs.outputs(inputs)["logits"].dtype == np.float32
    for name, array in theirs.to_float64().outputs(inputs).items():
        np.testing.assert_array_equal(array, exact[name])
