"""`lab speech`: what a model hears, beside transformers, and the files of the command."""

import json
import shutil

import numpy as np
import pytest
import speech_models as speech
from recordings import Recording
from speech_tokenizers import save_speaker
from tokenizers import Tokenizer, models, pre_tokenizers
from typed_commands import printed, refused

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.speech.features import filter_banks_of
from jaxformer.lab.speech.alignment import answer_maps, answer_of
from jaxformer.lab.speech.attention import over_time, steps_of, time_maps
from jaxformer.lab.speech.classes import classified_spectrogram, patch_weights, top_classes
from jaxformer.lab.speech.lattice import Labelled, emissions_picture, labelled, lattice_pictures
from jaxformer.lab.speech.report import PAGE, SpeechReport, sampling_rate_of
from jaxformer.lab.speech.sound import Sound, mel_centres, sound_picture, spectrogram_of
from jaxformer.pretrained.auto import load

RATE = 16_000


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = Recording.read("whisper").write(tmp_path_factory.mktemp("whisper"))
    special = [token for token in range(speech.VOCABULARY) if token > speech.END]
    speech.write_files(folder, suppress_tokens=special)
    return folder


@pytest.fixture(scope="module")
def listener(whisper):
    return load(whisper)


def clip(samples=9000):
    return Sound("clip.wav", speech.sound(samples), RATE)


def test_neighbours_are_joined_without_a_change_of_the_sum():
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (2, 3, 7)).astype(np.float32)
    edges = steps_of(7, 3)
    assert edges.tolist() == [0, 2, 5, 7]
    joined = over_time(over_time(weights, -1, edges), -2, edges)
    assert joined.shape == (2, 3, 3, 3)
    np.testing.assert_allclose(joined.sum(axis=-1), 1, atol=1e-6)
    expected = weights[:, :, 2:5, 5:7].sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(joined[:, :, 1, 2], expected, atol=1e-6)


def test_maps_show_the_sound_without_its_padding():
    weights = np.random.default_rng(0).dirichlet(np.ones(9), (1, 2, 9)).astype(np.float32)
    maps = time_maps("self-attention", weights, (3,), 0.02, 4)
    np.testing.assert_array_equal(maps.weights, weights[:, :, :4, :4])
    assert maps.queries == maps.keys == ["0.00 s", "0.02 s", "0.04 s", "0.06 s"]
    assert (maps.layers, maps.times) == ((3,), (True, True))
    named = time_maps("cross-attention", weights[:, :, :2], (3,), 0.02, 4, ["a", "b"])
    assert (named.queries, named.times) == (["a", "b"], (False, True))


@pytest.mark.parametrize("scale", ["slaney", "kaldi"])
def test_the_centres_of_filters_rise(scale):
    centres = mel_centres(40, RATE, scale)
    assert (np.diff(centres) > 0).all()
    assert centres[0] > 0
    assert centres[-1] < RATE / 2


def test_a_tone_stands_at_its_frequency():
    times = np.arange(RATE) / RATE
    found = spectrogram_of(Sound("tone", np.sin(2000 * np.pi * times).astype(np.float32), RATE))
    assert found.values.shape == (found.frames, 80)
    loudest = found.centres[found.values.mean(axis=0).argmax()]
    assert loudest == pytest.approx(1000, abs=40)


@pytest.mark.slow
def test_the_text_is_that_of_generate(listener):
    sound = clip()
    answer, spectrogram = answer_of(listener, sound, language="en")
    inputs = {"input_features": answer.inputs}
    options = {"language": "en", "do_sample": False, "max_new_tokens": 20}
    expected = jaxformer.generate(listener, inputs, **options)["sequences"][0].tolist()
    own = [*answer.prompt, *answer.tokens]
    assert own == expected[: len(own)]
    assert answer.tokens
    assert answer.language == "en"
    assert spectrogram.values.shape == (speech.FRAMES, 20)
    assert answer.alignment.attention.shape == (len(answer.tokens), answer.states)
    assert "".join(word["word"] for word in answer.words).strip() == answer.text


@pytest.fixture
def words_listener(whisper, tmp_path):
    """A model whose tokenizer splits texts into words."""
    shutil.copytree(whisper, tmp_path, dirs_exist_ok=True)
    names = [f"w{n}" if n < speech.END else f"<|{n}|>" for n in range(speech.VOCABULARY)]
    pieces = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(tmp_path)


@pytest.mark.slow
def test_a_given_text_is_aligned(words_listener):
    answer, _ = answer_of(words_listener, clip(), "w1 w2 w4", "en")
    assert answer.tokens == [1, 2, 4]
    assert answer.names == ["w1", "w2", "w4"]
    assert [word["end"] for word in answer.words][-1] == pytest.approx(clip().seconds, abs=1e-3)
    encoder, cross = answer_maps(words_listener, answer, (1,))
    assert encoder.weights.shape == (1, 4, answer.states, answer.states)
    assert cross.weights.shape == (1, 6, 3, answer.states)
    assert cross.queries == answer.names
    with pytest.raises(DataError, match="text: has 50 tokens: must have at most"):
        answer_of(words_listener, clip(), "w1 " * 50, "en")
    with pytest.raises(DataError, match="has no token"):
        answer_of(words_listener, clip(), "  ", "en")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    return save_speaker(tmp_path_factory.mktemp("speaker"))


def test_the_likeliest_token_of_each_frame_has_a_row_however_unlikely_it_is():
    scores = np.random.default_rng(0).normal(scale=0.01, size=(50, 60)).astype(np.float32)
    log_probs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    names = [f"t{number}" for number in range(60)]
    found = Labelled(log_probs, 0, (1,), names, "t1", 0.02, [])
    best = len({*log_probs.argmax(1)} - {0}) + 1
    axes = emissions_picture(found).axes[0]
    assert len(axes.get_yticks()) == min(best, 41)
    assert np.isfinite(axes.lines[0].get_ydata()).sum() > 40


@pytest.mark.slow
def test_the_lattice_of_a_given_text(speaker):
    model, sound = load(speaker), Sound("clip.wav", speech.sound(400), RATE)
    found = labelled(model, sound, "TEN")
    assert found.text == "TEN"
    assert found.names[found.blank] == "blank"
    assert [word["word"] for word in found.words] == ["TEN"]
    assert len(lattice_pictures(found)) == 1
    assert len(emissions_picture(found).axes) == 2  # with the colour bar
    assert labelled(model, sound).text == jaxformer.transcribe(model, sound.waveform)["text"]
    with pytest.raises(DataError, match="in the characters of the model"):
        labelled(model, sound, "ten")
    with pytest.raises(DataError, match="frames, and the sound has"):
        labelled(model, sound, "TEN " * 40 + "TEN")


@pytest.mark.more
def test_a_long_text_has_several_pictures(speaker):
    model, sound = load(speaker), Sound("clip.wav", speech.sound(1000), RATE)
    pictures = lattice_pictures(labelled(model, sound, "TEN HENS EAT IN THE HALL AND ONE"))
    titles = [picture.get_suptitle() for picture in pictures]
    assert [title[-13:] for title in titles] == ["(part 1 of 2)", "(part 2 of 2)"]


@pytest.fixture
def classifier(tmp_path):
    return load(Recording.read("audio-spectrogram-transformer").write(tmp_path))


@pytest.mark.more
def test_the_patches_and_classes_of_a_spectrogram_transformer(classifier):
    features = filter_banks_of(classifier)
    bins, frames = classifier.config.image_size
    spectrogram = classified_spectrogram(classifier, Sound("clip.wav", speech.sound(1200), RATE))
    assert spectrogram.values.shape == (frames, bins)
    assert spectrogram.frames == 1 + (1200 - 400) // 160
    assert features.frames_of(10**6) == frames
    inputs = {"input_values": spectrogram.values[None]}
    weights = patch_weights(classifier, inputs, (0, 1))
    assert weights.shape[2:] == classifier.config.grid_of((bins, frames))
    assert (weights.sum(axis=(2, 3)) < 1).all()  # the rest is on the class token
    classes = top_classes(classifier, inputs)
    logits = jaxformer.forward(classifier, inputs)["logits"][0]
    assert classes[0][0] == f"LABEL_{logits.argmax()}"
    assert sum(share for _, share in classes) == pytest.approx(1, abs=1e-6)
    with pytest.raises(DataError, match="must have at least 400"):
        features.spectrogram(np.zeros(399, np.float32))


@pytest.mark.torch
@pytest.mark.parametrize("samples", [700, 1200, 9000])
def test_filter_banks_are_those_of_transformers(classifier, samples):
    import transformers

    features = filter_banks_of(classifier)
    sizes = {"num_mel_bins": features.num_mel_bins, "max_length": features.num_frames}
    theirs = transformers.ASTFeatureExtractor(**sizes)
    wave = speech.sound(samples)
    expected = theirs(wave, sampling_rate=RATE, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(features.spectrogram(wave), expected, atol=2e-5)


@pytest.mark.slow
def test_the_command_writes_a_page(whisper, tmp_path, capsys):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "clip.wav", speech.sound(12_000), RATE)
    command = ["lab", "speech", whisper, tmp_path / "clip.wav", "--out", tmp_path]
    options = ("--language", "en", "--layers", "0", "--start", "0.1", "--seconds", "0.5")
    assert "written: " in printed(capsys, *command, *options)
    for name in ("spectrogram", "alignment", "cross-attention-layer-00"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    page = (tmp_path / PAGE).read_text()
    assert "clip.wav from 0.1 s" in page
    assert (tmp_path / "attention.html").is_file()
    assert "--start 7: must be less than 0.75" in refused(capsys, *command, "--start", "7")


@pytest.mark.slow
@pytest.mark.quick("wav2vec2")
@pytest.mark.parametrize("kind", ["wav2vec2", "hubert"])
def test_the_page_of_a_ctc_head(kind, tmp_path):
    model = load(save_speaker(tmp_path / "model", kind))
    sound = Sound("clip.wav", speech.sound(600), RATE)
    page = SpeechReport(tmp_path / "out", model, sound, heads=(1,)).write()
    assert {"emissions.png", "self-attention-overview.png"} <= {
        x.name for x in page.parent.iterdir()
    }


@pytest.mark.more
def test_the_page_of_classes(classifier, tmp_path):
    sound = Sound("clip.wav", speech.sound(1200), RATE)
    page = SpeechReport(tmp_path / "out", classifier, sound, layers=(1,)).write()
    names = {x.name for x in page.parent.iterdir()}
    assert {"classes.png", "attention-layers.png", "attention-layer-01.png"} <= names


def test_other_models_are_refused(tmp_path):
    model = load(Recording.read("bert").write(tmp_path))
    with pytest.raises(ConfigError, match=r"lab speech: .* has the model_type 'bert'"):
        sampling_rate_of(model)


def test_a_picture_has_the_words():
    words = [{"word": " $x$", "start": 0.1, "end": 0.2}]
    sound = clip()
    figure = sound_picture(sound, spectrogram_of(sound), words)
    assert [text.get_text() for text in figure.axes[0].texts] == [r"\$x\$"]
