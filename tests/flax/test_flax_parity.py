"""Every Flax class beside PyTorch's class in transformers, through `jaxformer.flax`."""

import numpy as np
import pytest
from recordings import Recording

from jaxformer.flax.auto import NAMES
from jaxformer.hub.flax_api.signatures import signatures_of
from jaxformer.hub.flax_classes import FLAX_CLASSES, flax_architecture
from jaxformer.parity.compare import differences
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.flax_program import describe_flax, flax_program
from jaxformer.zoo import FORMATS

CLASSES = {
    name: (kind, name)
    for kind, names in FLAX_CLASSES.items()
    for name in names
    if f"Flax{name}" in NAMES
}
RECORDED = {"bert": "", "gpt2": "", "t5": "", "vit": "", "clip_text_model": "CLIPTextModel"}


def flat(outputs):
    """Outputs as NumPy arrays by name; hidden states are stacked."""
    found = {}
    for name, value in outputs.items():
        if isinstance(value, dict):
            found |= {f"{name}.{own}": x for own, x in flat(value).items()}
        elif isinstance(value, tuple):
            # The last state of OPT 350M is narrower than the others.
            found[name] = np.stack([x for x in value if x.shape == value[0].shape])
        else:
            found[name] = np.asarray(value)
    return found


def _without_last_state(outputs):
    """The outputs without the last hidden state, which is another in PyTorch's class."""
    kept = {"hidden_states": outputs["hidden_states"][:-1]} if "hidden_states" in outputs else {}
    return {**outputs, **kept}


def arguments(model):
    return signatures_of(model.model_type, model.architecture)["__call__"].parameters


def old_name(model, name):
    """The old name of an input: a composite of sound has "inputs"."""
    return "inputs" if name == "input_values" and "inputs" in arguments(model) else name


def run(model, inputs, expected):
    """Asserts that the outputs are right for the inputs that the class has."""
    names = {old_name(model, name): name for name in inputs}
    given = {old: inputs[name] for old, name in names.items() if old in arguments(model)}
    outputs = flat(model(**given, output_hidden_states=True))
    if not model.checkpoint.model_format.flax.states_end_normalised:
        outputs, expected = (_without_last_state(each) for each in (outputs, expected))
    found = differences(outputs, expected, inputs)
    heads = [name for name in found if not name.endswith("hidden_states")]
    assert heads, f"nothing to compare: {list(expected)}"
    assert max(found.values()) <= 2e-5, found


@pytest.mark.parametrize("kind", RECORDED)
@pytest.mark.first("bert", "gpt2")
def test_as_recorded(kind, tmp_path):
    recording = Recording.read(kind)
    recording.write(tmp_path / "hf")
    name = f"Flax{RECORDED[kind] or recording.architecture}"
    model = NAMES[name].from_pretrained(tmp_path / "hf")
    run(model, recording.arrays["inputs"], recording.arrays["outputs"])


def test_models_of_one_configuration_share_their_functions():
    values = {**TINY["bert"], "model_type": "bert"}
    first, second = (describe_flax(values, "bert", "BertModel") for _ in range(2))
    assert flax_program(first, np.float32, False) is flax_program(second, np.float32, False)
    assert flax_program(first, np.float32, True) is not flax_program(first, np.float32, False)


@pytest.mark.torch
@pytest.mark.quick(
    "Llama*CausalLM", "Bert*CausalLM", "MarianModel", "CLIPModel", "BeitForImage*", "Whisper*Gen*"
)
@pytest.mark.parametrize("name", CLASSES)
def test_equal_to_pytorch(name, tmp_path):
    from jaxformer.parity.examples import example_inputs
    from jaxformer.parity.reference import Reference, save_random

    kind, own = CLASSES[name]
    model_format, architecture = flax_architecture(FORMATS, kind, own)
    save_random(model_format.model_type, architecture.name, tmp_path / "hf")
    reference = Reference(tmp_path / "hf", architecture.name)
    model = NAMES[f"Flax{name}"].from_pretrained(tmp_path / "hf")
    # The Flax decoder of Whisper counts positions by the mask, and PyTorch's does not.
    side = "left" if model.can_generate() and kind != "whisper" else "right"
    inputs = example_inputs(model.checkpoint, side)
    inputs = {n: x for n, x in inputs.items() if old_name(model, n) in arguments(model)}
    run(model, inputs, reference.outputs(inputs))
