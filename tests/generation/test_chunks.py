"""Sounds in chunks that overlap: texts, tokens and times of the pipeline of transformers."""

import json
import re

import numpy as np
import pytest
import speech_models as speech
from speech_tokenizers import save_speaker

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.generation.speech.joining import merged
from jaxformer.generation.speech.transcripts import stretches
from jaxformer.generation.speech.words import grouped

CHUNK, STRIDE = 0.6, 0.1
SIZES = {
    "short": 3001,
    "one chunk": speech.WINDOW,
    "a chunk and a sample": speech.WINDOW + 1,
    "two chunks": 2 * speech.WINDOW - 3200,
    "six": 5 * speech.WINDOW + 1234,
}
each_size = pytest.mark.parametrize("samples", SIZES.values(), ids=SIZES)


# Whisper ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """The same model here and in a pipeline of transformers."""
    from transformers import WhisperFeatureExtractor, WhisperTokenizer, pipeline

    folder = tmp_path_factory.mktemp("whisper")
    theirs = speech.save_whisper(folder)
    names = ("endoftext", "startoftranscript", "en", "de", "fr", "translate", "transcribe")
    names += ("startofprev", "nospeech", "notimestamps")
    end, *others = (f"<|{name}|>" for name in names)
    pieces = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = {piece: number for piece, number in pieces.items() if number < speech.END}
    tokenizer = WhisperTokenizer(vocab=pieces, merges=[])
    tokenizer.add_tokens([end], special_tokens=True)
    tokenizer.add_special_tokens({"extra_special_tokens": others})
    tokenizer.add_tokens([f"<|{0.02 * number:.2f}|>" for number in range(31)])
    assert tokenizer.convert_tokens_to_ids("<|0.00|>") == speech.FIRST_TIMESTAMP
    tokenizer.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(**speech.PREPROCESSOR)
    extractor.n_samples = speech.WINDOW
    task = "automatic-speech-recognition"
    made = pipeline(task, model=theirs, tokenizer=tokenizer, feature_extractor=extractor)
    return jaxformer.load(folder), made


def pipelined(made, wave, batch_size=1, **options):
    options = {"chunk_length_s": CHUNK, "stride_length_s": STRIDE} | options
    return made(
        {"raw": wave.copy(), "sampling_rate": speech.RATE}, batch_size=batch_size, **options
    )


def in_chunks(model, wave, **options):
    options = {"chunk_length_s": CHUNK, "stride_length_s": STRIDE} | options
    return jaxformer.transcribe(model, wave, **options)


@pytest.mark.torch
@each_size
@pytest.mark.quick("a chunk and a sample", "six")
def test_texts_without_times_are_those_of_the_pipeline(whisper, samples):
    ours, theirs = whisper
    wave = speech.sound(samples)
    expected = pipelined(theirs, wave, generate_kwargs={"num_beams": 1, "max_new_tokens": 12})
    options = {"timestamps": "none", "max_new_tokens": 12, "batch_size": 2}
    found = in_chunks(ours, wave, **options, **speech.ACCEPTED)
    assert found["text"] == expected["text"].strip()
    assert found["duration"] == samples / speech.RATE


@pytest.mark.torch
@each_size
@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "language": "de"}], ids=["", "beams"])
@pytest.mark.quick("-*", "beams-a chunk and a sample")
def test_segments_are_those_of_the_pipeline(whisper, samples, options):
    ours, theirs = whisper
    wave = speech.sound(samples, seed=3)
    own = {"num_beams": 1} | options
    expected = pipelined(theirs, wave, return_timestamps=True, generate_kwargs=own)
    found = in_chunks(ours, wave, batch_size=2, **options, **speech.ACCEPTED)
    assert found["text"] == expected["text"].strip()
    check_segments(found["segments"], expected["chunks"])


def check_segments(found, expected):
    assert [each["text"] for each in found] == [each["text"] for each in expected]
    for own, their in zip(found, expected, strict=True):
        for name, time in zip(("start", "end"), their["timestamp"], strict=True):
            if time is not None:
                assert own[name] == pytest.approx(time, abs=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("stride", [0.0, 0.2, 0.05])
def test_any_overlap_is_that_of_the_pipeline(whisper, stride):
    ours, theirs = whisper
    wave = speech.sound(4 * speech.WINDOW + 40, seed=1)
    sizes = {"chunk_length_s": 0.5, "stride_length_s": stride}
    own = {"num_beams": 1, "language": "en"}
    expected = pipelined(theirs, wave, return_timestamps=True, generate_kwargs=own, **sizes)
    found = in_chunks(ours, wave, batch_size=2, language="en", **sizes, **speech.ACCEPTED)
    check_segments(found["segments"], expected["chunks"])


@pytest.mark.torch
@each_size
@pytest.mark.quick("a chunk and a sample", "six")
def test_words_are_those_of_the_pipeline(whisper, samples):
    ours, theirs = whisper
    wave = speech.sound(samples, seed=2)
    own = {"num_beams": 1, "language": "en"}
    expected = pipelined(theirs, wave, return_timestamps="word", generate_kwargs=own)
    found = in_chunks(
        ours, wave, batch_size=2, language="en", timestamps="words", **speech.ACCEPTED
    )
    words = [word for each in found["segments"] for word in each["words"]]
    assert [word["word"] for word in words] == [each["text"] for each in expected["chunks"]]
    # Of a window that begins beyond the end, transformers counts the frames as negative.
    end = samples / speech.RATE
    within = [all(time <= end for time in each["timestamp"]) for each in expected["chunks"]]
    words, chunks = (
        [each for each, inside in zip(all_of, within, strict=True) if inside]
        for all_of in (words, expected["chunks"])
    )
    times = [(word["start"], word["end"]) for word in words]
    assert times == [pytest.approx(each["timestamp"], abs=1e-6) for each in chunks]


@pytest.mark.torch
def test_texts_do_not_depend_on_the_batch(whisper):
    ours, _ = whisper
    wave = speech.sound(3 * speech.WINDOW)
    limits = {"temperature": (0.0, 0.5), "logprob_threshold": -3.0, "language": "en"}
    limits |= {"max_new_tokens": 8}
    one, *more = (in_chunks(ours, wave, batch_size=n, **limits) for n in (1, 2))
    assert one["text"]
    assert all(each == one for each in more)


@pytest.mark.torch
def test_options_of_chunks_are_checked(whisper):
    ours, _ = whisper
    wave = speech.sound(speech.WINDOW)
    for options, error, match in [
        ({"batch_size": 0}, ArgumentError, "batch_size = 0"),
        ({"batch_size": 1, "chunk_length_s": 0.7}, ArgumentError, r"chunk_length_s = 0.7.*0\.6"),
        ({"batch_size": 1, "stride_length_s": 0.3}, ArgumentError, "stride_length_s = 0.3"),
        ({"chunk_length_s": 0.5}, ConfigError, "chunk_length_s = 0.5.*batch_size"),
        (
            {"batch_size": 2, "condition_on_prev_tokens": True},
            ConfigError,
            "condition_on_prev_tokens.*batch_size",
        ),
    ]:
        with pytest.raises(error, match=match):
            jaxformer.transcribe(ours, wave, **options)


@pytest.mark.torch
def test_texts_are_merged_as_by_transformers():
    from transformers.models.whisper.tokenization_whisper import _find_longest_common_sequence

    rng = np.random.default_rng(0)
    for _ in range(200):
        texts = [rng.integers(4, size=n).tolist() for n in rng.integers(0, 9, size=3)]
        assert merged(texts, [[]] * 3)[0] == _find_longest_common_sequence(texts)
        starts = [np.sort(rng.integers(9, size=len(text))).tolist() for text in texts]
        times = [[(start, start + 1) for start in own] for own in starts]
        assert merged(texts, times) == _find_longest_common_sequence(texts, times)


@pytest.mark.torch
@pytest.mark.parametrize("language", ["en", "ja"])
def test_words_are_grouped_as_by_transformers(language):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    names = {"en": "english", "ja": "japanese"}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {letter: number for number, letter in enumerate(letters)}
    theirs = WhisperTokenizer(vocab=pieces, merges=[])
    ours = Tokenizer(models.BPE(pieces, []))
    ours.decoder, ours.pre_tokenizer = decoders.ByteLevel(), pre_tokenizers.ByteLevel(False)
    for text in ('He said: "So (be) it!" - ¿qué?', "日本、語。é", " a  b ' c", "«x»..", "'"):
        tokens = ours.encode(text).ids
        for some in (tokens, tokens[:-1], tokens[1:]):
            words, _, places = _combine_tokens_into_words(theirs, some, names[language])
            assert grouped(ours, some, language) == list(zip(words, places, strict=True))


# CTC --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["wav2vec2", "hubert"])
def speaker(request, tmp_path_factory):
    """The same model here and in a pipeline of transformers."""
    import transformers

    folder = save_speaker(tmp_path_factory.mktemp(request.param), request.param)
    ours = jaxformer.load(folder)
    kind = transformers.AutoModelForCTC.from_pretrained(folder).eval()
    extractor = transformers.Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(folder)
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(folder)
    task = "automatic-speech-recognition"
    return ours, transformers.pipeline(
        task, model=kind, tokenizer=tokenizer, feature_extractor=extractor
    )


@pytest.mark.torch
@pytest.mark.parametrize("samples", [17, 301, 1600, 1601, 1603, 4003])
@pytest.mark.quick("wav2vec2-*")
def test_labels_are_those_of_the_pipeline(speaker, samples):
    ours, theirs = speaker
    wave = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    sizes = {"chunk_length_s": 0.1, "stride_length_s": 0.02}
    expected = re.sub("<[^>]*>", "", pipelined(theirs, wave, **sizes)["text"])
    reports = []
    for batch_size in (None, 4):
        found = jaxformer.transcribe(
            ours, wave, batch_size=batch_size, progress=lambda *t: reports.append(t), **sizes
        )
        assert found["text"] == expected.strip()
        assert found["duration"] == samples / 16_000
        texts = [each["text"] for each in found["segments"]]
        assert "".join(texts).replace(" ", "") == found["text"].replace(" ", "")
        ends = [time for each in found["segments"] for time in (each["start"], each["end"])]
        assert ends == sorted(ends)
        assert reports[-1][0] == reports[-1][1] == pytest.approx(samples / 16_000)


def test_stretches_end_in_pauses():
    path = np.array([1, 0, 0, 0, 2, 3, 0, 0, 2, 2, 1, 1, 3, 2])
    scores = np.log(np.eye(4)[path] + 0.1)
    found = list(stretches([scores[:8], scores[8:8], scores[8:12], scores[12:]], [0, 3]))
    assert [len(each) for each in found] == [6, 6, 2]
    np.testing.assert_array_equal(np.concatenate(found), scores)
    assert list(stretches([], [0])) == list(stretches([scores[:0]], [0])) == []
