"""Sound files as waveforms."""

import struct
import tracemalloc

import numpy as np
import pytest

from jaxformer.data.files.record import EmbeddedFile
from jaxformer.data.sound import SampleReader, SoundStream, read_sound
from jaxformer.errors import DataError

soundfile = pytest.importorskip("soundfile")


def tone(rate, seconds=0.5, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype("f4")


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_every_format_holds_the_same_sound(tmp_path, ending):
    file = tmp_path / f"a.{ending}"
    soundfile.write(file, tone(16_000), 16_000)
    found = read_sound(file, 16_000)
    assert found.dtype == np.float32
    error = np.abs(found[2000:6000] - tone(16_000)[2000:6000]).max()
    assert error < (1e-4 if ending in ("wav", "flac") else 0.1)


def test_an_embedded_file_is_read_as_the_file(tmp_path):
    file = tmp_path / "a.flac"
    soundfile.write(file, tone(16_000), 16_000)
    embedded = EmbeddedFile("clips.parquet, row 1", file.read_bytes())
    np.testing.assert_array_equal(read_sound(embedded, 16_000), read_sound(file, 16_000))


def test_channels_are_averaged(tmp_path):
    channels = np.random.default_rng(0).uniform(-1, 1, (1000, 8)).astype("f4")
    soundfile.write(tmp_path / "a.wav", channels, 16_000, subtype="FLOAT")
    found = read_sound(tmp_path / "a.wav", 16_000)
    np.testing.assert_allclose(found, channels.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100])
def test_another_rate_is_resampled_and_said(tmp_path, rate, caplog):
    soundfile.write(tmp_path / "a.wav", tone(rate), rate, subtype="FLOAT")
    found = read_sound(tmp_path / "a.wav", 16_000)
    assert len(found) == 8_000
    np.testing.assert_allclose(found[1000:7000], tone(16_000)[1000:7000], atol=1e-3)
    assert f"{rate:,} Hz" in caplog.text


def test_a_stream_is_the_file_of_which_little_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.data.sound._BLOCK", 1000)
    file = tmp_path / "a.wav"
    soundfile.write(file, tone(16_000, seconds=60), 16_000)
    whole, stream = read_sound(file, 16_000), SoundStream.of_file(file, 16_000)
    assert stream.length == len(whole)
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate(list(stream.blocks())), whole)
    reader = SampleReader(stream.blocks())
    tracemalloc.start()
    for start in range(0, len(whole), 5_000):
        part = reader.read(start, start + 8_000)
        np.testing.assert_array_equal(part, whole[start : start + 8_000])
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < whole.nbytes / 10


def test_a_long_file_is_the_same_in_blocks(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", tone(44_100), 44_100, subtype="FLOAT")
    whole = read_sound(tmp_path / "a.wav", 16_000)
    monkeypatch.setattr("jaxformer.data.sound._BLOCK", 1000)
    np.testing.assert_allclose(read_sound(tmp_path / "a.wav", 16_000), whole, atol=1e-6)


def bad_file(path, kind):
    soundfile.write(path, tone(16_000), 16_000, subtype="FLOAT")
    content = bytearray(path.read_bytes())
    if kind == "no header":
        content = b"hello, this is not a sound file"
    elif kind == "empty":
        content = b""
    elif kind == "no samples":
        soundfile.write(path, np.zeros((0, 2), "f4"), 16_000)
        content = path.read_bytes()
    elif kind == "0 Hz":
        content[24:28] = struct.pack("<I", 0)
    elif kind == "nan":
        content[-4:] = struct.pack("<f", np.nan)
    elif kind == "damaged":
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, 50_000)
        soundfile.write(path, noise, 16_000, format="FLAC")
        content = path.read_bytes()[:40_000]
    path.write_bytes(content)


@pytest.mark.parametrize(
    "kind", ["missing", "no header", "empty", "no samples", "0 Hz", "nan", "damaged"]
)
def test_a_bad_file_is_named(tmp_path, kind):
    if kind != "missing":
        bad_file(tmp_path / "clip.wav", kind)
    with pytest.raises(DataError, match=r"clip\.wav"):
        read_sound(tmp_path / "clip.wav", 16_000)


def test_a_long_file_is_refused_before_it_is_decoded(tmp_path):
    soundfile.write(tmp_path / "clip.wav", tone(16_000), 16_000)
    with pytest.raises(DataError, match=r"clip\.wav.*0\.5.*0\.2"):
        read_sound(tmp_path / "clip.wav", 16_000, max_seconds=0.2)
