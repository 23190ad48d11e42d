"""Transcripts: windows of any length, words, subtitles, and what is refused."""

import json

import numpy as np
import pytest
import speech_models as speech
from recordings import Recording
from saved_folders import copy_of
from tokenizers import Tokenizer

import jaxformer
from jaxformer.data.sound import SampleReader, SoundStream
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.functional import log_mel
from jaxformer.generation.speech.features import log_mel_of
from jaxformer.generation.speech.segments import Segment, previous_tokens
from jaxformer.generation.speech.spectrograms import LongSpectrogram, reflected
from jaxformer.generation.speech.subtitles import clock, plain_text, srt, timed_text, vtt
from jaxformer.generation.speech.words import words_of

QUICK = {"max_new_tokens": 6, "temperature": (0.0,), "language": "en"}
TRANSCRIPT = {
    "text": "Hello there. Good day.",
    "segments": [
        {
            "start": 0.0,
            "end": 1.5,
            "text": " Hello there.",
            "words": [
                {"word": " Hello", "start": 0.0, "end": 0.7},
                {"word": " there.", "start": 0.7, "end": 1.5},
            ],
        },
        {"start": 1.5, "end": 3661.25, "text": " Good day."},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = Recording.read("whisper").write(tmp_path_factory.mktemp("whisper"))
    speech.write_files(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return jaxformer.load(folder)


@pytest.mark.torch
def test_a_short_and_a_long_sound_end_where_they_end(model):
    reports = []
    for samples in (speech.WINDOW // 2, 2 * speech.WINDOW + 700):
        wave = speech.sound(samples)
        done = []
        found = jaxformer.transcribe(
            model, wave, progress=lambda *each, done=done: done.append(each), **QUICK
        )
        assert found["duration"] == samples / speech.RATE
        assert found["language"] == "en"
        assert all(each["start"] <= each["end"] for each in found["segments"])
        assert "".join(each["text"] for each in found["segments"]).strip() == found["text"]
        assert done[-1][0] == done[-1][1] == pytest.approx(found["duration"], abs=0.01)
        reports.append(done)
    assert len(reports[0]) < len(reports[1])


@pytest.mark.torch
def test_another_rate_is_the_sound_resampled(model):
    pytest.importorskip("soxr")
    wave = speech.sound(speech.WINDOW)
    twice = np.interp(np.arange(2 * len(wave)) / 2, np.arange(len(wave)), wave).astype("f4")
    found = jaxformer.transcribe(model, twice, sampling_rate=2 * speech.RATE, **QUICK)
    assert found["duration"] == pytest.approx(0.6)


@pytest.mark.torch
def test_times_of_words_lie_within_the_sound(model):
    wave = speech.sound(speech.WINDOW + 500)
    found = jaxformer.transcribe(model, wave, timestamps="words", **QUICK)
    words = [word for each in found["segments"] for word in each["words"]]
    assert words
    assert all(0 <= word["start"] <= word["end"] for word in words)
    assert "".join(word["word"] for word in words).strip() == found["text"]
    plain = jaxformer.transcribe(model, wave, timestamps="none", **QUICK)
    assert "segments" not in plain


@pytest.mark.torch
def test_a_file_is_transcribed_as_its_samples(model, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    wave = speech.sound(2 * speech.WINDOW + 33)
    soundfile.write(tmp_path / "talk.wav", wave, speech.RATE, subtype="FLOAT")
    for options in ({}, {"batch_size": 2}):
        found = jaxformer.transcribe(model, tmp_path / "talk.wav", **options, **QUICK)
        assert found == jaxformer.transcribe(model, wave, **options, **QUICK)
    with pytest.raises(DataError, match="none"):
        jaxformer.transcribe(model, str(tmp_path / "none.wav"), **QUICK)


@pytest.mark.more
def test_a_short_spectrogram_is_padded_and_a_long_one_in_parts_is_the_whole(model):
    features, options = log_mel_of(model), {"sampling_rate": speech.RATE, "fft_length": 400}
    options |= {"num_mel_bins": 20, "hop": speech.HOP}
    short = speech.sound(speech.WINDOW // 2)
    padded = log_mel(np.pad(short, (0, speech.WINDOW // 2)), **options)
    np.testing.assert_allclose(features.spectrogram(short), padded, atol=1e-5)
    for samples in (2 * speech.WINDOW - speech.HOP, 2 * speech.WINDOW, 4 * speech.WINDOW + 77):
        wave = speech.sound(samples)
        wave[: samples // 2] /= 1e4  # the loudest part is in the last window
        whole = log_mel(wave, **options)
        stream = SoundStream("waveform", samples, lambda wave=wave: iter(np.array_split(wave, 9)))
        found = LongSpectrogram(features, stream)
        assert found.total == -(-samples // speech.HOP)
        for start in (0, 7, 60, 101):
            part = whole[start : start + features.num_frames]
            window = found.window(start)
            np.testing.assert_allclose(window[: len(part)], part, atol=1e-5)
            assert not window[len(part) :].any()


@pytest.mark.parametrize("sizes", [(5, 1, 9, 3), (18,), (1,) * 18])
def test_stretches_of_a_stream_are_those_of_the_whole(sizes):
    wave = np.arange(18.0)
    blocks = np.split(wave, np.cumsum(sizes)[:-1])
    reader = SampleReader(blocks)
    for start, stop in [(0, 3), (0, 0), (2, 7), (6, 7), (11, 14), (11, 30), (17, 19), (20, 22)]:
        np.testing.assert_array_equal(reader.read(start, stop), wave[start:stop])
    padded = np.concatenate(list(reflected(iter(blocks), 4)))
    np.testing.assert_array_equal(padded, np.pad(wave, 4, mode="reflect"))


def test_the_text_before_ends_with_single_timestamps():
    first = speech.FIRST_TIMESTAMP
    segments = [
        Segment(0, 1, (first, 4, first + 5)),
        Segment(1, 2, (first + 5, 6, first + 9, first + 9)),
    ]
    told = [first, 4, first + 5, first + 5, 6, first + 9]
    assert previous_tokens(segments, first, 10) == told
    assert previous_tokens(segments, first, 2) == told[-2:]


@pytest.mark.torch
def test_heads_that_the_decoder_does_not_have_are_named(folder, tmp_path):
    copy = copy_of(folder, tmp_path / "copy")
    speech.write_files(copy, alignment_heads=[[0, 1], [7, 3]])
    wave = speech.sound(speech.WINDOW // 2)
    with pytest.raises(ConfigError, match=r"alignment_heads .*\[7, 3\]"):
        jaxformer.transcribe(jaxformer.load(copy), wave, timestamps="words", **QUICK)


def test_tokens_are_grouped_to_words(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = words_of(tokenizer, [1, 3, 2], [0.1, 0.2, 0.4], 0.9, "en")
    assert found == [
        {"word": " w1x3", "start": 0.1, "end": 0.4},
        {"word": " w2", "start": 0.4, "end": 0.9},
    ]
    apart = words_of(tokenizer, [1, 3], [0.1, 0.2], 0.9, "ja")
    assert [word["word"] for word in apart] == [" w1", "x3"]


def test_subtitles():
    assert clock(3661.25, ",") == "01:01:01,250"
    assert clock(0.0006, ".") == "00:00:00.001"
    assert srt(TRANSCRIPT) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n"
        "2\n00:00:01,500 --> 01:01:01,250\nGood day.\n\n"
    )
    assert vtt(TRANSCRIPT).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n")
    assert plain_text(TRANSCRIPT) == "Hello there.\nGood day.\n"
    assert timed_text(TRANSCRIPT).splitlines()[1] == "[00:00:00.700 --> 00:00:01.500] there."


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"language": "klingon"}, ConfigError, "klingon.*en, de, fr"),
        ({"language": "spanish"}, ConfigError, "spanish.*en, de, fr"),
        ({"task": "summarize"}, ConfigError, "task.*summarize"),
        ({"timestamps": "letters"}, ArgumentError, "timestamps.*letters"),
        ({"temperature": ()}, ArgumentError, "temperature"),
        ({"temperature": (-1.0,)}, ArgumentError, "temperature"),
        ({"sampling_rate": 0}, ArgumentError, "sampling_rate.*0"),
        ({"stop_strings": ("a",)}, ConfigError, "stop_strings"),
        ({"beams": 3}, ConfigError, "beams.*num_beams"),
    ],
)
def test_an_option_that_cannot_be_is_named(model, options, error, match):
    with pytest.raises(error, match=match):
        jaxformer.transcribe(model, speech.sound(1000), **options)


@pytest.mark.parametrize(
    "wave",
    [
        np.zeros(0, np.float32),
        np.zeros((2, 100), np.float32),
        np.zeros(100, np.int16),
        np.array([0.0, np.nan] * 100),
    ],
    ids=["empty", "stereo", "integers", "nan"],
)
def test_a_waveform_that_cannot_be_is_refused(model, wave):
    with pytest.raises(DataError, match="waveform"):
        jaxformer.transcribe(model, wave)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"feature_size": 80}, "feature_size = 80.*20"), ({"chunk_length": 30}, "chunk_length = 30")],
)
def test_a_preprocessor_that_disagrees_with_the_model_is_named(folder, tmp_path, changes, match):
    copy = copy_of(folder, tmp_path / "copy")
    file = copy / "preprocessor_config.json"
    file.write_text(json.dumps(speech.PREPROCESSOR | changes))
    with pytest.raises(DataError, match=match):
        jaxformer.transcribe(jaxformer.load(copy), speech.sound(1000))


@pytest.mark.torch
def test_timestamps_need_their_tokens(folder, tmp_path):
    copy = copy_of(folder, tmp_path / "copy")
    (copy / "generation_config.json").unlink()
    model = jaxformer.load(copy)
    with pytest.raises(ConfigError, match="no_timestamps_token_id"):
        jaxformer.transcribe(model, speech.sound(1000))
    found = jaxformer.transcribe(
        model, speech.sound(1000), timestamps="none", max_new_tokens=4, temperature=(0.0,)
    )
    assert found["language"] is None


def test_a_model_of_texts_transcribes_nothing(tmp_path):
    folder = Recording.read("bart").write(tmp_path)
    with pytest.raises(ConfigError, match=r"bart.*must be 'whisper', or a model with a CTC head"):
        jaxformer.transcribe(jaxformer.load(folder), speech.sound(1000))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        (np.zeros((2, speech.FRAMES, 20), np.float32), r"input_features.*\[B, 20, 60\]"),
        (np.zeros((2, 20, 40), np.float32), r"input_features.*\[B, 20, 60\]"),
        (np.zeros((2, 20, speech.FRAMES), np.int32), "input_features.*floats"),
        (np.full((2, 20, speech.FRAMES), np.nan, np.float32), "input_features.*NaN"),
    ],
    ids=["transposed", "short", "integers", "nan"],
)
def test_a_spectrogram_that_cannot_be_is_refused(model, inputs, match):
    with pytest.raises(DataError, match=match):
        jaxformer.generate(model, {"input_features": inputs})


def test_a_mask_of_frames_changes_nothing(model):
    spectrograms = np.random.default_rng(0).normal(size=(2, 20, speech.FRAMES)).astype(np.float32)
    inputs = {"input_features": spectrograms, "decoder_input_ids": np.array([[91, 3], [91, 4]])}
    mask = {"attention_mask": np.arange(speech.FRAMES)[None] < np.array([[30], [60]])}
    plain, masked = (jaxformer.forward(model, inputs | more)["logits"] for more in ({}, mask))
    np.testing.assert_array_equal(masked, plain)
