"""`jaxformer transcribe`: sound files to text, subtitles and JSON."""

import json
from inspect import signature

import numpy as np
import pytest
import speech_models as speech
from recordings import Recording
from typed_commands import command, printed, status_of

from jaxformer.cli.inference.transcribe import Transcribe
from jaxformer.generation.speech.api import transcribe

soundfile = pytest.importorskip("soundfile")
QUICK = ("--max-new-tokens", "5", "--temperature", "0.0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = Recording.read("whisper").write(tmp_path_factory.mktemp("whisper"))
    speech.write_files(folder)
    for number in range(2):
        wave = speech.sound(speech.WINDOW + 900, seed=number)
        soundfile.write(folder / f"{number}.wav", wave, speech.RATE)
    return folder


def test_the_options_are_those_of_the_function():
    wanted, parameters = Transcribe("DIR", ("a.wav",)), signature(transcribe).parameters
    for name in parameters.keys() & vars(wanted).keys():
        assert getattr(wanted, name) == parameters[name].default, name
    assert wanted.beams == 1


@pytest.mark.torch
@pytest.mark.slow
def test_the_screen_shows_times_and_text(folder, capsys):
    output = printed(capsys, "transcribe", folder, folder / "0.wav", folder / "1.wav", *QUICK)
    lines = output.splitlines()
    assert lines[0].endswith("0.wav:")
    assert "-->" in lines[1]


@pytest.mark.torch
@pytest.mark.parametrize("ending", ["txt", "srt", "vtt", "json"])
@pytest.mark.quick("srt")
def test_every_kind_of_file_is_written(folder, tmp_path, ending):
    output = tmp_path / f"talk.{ending}"
    timing = ("--timestamps", "words", "--language", "en")
    command("transcribe", folder, folder / "0.wav", "--output", output, *timing, *QUICK)
    text = output.read_text()
    if ending == "json":
        assert json.loads(text)["segments"][0]["words"]
    else:
        assert ("-->" in text) == (ending != "txt")


@pytest.mark.torch
def test_several_files_are_lines_of_one(folder, tmp_path):
    output = tmp_path / "talks.jsonl"
    sounds = [folder / "0.wav", folder / "1.wav"]
    command("transcribe", folder, *sounds, "--output", output, *QUICK)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["file"] for row in rows] == [str(sound) for sound in sounds]


@pytest.mark.torch
def test_a_sound_that_breaks_off_costs_none_before_it(folder, tmp_path, capsys):
    broken, output = tmp_path / "broken.wav", tmp_path / "talks.jsonl"
    wave = np.where(np.arange(400) == 100, np.nan, 0.1)
    soundfile.write(broken, wave, speech.RATE, subtype="FLOAT")
    asked = (folder, folder / "0.wav", broken, "--output", output, *QUICK)
    assert status_of("transcribe", *asked) != 0
    assert "broken.wav" in capsys.readouterr().err
    assert json.loads(output.read_text())["file"] == str(folder / "0.wav")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "sound files"),
        (("none.wav",), "none.wav"),
        (("0.wav", "1.wav", "--output", "a.srt"), "a.srt"),
        (("0.wav", "--output", "a.vtt", "--timestamps", "none"), "a.vtt"),
        (("0.wav", "--output", "a.pdf"), "a.pdf"),
        (("0.wav", "--language", "klingon"), "klingon"),
        (("config.json",), "config.json"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder, tmp_path, monkeypatch, capsys, arguments, named):
    monkeypatch.chdir(tmp_path)
    there = {path.name: path for path in folder.iterdir()}
    assert status_of("transcribe", folder, *(there.get(each, each) for each in arguments)) != 0
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("generate", "--prompt", "hello"), "jaxformer transcribe"),
        (("predict", "--task", "embeddings", "--output", "b.csv", "--input"), "jaxformer.forward"),
    ],
)
def test_a_command_for_texts_says_what_reads_sound(folder, tmp_path, capsys, words, named):
    table = tmp_path / "a.csv"
    table.write_text("text\nhello\n")
    name, *options = words
    options += [table] * (name == "predict")
    assert status_of(name, folder, *options) != 0
    error = capsys.readouterr().err
    assert "reads sound" in error
    assert named in error
