"""Transcripts of models with a CTC head: windows, times of words, beams, and predictions."""

import json

import numpy as np
import pytest
from speech_tokenizers import LETTERS, VOCABULARY, save_speaker

import jaxformer
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.speech.features import waveform_features_of
from jaxformer.generation.speech.frames import frame_log_probs
from jaxformer.generation.speech.prediction import TranscriptPredictor
from jaxformer.generation.speech.transcripts import words_of
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import open_predictor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


def noise(samples, seed=0):
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


@pytest.mark.parametrize("kind", ["wav2vec2", "hubert"])
@pytest.mark.quick("wav2vec2")
def test_padding_to_few_sizes_changes_nothing(kind, tmp_path):
    model = load(save_speaker(tmp_path, kind))
    features, wave = waveform_features_of(model), noise(1001)
    found = frame_log_probs(model, wave, features)
    exact = jaxformer.forward(model, {"input_values": features(wave)[None]})["logits"][0]
    exact = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.torch
def test_words_and_their_times(model):
    tokenizer = model.prompt_encoder.tokenizer
    labels = [VOCABULARY[letter] for letter in "TO|A||ME"]
    times = [(round(place / 25, 2), round(place / 25 + 0.02, 2)) for place in range(len(labels))]
    found = words_of(tokenizer, labels, times)
    assert found == [
        {"word": "TO", "start": 0.0, "end": 0.06},
        {"word": "A", "start": 0.12, "end": 0.14},
        {"word": "ME", "start": 0.24, "end": 0.3},
    ]


@pytest.mark.slow
def test_times_are_those_of_frames_and_beams_score_their_labels(model):
    wave = noise(3000)
    plain = jaxformer.transcribe(model, wave, timestamps="words")
    (segment,) = plain["segments"]
    assert segment["words"]
    assert set(plain["text"]) <= set(LETTERS.replace("|", " "))
    times = [time for word in segment["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[-1] <= plain["duration"]
    assert " ".join(word["word"] for word in segment["words"]) == " ".join(plain["text"].split())
    (one,), (more,) = (jaxformer.transcribe(model, wave, num_beams=n)["segments"] for n in (2, 8))
    assert one["score"] <= more["score"] < 0
    long = jaxformer.transcribe(model, wave, num_beams=8, length_bonus=20.0)["segments"][0]
    assert len(long["tokens"]) > len(more["tokens"])


@pytest.mark.torch
def test_a_sound_shorter_than_a_frame_and_an_option_of_whisper_are_refused(model):
    with pytest.raises(DataError, match="16 samples: must have at least 17"):
        jaxformer.transcribe(model, noise(16))
    with pytest.raises(ConfigError, match="language = 'en': not an option of a model with a CTC"):
        jaxformer.transcribe(model, noise(400), language="en")


@pytest.mark.torch
def test_predict_writes_the_transcripts_of_a_table(folder, model, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for number in range(2):
        soundfile.write(tmp_path / f"{number}.wav", 0.1 * noise(4000, number), 16_000)
    (tmp_path / "clips.csv").write_text("audio,text\n0.wav,A\n1.wav,B\n")
    table, written = tmp_path / "clips.csv", tmp_path / "out.jsonl"
    assert main(["predict", str(folder), "--input", str(table), "--output", str(written)]) == 0
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    expected = [jaxformer.transcribe(model, tmp_path / f"{n}.wav")["text"] for n in range(2)]
    assert [row["transcript"] for row in rows] == expected
    assert [row["text"] for row in rows] == ["A", "B"]
    assert isinstance(open_predictor(folder, writer=TranscriptPredictor), TranscriptPredictor)
    again = ["--input", str(tmp_path), "--output", f"{written}2.csv"]
    assert main(["predict", str(folder), *again]) == 0
