"""Clips whose transcripts a decoder writes."""

import json

import numpy as np
import pytest
import speech_models as speech
from saved_folders import copy_of, save_tiny

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import ErrorRates, SpeechToText
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.errors import ConfigError, DataError
from jaxformer.optim import AdamW
from jaxformer.training.resolve import resolve

soundfile = pytest.importorskip("soundfile")
PREFIX = [speech.START, speech.ENGLISH, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Whisper, and a table of clips."""
    home = tmp_path_factory.mktemp("speech")
    save_tiny("whisper", home / "model")
    speech.write_files(home / "model")
    speech.write_words(home / "model")
    for number in range(4):
        wave = speech.sound(4000 + 500 * number, number)
        soundfile.write(home / f"{number}.wav", wave, speech.RATE)
    return home


def table(home, lines, name="clips.csv"):
    (home / name).write_text("\n".join(["path,text", *lines]) + "\n")
    return str(home / name)


def resolved(home, model="model", **fields):
    """The data of an experiment that starts from a checkpoint."""
    usual = table(home, [f"{n}.wav,w{n} w7" for n in range(4)], "usual.csv")
    given = {"train": usual, "batch_size": 2, "validation": usual}
    given |= {"language": "en", "target_length": 9} | fields
    config = Config(
        model=None,
        data=SpeechToText(**given),
        optimizer=AdamW(),
        train=TrainConfig(steps=1),
        init_from=str(home / model),
    )
    return resolve(config, home / "run").config.data


@pytest.mark.slow
def test_a_batch(home, tmp_path):
    data = resolved(home)
    assert data.prefix == tuple(PREFIX)
    assert data.features == LogMel(num_mel_bins=20, num_frames=speech.FRAMES)
    sides = data.prepare(tmp_path)
    batch = next(sides.validation.epoch())
    words, end = [[0, 7], [1, 7]], speech.END
    inputs = [[*PREFIX, *own, *[end] * 3] for own in words]
    np.testing.assert_array_equal(batch["decoder_inputs"], inputs)
    targets = [[*PREFIX[1:], *own, *[end] * 4] for own in words]
    np.testing.assert_array_equal(batch["targets"], targets)
    np.testing.assert_array_equal(batch["weights"], [[1] * 6 + [0] * 3] * 2)
    wave = soundfile.read(home / "1.wav", dtype="float32")[0]
    np.testing.assert_array_equal(batch["spectrograms"][1], data.features.spectrogram(wave))
    kept = json.loads((tmp_path / "tokenizer" / "preprocessor_config.json").read_text())
    assert kept["chunk_length"] == 0.6
    assert "error rates" in dict(sides.report())


@pytest.mark.slow
def test_the_prefix_may_be_left_out_of_the_loss(home, tmp_path):
    data = resolved(home, prefix_loss=False)
    batch = next(data.prepare(tmp_path).validation.epoch())
    np.testing.assert_array_equal(batch["weights"], [[0] * 3 + [1] * 3 + [0] * 3] * 2)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"language": None}, "data.language = None: must be one of en, de, fr"),
        ({"language": "xx"}, "data.language = 'xx': must be one of en, de, fr"),
    ],
)
def test_the_language_must_be_one_of_the_model(home, fields, words):
    with pytest.raises(ConfigError, match=words):
        resolved(home, **fields)


def test_a_model_must_write_transcripts(home):
    save_tiny("t5", home / "t5")
    with pytest.raises(ConfigError, match="does not write: name a Whisper"):
        resolved(home, "t5")


def test_settings_that_do_not_fit_the_model(home):
    other = copy_of(home / "model", home / "other")
    values = speech.PREPROCESSOR | {"feature_size": 80}
    (other / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="feature_size = 80: must be 20"):
        resolved(home, "other")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0.wav,  ", "clips.csv:2: no text: text is empty"),
        ("9.wav,w1", "9.wav does not exist"),
        ("0.wav," + "w1 " * 6, "10 tokens with the prefix, more than data.target_length = 9"),
        ("long.wav,w1", "1.0 seconds, more than the 0.6 of a window: cut the clip"),
        ("words.wav,w1", "is not a sound file that can be decoded"),
    ],
)
@pytest.mark.quick("*text is empty")
def test_a_row_that_cannot_be_used(home, tmp_path, line, words):
    soundfile.write(home / "long.wav", speech.sound(16_000), speech.RATE)
    (home / "words.wav").write_text("not a sound")
    data = resolved(home, train=table(home, [line, "1.wav,w1"]))
    with pytest.raises(DataError, match=words):
        data.prepare(tmp_path)


def test_error_rates_compare_words_without_case_and_punctuation():
    found = ErrorRates().scores(["Hello,  World", "a b"], [("hello world!",), ("a c d",)])
    assert found == {"wer": 2 / 5, "cer": pytest.approx(3 / 16)}
