"""Whisper beside transformers: tokens, segments, times of words."""

import json

import numpy as np
import pytest
import speech_models as speech
from saved_folders import copy_of

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.generation.decode.processors import History
from jaxformer.generation.decode.timestamps import Timestamps
from jaxformer.generation.speech.segments import compression_ratio, split
from jaxformer.generation.speech.words import median_filter, warping_path

pytestmark = pytest.mark.torch
FIRST = speech.FIRST_TIMESTAMP


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same model here and in transformers."""
    folder = tmp_path_factory.mktemp("whisper")
    theirs = speech.save_whisper(folder)
    return jaxformer.load(folder), theirs


def their_features(model, wave):
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor.from_pretrained(model.folder)
    options = {"truncation": False, "padding": "longest", "return_tensors": "pt"}
    return extractor(wave, sampling_rate=speech.RATE, return_attention_mask=True, **options)


# Short sounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"language": "german"},
        {"language": "<|fr|>", "task": "translate"},
        {"return_timestamps": True},
        {"num_beams": 3},
        {"num_beams": 3, "return_timestamps": True, "language": "en"},
    ],
    ids=lambda options: ",".join(map(str, options.values())) or "detected",
)
@pytest.mark.quick("detected", "3")
def test_generates_the_tokens_of_transformers(models, options):
    import torch

    ours, theirs = models
    shape = (3, 20, speech.FRAMES)
    spectrograms = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    expected = theirs.generate(
        torch.tensor(spectrograms), max_new_tokens=20, force_unique_generate_call=True, **options
    ).numpy()
    inputs = {"input_features": spectrograms}
    found = jaxformer.generate(ours, inputs, max_new_tokens=20, **options)["sequences"]
    width = max(expected.shape[1], found.shape[1])
    expected, found = (
        np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=speech.END)
        for x in (expected, found)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("latest_start", [None, 5])
def test_timestamps_are_allowed_where_transformers_allows_them(latest_start):
    import torch
    from transformers import GenerationConfig
    from transformers.generation import WhisperTimeStampLogitsProcessor

    rng = np.random.default_rng(0)
    values = {"eos_token_id": speech.END, "no_timestamps_token_id": speech.NO_TIMESTAMPS}
    if latest_start is not None:
        values["max_initial_timestamp_index"] = latest_start
    theirs = WhisperTimeStampLogitsProcessor(GenerationConfig(**values), begin_index=3)
    ours = Timestamps(FIRST, speech.END, latest_start)
    for length in range(3, 9):
        tokens = np.where(
            rng.random((40, 10)) < 0.6,
            FIRST + np.sort(rng.integers(31, size=(40, 10))),
            rng.integers(speech.END, size=(40, 10)),
        ).astype(np.int32)
        logits = (2 * rng.normal(size=(40, speech.VOCABULARY))).astype(np.float32)
        given = [np.full(40, n, np.int32) for n in (length, 3, 10)]
        found = ours(logits, History(tokens, *given))
        rows = torch.tensor(tokens[:, :length].astype(np.int64))
        np.testing.assert_allclose(found, theirs(rows, torch.tensor(logits)).numpy(), rtol=1e-6)


# Long sounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["open", "single", "pair"])
def test_windows_are_cut_as_in_transformers(models, ending):
    import torch

    _, theirs = models
    rng = np.random.default_rng(0)
    for length in range(1, 12):
        tokens = rng.integers(speech.END, size=length).tolist()
        for place in rng.integers(length, size=3):
            tokens[place : place + 1] = [FIRST + 2 * int(place)] * int(rng.integers(1, 3))
        tokens += {"open": [5], "single": [5, FIRST + 29], "pair": [FIRST + 30] * 2}[ending]
        expected, step = theirs._retrieve_segment(
            seek_sequence=torch.tensor(tokens),
            seek_outputs=[None],
            time_offset=torch.tensor([1.2], dtype=torch.float64),
            timestamp_begin=FIRST,
            seek_num_frames=torch.tensor([50]),
            time_precision=0.02,
            time_precision_features=0.01,
            input_stride=2,
            prev_idx=0,
            idx=0,
            return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 4),
        )
        found, own = split(tokens, FIRST, frames=50, offset=120, seconds=0.01)
        assert own == int(step)
        assert [list(each.tokens) for each in found] == [x["tokens"].tolist() for x in expected]
        times = [[float(each[end]) for end in ("start", "end")] for each in expected]
        np.testing.assert_allclose([each[:2] for each in found], times, atol=1e-9)
        assert [each.place + 4 for each in found] == [x["idxs"][0] for x in expected]


@pytest.mark.parametrize(
    "options",
    [
        {"language": "en"},
        {"condition_on_prev_tokens": True},
        {"num_beams": 3, "language": "de"},
        {"task": "translate"},
    ],
    ids=lambda options: ",".join(options),
)
@pytest.mark.quick("condition_on_prev_tokens")
def test_long_sounds_are_transcribed_as_by_transformers(models, options):
    ours, theirs = models
    wave = speech.sound(5 * speech.WINDOW + 3000)
    expected = theirs.generate(
        **their_features(ours, wave),
        return_timestamps=True,
        return_segments=True,
        return_token_timestamps=True,
        **options,
    )["segments"][0]
    found = jaxformer.transcribe(ours, wave, timestamps="words", **speech.ACCEPTED, **options)
    assert len(expected) > 5
    assert [each["tokens"] for each in found["segments"]] == [
        each["tokens"].tolist() for each in expected
    ]
    for own, their in zip(found["segments"], expected, strict=True):
        ends = [float(their["start"]), float(their["end"])]
        np.testing.assert_allclose([own["start"], own["end"]], ends, atol=1e-3)
        is_word = their["tokens"] < speech.END
        starts = [round(float(start), 3) for start in their["token_timestamps"][is_word]]
        begins = [word["start"] for word in own["words"]]
        assert begins[:1] == starts[:1]
        assert set(begins) <= set(starts)


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [False, True])
@pytest.mark.parametrize("windows", [1, 4])
@pytest.mark.quick("4-False")
def test_a_prompt_is_read_as_in_transformers(models, tmp_path, windows, conditions):
    import torch

    ours, theirs = models
    folder = copy_of(ours.folder, tmp_path / "words")
    speech.write_words(folder)
    wave = speech.sound(windows * speech.WINDOW)
    options = {"language": "en", "condition_on_prev_tokens": conditions}
    expected = theirs.generate(
        **their_features(ours, wave),
        return_timestamps=True,
        return_segments=True,
        prompt_ids=torch.tensor([speech.PREVIOUS, 5, 17, 6]),
        **options,
    )["segments"][0]
    model = jaxformer.load(folder)
    found = jaxformer.transcribe(model, wave, prompt="w5 w17 w6", **speech.ACCEPTED, **options)
    plain = jaxformer.transcribe(model, wave, **speech.ACCEPTED, **options)
    tokens = [each["tokens"] for each in found["segments"]]
    assert tokens == [each["tokens"].tolist() for each in expected]
    assert tokens != [each["tokens"] for each in plain["segments"]]
    with pytest.raises(ConfigError, match="prompt: has 30 tokens: must have at most 19"):
        jaxformer.transcribe(model, wave, prompt="w1 " * 30, **options)


def test_repetitions_compress_as_in_transformers(models):
    import torch

    _, theirs = models
    for tokens in ([5] * 40, list(range(40))):
        expected = theirs._retrieve_compression_ratio(torch.tensor(tokens), speech.VOCABULARY)
        assert compression_ratio(tokens, speech.VOCABULARY) == expected


def test_paths_and_medians_are_those_of_transformers():
    import torch
    from transformers.models.whisper.generation_whisper import (
        _dynamic_time_warping,
        _median_filter,
    )

    rng = np.random.default_rng(0)
    for height, width in [(1, 1), (1, 9), (7, 1), (6, 30), (20, 11)]:
        # Few different values, so that predecessors are often equal.
        cost = rng.integers(3, size=(height, width)).astype(np.float64)
        for found, expected in zip(warping_path(cost), _dynamic_time_warping(cost), strict=True):
            np.testing.assert_array_equal(found, expected)
    x = rng.normal(size=(2, 3, 40))
    np.testing.assert_array_equal(median_filter(x, 7), _median_filter(torch.tensor(x), 7).numpy())


# Fallback ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unlikely_text_is_written_again_and_silence_left_out(models):
    ours, _ = models
    wave = speech.sound(2 * speech.WINDOW)
    limits = {"temperature": (0.0, 0.5, 1.0), "compression_ratio_threshold": None}
    unlikely = {**limits, "logprob_threshold": 1.0, "no_speech_threshold": None, "language": "en"}
    found, again, other = (
        jaxformer.transcribe(ours, wave, **unlikely, seed=seed) for seed in (0, 0, 1)
    )
    assert {each["temperature"] for each in found["segments"]} == {1.0}
    assert found == again
    assert found["segments"] != other["segments"]
    silent = jaxformer.transcribe(ours, wave, **{**unlikely, "no_speech_threshold": 0.0})
    assert silent["text"] == ""
    assert silent["segments"] == []
    certain = jaxformer.transcribe(ours, wave, **{**unlikely, "logprob_threshold": -100.0})
    assert {each["temperature"] for each in certain["segments"]} == {0.0}


@pytest.mark.more
def test_files_of_older_versions_force_their_tokens(models, tmp_path):
    ours, _ = models
    folder = copy_of(ours.folder, tmp_path / "old")
    values = json.loads((folder / "generation_config.json").read_text())
    for name in ("lang_to_id", "task_to_id"):
        del values[name]
    values["forced_decoder_ids"] = [[1, speech.ENGLISH], [2, speech.TRANSCRIBE]]
    (folder / "generation_config.json").write_text(json.dumps(values))
    inputs = {"input_features": np.zeros((1, 20, speech.FRAMES), np.float32)}
    found = jaxformer.generate(jaxformer.load(folder), inputs, max_new_tokens=1)["sequences"]
    prefix = [speech.START, speech.ENGLISH, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]
    assert found[0, :4].tolist() == prefix
