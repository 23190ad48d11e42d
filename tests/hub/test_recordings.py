"""One class of each system against what transformers computed, see tests/recordings."""

import json

import jax
import numpy as np
import pytest
from recordings import NAMES, Recording
from safetensors.numpy import load_file

import jaxformer
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.names import current_name
from jaxformer.parity.compare import CEILING, FLOOR, TIMES, errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import save_random
from jaxformer.zoo import FORMATS

GRADIENTS = [name for name in NAMES if "gradients" in Recording.read(name).rounding]
STATES = "hidden_states"  # the end of the names of their arrays: those of each layer
GENERATED = [name for name in NAMES if "generated" in Recording.read(name).arrays]


def assert_rounding_alone(found: dict, rounding: float):
    """Holds our errors to the limit of `limit_of_rounding`, with the recorded error of theirs."""
    limit = min(TIMES * rounding + FLOOR, CEILING)
    assert not {name: pair.ours for name, pair in found.items() if pair.ours > limit}


def assert_as_recorded(recording: Recording, model, states: bool):
    """Holds the states of each layer, or all other outputs, to what transformers computed."""
    inputs, outputs = recording.arrays["inputs"], recording.arrays["outputs"]
    actual = jaxformer.forward(model, inputs, output_hidden_states=states)
    expected = {name: x for name, x in outputs.items() if name.endswith(STATES) == states}
    assert expected.keys() <= actual.keys()
    found = errors(actual, expected, expected, inputs)
    assert_rounding_alone(found, recording.rounding["outputs"])


def test_every_system_is_recorded():
    assert set(NAMES) == set(FORMATS)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_tensors(name, tmp_path):
    recording = Recording.read(name)
    model = jaxformer.load(recording.write(tmp_path / "theirs"))
    assert_as_recorded(recording, model, states=False)
    jaxformer.save(model, tmp_path / "ours")
    after = load_file(tmp_path / "ours" / "model.safetensors")
    before = {current_name(n, FORMATS[name]): x for n, x in recording.tensors().items()}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.first(*GRADIENTS)
@pytest.mark.quick(*GRADIENTS, "*-v2", "qwen2_moe", "gemma2", "modernbert", "t5gemma", "whisper")
def test_hidden_states(name, tmp_path):
    recording = Recording.read(name)
    assert_as_recorded(recording, jaxformer.load(recording.write(tmp_path)), states=True)


@pytest.mark.optimized
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, tmp_path):
    recording = Recording.read(name)
    model = jaxformer.load(recording.write(tmp_path))
    actual = jaxformer.gradients(model, recording.arrays["inputs"])
    expected = recording.arrays["gradients"]
    assert_rounding_alone(
        gradient_errors(actual, expected, expected), recording.rounding["gradients"]
    )


@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["greedy", "beams"])
@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.first("llama-greedy")
@pytest.mark.quick("llama-*")
def test_generated_tokens(name, kind, tmp_path):
    recording = Recording.read(name)
    model, prompts = jaxformer.load(recording.write(tmp_path)), recording.arrays["prompts"]
    beams = {"greedy": 1, "beams": 3}[kind]
    found = jaxformer.generate(model, prompts, max_new_tokens=8, num_beams=beams)
    np.testing.assert_array_equal(found["sequences"], recording.arrays["generated"][kind])


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_transformers_makes_the_same(name, tmp_path):
    from recordings.__main__ import measured

    recording, system = Recording.read(name), FORMATS[name]
    assert recording.architecture == system.architectures[0].name
    save_random(name, recording.architecture, tmp_path / "today")
    config = json.loads((tmp_path / "today" / "config.json").read_text())
    version = {"transformers_version": recording.config["transformers_version"]}
    assert config | version == recording.config
    today, tensors = load_file(tmp_path / "today" / "model.safetensors"), recording.tensors()
    assert {n: x.shape for n, x in today.items()} == {n: x.shape for n, x in tensors.items()}
    for computed, array in recording.arrays.get("tensors", {}).items():
        assert_near(today[computed], array)

    folder, inputs = recording.write(tmp_path / "recorded"), recording.arrays["inputs"]
    remade = measured(recording, folder, inputs).arrays
    assert remade.keys() == recording.arrays.keys()
    for kind, arrays in recording.arrays.items():
        assert remade[kind].keys() == arrays.keys()
        scale = max(np.max(np.abs(x), initial=0.0) for x in arrays.values())
        for of_kind, array in arrays.items():
            assert_near(remade[kind][of_kind], array, scale)
    fresh = example_inputs(read_checkpoint(HFConfig(config), FORMATS), "left", rows=2)
    jax.tree.map(np.testing.assert_array_equal, fresh, inputs)


def assert_near(remade, recorded, scale=0.0):
    """Compares in parts of the largest number of an array.

    What is zero in exact arithmetic, as the gradient of a key's bias, is the rounding of a machine:
    below 1e-12 of the largest number among all arrays, `scale`.
    """
    largest = np.max(np.abs(recorded), initial=0.0)
    atol = max(1e-6 * largest, 1e-12 * scale)
    np.testing.assert_allclose(remade, recorded, rtol=0, atol=atol)
