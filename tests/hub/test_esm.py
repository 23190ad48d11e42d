"""What ESM alone has: contacts, stored frequencies, embeddings that depend on masks and padding."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import change_tensors, save_tiny
from variants import check_gradients, check_outputs, models

from jaxformer.functional.positions.rope_scaling import GivenFrequencies
from jaxformer.models import AbstractModel
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MASK, END = 7, 2


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.quick("left")
def test_contacts_are_those_of_transformers(padding, tmp_path):
    ours, theirs = models(save_tiny("esm", tmp_path, "Model"))
    inputs = example_inputs(ours.checkpoint, padding)
    ids = np.where(np.arange(11) == 4, END, inputs["input_ids"])
    mask = inputs.get("attention_mask", np.ones_like(ids))
    exact = theirs.to_float64().model
    expected = exact.predict_contacts(torch.tensor(ids), torch.tensor(mask)).detach().numpy()
    inputs = {"input_ids": ids, "attention_mask": mask}
    attentions = forward(ours, inputs, output_attentions=True)["attentions"]
    head = AbstractModel(ours.config.build).module(ours.parameters).contact_head
    found = head(jnp.asarray(attentions), jnp.asarray((mask > 0) & (ids != END)))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def as_published(tensors):
    """Frequencies of each layer, rounded to float16, and a table that nothing reads."""
    (name,) = (each for each in tensors if each.endswith("inv_freq"))
    rounded = tensors.pop(name).astype(np.float16).astype(np.float32)
    for layer in range(3):
        tensors[name.replace("*", str(layer))] = rounded
    assert len(np.unique(rounded)) == 4


@pytest.mark.slow
def test_frequencies_are_those_of_the_file(tmp_path):
    folder = save_tiny("esm", tmp_path / "theirs")
    change_tensors(folder, as_published)
    ours, theirs = models(folder)
    assert isinstance(ours.config.position.scaling, GivenFrequencies)
    inputs = example_inputs(ours.checkpoint, "left")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    save(load(folder, dtype=None), tmp_path / "ours")
    before, after = (tmp_path / name / "model.safetensors" for name in ("theirs", "ours"))
    assert before.read_bytes() == after.read_bytes()
    save(ours, tmp_path / "again")
    again = load(tmp_path / "again")
    assert again.config == ours.config
    assert "esm.rotary_embeddings.inv_freq" in load_file(tmp_path / "again/model.safetensors")


def test_rows_with_many_masks_and_with_none(tmp_path):
    ours, theirs = models(save_tiny("esm", tmp_path))
    inputs = example_inputs(ours.checkpoint, "right")
    ids = np.where(inputs["input_ids"] == MASK, MASK + 1, inputs["input_ids"])
    ids[1, :4] = MASK
    check_outputs(ours, theirs, inputs | {"input_ids": ids})
