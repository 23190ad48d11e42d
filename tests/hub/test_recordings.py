"""One class of each system against what transformers computed, see tests/recordings."""

import jax
import numpy as np
import pytest
from recordings import NAMES, Recording
from safetensors.numpy import load_file

import jaxformer
from jaxformer.hub.weights.names import current_name
from jaxformer.parity.compare import CEILING, FLOOR, TIMES, errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.zoo import FORMATS

GRADIENTS = [name for name in NAMES if "gradients" in Recording.read(name).rounding]
GENERATED = [name for name in NAMES if "generated" in Recording.read(name).arrays]


def assert_rounding_alone(found: dict, rounding: float):
    """Holds our errors to the limit of `limit_of_rounding`, with the recorded error of theirs."""
    limit = min(TIMES * rounding + FLOOR, CEILING)
    assert not {name: pair.ours for name, pair in found.items() if pair.ours > limit}


def test_every_system_is_recorded():
    assert set(NAMES) == set(FORMATS)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_tensors(name, tmp_path):
    recording = Recording.read(name)
    model = jaxformer.load(recording.write(tmp_path / "theirs"))
    inputs, expected = recording.arrays["inputs"], recording.arrays["outputs"]
    actual = jaxformer.forward(model, inputs, output_hidden_states=True)
    assert expected.keys() <= actual.keys()
    found = errors(actual, expected, expected, inputs)
    assert_rounding_alone(found, recording.rounding["outputs"])
    jaxformer.save(model, tmp_path / "ours")
    after = load_file(tmp_path / "ours" / "model.safetensors")
    before = {current_name(n, FORMATS[name]): x for n, x in recording.tensors().items()}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[n], after[n]) for n in before)


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
@pytest.mark.parametrize("name", GENERATED)
def test_generated_tokens(name, tmp_path):
    recording = Recording.read(name)
    model, generated = jaxformer.load(recording.write(tmp_path)), recording.arrays["generated"]
    for kind, options in {"greedy": {}, "beams": {"num_beams": 3}}.items():
        found = jaxformer.generate(model, recording.arrays["prompts"], max_new_tokens=8, **options)
        np.testing.assert_array_equal(found["sequences"], generated[kind])


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_transformers_makes_the_same(name, tmp_path):
    from recordings.__main__ import described, measured

    recording, today = Recording.read(name), described(FORMATS[name])
    assert today.architecture == recording.architecture
    for values in (today.config, recording.config):
        del values["transformers_version"]
    assert today.config == recording.config
    assert {n: shape for n, (shape, *_) in today.drawn.items()} == {
        n: shape for n, (shape, *_) in recording.drawn.items()
    }
    folder, inputs = recording.write(tmp_path), recording.arrays["inputs"]
    remade = measured(recording, folder, inputs).arrays
    assert remade.keys() == recording.arrays.keys()
    jax.tree.map(_assert_near, remade, recording.arrays)
    jax.tree.map(_assert_near, today.arrays["tensors"], recording.arrays.get("tensors", {}))
    fresh = example_inputs(jaxformer.load(folder).checkpoint, "left", rows=2)
    jax.tree.map(np.testing.assert_array_equal, fresh, inputs)


def _assert_near(remade, recorded):
    largest = np.max(np.abs(recorded), initial=0.0)
    np.testing.assert_allclose(remade, recorded, rtol=0, atol=1e-6 * largest)
