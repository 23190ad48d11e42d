"""Speech models of transformers: variants, files of older versions, and inputs that are refused."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import save_tiny
from variants import check_outputs

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.describe import describe
from jaxformer.hub.tasks.speech import CTCTask
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.verify import verify
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS


@pytest.mark.torch
def test_the_decoder_of_a_whole_whisper_is_a_language_model(tmp_path):
    name, alone = "WhisperForCausalLM", tmp_path / "alone"
    ours = load(save_tiny("whisper", tmp_path / "whole"), architecture=name)
    save(ours, alone)
    assert load(alone).checkpoint.architecture.name == name
    whole, part = (load_file(tmp_path / each / "model.safetensors") for each in ("whole", "alone"))
    assert part.keys() == {key for key in whole if key.startswith("model.decoder.")}
    assert all(np.array_equal(part[key], whole[key]) for key in part)
    check_outputs(ours, Reference(alone, name), example_inputs(ours.checkpoint, "right"))
    assert describe(ours.config, FORMATS.values()).architecture.name == name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(save_tiny("wav2vec2", tmp_path_factory.mktemp("wav2vec2")))


BAD_INPUTS = {
    "two channels": ({"input_values": np.zeros((2, 2, 90), np.float32)}, "one channel of each"),
    "no frame": ({"input_values": np.zeros((2, 16), np.float32)}, "at least 17 samples, one frame"),
    "an empty row": (
        {
            "input_values": np.zeros((2, 90), np.float32),
            "attention_mask": np.repeat([[1], [0]], 90, axis=1),
        },
        "0 samples in row 1: must have at least 17",
    ),
    "labels beyond the vocabulary": (
        {"input_values": np.zeros((2, 90), np.float32), "labels": np.full((2, 3), 23)},
        "the model has 0 to 22",
    ),
    "a mask of samples": (
        {"input_values": np.zeros((2, 90), np.float32), "mask_time_indices": np.ones((2, 90), int)},
        "one for each frame",
    ),
    "NaN": ({"input_values": np.full((2, 90), np.nan, np.float32)}, "NaN"),
    "ids": ({"input_ids": np.zeros((2, 9), int)}, "not an input of this model"),
}


@pytest.mark.parametrize(("inputs", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_inputs_are_one_sentence(model, inputs, words):
    with pytest.raises(DataError, match=words):
        forward(model, inputs)


def test_a_blank_is_the_padding_id(model):
    assert model.config.heads[0].blank == 3
    assert isinstance(model.checkpoint.architecture.task, CTCTask)


def test_padding_that_follows_a_clip_counts_in_a_norm_over_time_as_in_transformers(tmp_path):
    """The base models were trained so; `model.outputs` with the samples leaves padding out."""
    ours = load(save_tiny("hubert", tmp_path))
    wave = np.random.default_rng(0).standard_normal((1, 60)).astype(np.float32)
    padded = np.pad(wave, ((0, 0), (0, 30)))
    mask = np.arange(90)[None, :] < 60
    alone = forward(ours, {"input_values": wave})["logits"]
    found = forward(ours, {"input_values": padded, "attention_mask": mask.astype(int)})["logits"]
    assert np.abs(found[:, : alone.shape[1]] - alone).max() > 1e-2
    batch = {"waveforms": padded, "num_samples": np.array([60])}
    exact = ours.model.scores(batch)["ctc"][:, : alone.shape[1]]
    np.testing.assert_allclose(exact, alone, rtol=2e-5, atol=2e-5)


def test_a_spectrogram_has_one_size(tmp_path):
    ours = load(save_tiny("audio-spectrogram-transformer", tmp_path))
    with pytest.raises(DataError, match="frames before mel bins"):
        forward(ours, {"input_values": np.zeros((1, 9, 14), np.float32)})
    with pytest.raises(ConfigError, match="interpolate_positions"):
        replace(ours.config, interpolate_positions=True)


@pytest.mark.torch
@pytest.mark.slow
def test_a_pre_trained_model_with_long_frames_is_verified(tmp_path):
    sizes = {"conv_kernel": [40, 8, 4], "conv_stride": [20, 4, 2]}
    case = verify(save_tiny("wav2vec2", tmp_path, "PreTraining", **sizes))["cases"]["right"]
    assert case["compared"] == "projected_states"
    assert max(case["relative"].values()) <= 2e-5
