"""Models loaded over a mesh: the outputs, gradients and texts of one device."""

import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.parity.compare import differences
from jaxformer.parity.examples import example_inputs

pytestmark = pytest.mark.torch

TOLERANCE = 2e-5
CASES = [
    ("llama", "ForCausalLM"),
    ("bert", "ForPreTraining"),
    ("roberta", "ForQuestionAnswering"),
    ("bart", "ForSequenceClassification"),
    ("t5", "ForConditionalGeneration"),
    ("longt5", "ForConditionalGeneration"),
    ("deberta-v2", "ForSequenceClassification"),
    ("big_bird", "ForPreTraining"),
    ("vit", "ForImageClassification"),
    ("vit_mae", "ForPreTraining"),
    ("siglip2", "ForImageClassification"),
    ("esm", "ForMaskedLM"),
    ("eurobert", "ForSequenceClassification"),
    ("whisper", "ForConditionalGeneration"),
    ("whisper", "ForAudioClassification"),
    ("wav2vec2", "ForCTC"),
    ("wav2vec2", "ForPreTraining"),
    ("hubert", "ForSequenceClassification"),
    ("audio-spectrogram-transformer", "ForAudioClassification"),
]


def load_twice(kind, head, folder):
    """A model on one device, and over data x fsdp x tensor."""
    # As published, two devices divide no vocabulary of RoBERTa, BART or Whisper.
    size = 131 if kind in ("roberta", "bart", "whisper") else 132
    changes = {} if "vit" in kind or kind == "siglip2" else {"vocab_size": size}
    save_tiny(kind, folder, head, **changes)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    return jaxformer.load(folder), jaxformer.load(folder, mesh=mesh)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head"), CASES, ids=["-".join(case) for case in CASES])
@pytest.mark.quick("llama-ForCausalLM")
def test_outputs_and_gradients_are_those_of_one_device(kind, head, tmp_path):
    one, several = load_twice(kind, head, tmp_path)
    inputs = example_inputs(one.checkpoint, "right", rows=4)
    expected, actual = (jaxformer.forward(model, inputs) for model in (one, several))
    assert "loss" in expected
    assert max(differences(actual, expected, inputs).values()) <= TOLERANCE
    expected, actual = (jaxformer.gradients(model, inputs) for model in (one, several))
    largest = max(np.abs(array).max() for array in expected.values())
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=TOLERANCE * largest)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("llama", "ForCausalLM"),
        ("t5", "ForConditionalGeneration"),
        ("bart", "ForSequenceClassification"),
    ],
)
@pytest.mark.quick("llama-*")
def test_losses_of_tokens_on_several_devices(kind, head, tmp_path):
    folder = save_tiny(kind, tmp_path, head, vocab_size=132)
    one = jaxformer.load(folder)
    several = jaxformer.load(folder, mesh=make_mesh(MeshConfig(data=2, sequence=4)))
    inputs = example_inputs(one.checkpoint, "right", rows=2)
    inputs = {name: x[:, :8] if x.ndim == 2 else x for name, x in inputs.items()}
    expected, actual = (jaxformer.forward(model, inputs) for model in (one, several))
    assert max(differences(actual, expected, inputs).values()) <= TOLERANCE


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.slow
def test_what_an_encoder_decoder_writes_is_that_of_one_device(num_beams, tmp_path):
    one, several = load_twice("t5", "ForConditionalGeneration", tmp_path)
    inputs = example_inputs(one.checkpoint, "right", rows=4)
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 6, "num_beams": num_beams}
    expected, actual = (
        jaxformer.generate(model, inputs, **options)["sequences"] for model in (one, several)
    )
    np.testing.assert_array_equal(actual, expected)


def test_rows_that_cannot_be_cut_are_refused(tmp_path):
    model = load_twice("llama", "ForCausalLM", tmp_path)[1]
    message = r"3 rows cannot be sharded over data .*= 4 devices"
    with pytest.raises(ConfigError, match=message):
        jaxformer.forward(model, {"input_ids": np.ones((3, 5), int)})


def test_patches_rotate_and_registers_are_read_on_a_mesh(tmp_path):
    one, several = load_twice("dinov3_vit", "Model", tmp_path)
    inputs = example_inputs(one.checkpoint, rows=4)
    expected, actual = (jaxformer.forward(model, inputs) for model in (one, several))
    assert max(differences(actual, expected, inputs).values()) <= TOLERANCE
