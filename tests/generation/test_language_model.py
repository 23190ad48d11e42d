"""Beams of a CTC head that a language model scores, beside all texts and beside pyctcdecode."""

import json
import math
import sys
from collections import defaultdict
from itertools import product

import ngrams
import numpy as np
import pytest
import speech_models as speech
from ngrams import save_arpa
from recordings import Recording
from speech_tokenizers import save_speaker
from test_ctc_decoding import all_labels, scores_of

import jaxformer
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError, DataError
from jaxformer.extras import MissingExtra
from jaxformer.generation.speech.ctc import prefix_beams
from jaxformer.generation.speech.language_model import LanguageModel, read_language_model
from jaxformer.pretrained.auto import load

LETTERS = ("", "A", "B", " ")
BLANK, SEPARATOR = 0, 3
OPTIONS = {"blank": BLANK, "num_beams": 400}


@pytest.fixture(params=["kenlm", "Python"])
def library(request, monkeypatch):
    """KenLM where it is installed, and what computes the same in Python."""
    if request.param == "kenlm":
        return pytest.importorskip("kenlm")
    monkeypatch.setitem(sys.modules, "kenlm", ngrams)
    return ngrams


@pytest.fixture
def in_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", ngrams)


def texts_of(log_probs):
    """Every text with its log-probability over all paths."""
    found = defaultdict(lambda: -np.inf)
    for labels, score in all_labels(log_probs, BLANK).items():
        text = text_of(labels)
        found[text] = np.logaddexp(found[text], score)
    return found


def text_of(labels):
    return " ".join("".join(LETTERS[label] for label in labels).split())


def written(file):
    """Log-probabilities to base 10 by hand: with backoff, unknown words with -10 more."""
    model = ngrams.Model(str(file))

    def score(text, boundary=True):
        state, total = ngrams.State(), 0.0
        if boundary:
            model.BeginSentenceWrite(state)
        for word in text.split():
            after = ngrams.State()
            total += model.BaseScore(state, word, after) - 10 * (word not in model)
            state = after
        return total + (model.BaseScore(state, "</s>", ngrams.State()) if boundary else 0.0)

    return score


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("weights", [(0.5, 1.5), (2.0, -1.0), (0.0, 0.0)])
def test_scores_are_those_of_all_texts(library, tmp_path, weights, boundary):
    file, (alpha, beta) = save_arpa(tmp_path), weights
    read = read_language_model(file)
    model = LanguageModel("", read.ngrams, read.words, (), alpha, beta, score_boundary=boundary)
    log_probs = scores_of(5, 4)
    found = prefix_beams(log_probs, **OPTIONS, scorer=model.scorer(LETTERS, SEPARATOR))
    expected, score = texts_of(log_probs), written(file)
    assert len(found) == len(expected)
    for labels, own in found:
        text = text_of(labels)
        added = alpha * math.log(10) * score(text, boundary) + beta * len(text.split())
        assert own == pytest.approx(expected[text] + added, abs=2e-6)
    assert found == sorted(found, key=lambda each: -each.score)


def test_python_scores_words_as_kenlm_does(tmp_path):
    kenlm, file = pytest.importorskip("kenlm"), save_arpa(tmp_path)
    model, score = kenlm.Model(str(file)), written(file)
    for count in range(4):
        for words in product(("AB", "BA", "A", "BAA", "C"), repeat=count):
            text = " ".join(words)
            own = score(text) + 10 * words.count("C")
            assert model.score(text) == pytest.approx(own, abs=1e-5)


def test_words_of_the_model_win_where_sounds_do_not_decide(in_python, tmp_path):
    scorer = read_language_model(save_arpa(tmp_path)).scorer(LETTERS, SEPARATOR)
    even = np.log(np.full((6, 4), 0.25))
    even[:4] = np.log(0.02)
    even[np.arange(4), [1, 2, 3, 1]] = np.log(0.94)  # "AB A"
    log_probs = even - np.log(np.exp(even).sum(axis=1, keepdims=True))
    (best, *_), (plain, *_) = (
        prefix_beams(log_probs, blank=BLANK, num_beams=50, scorer=each) for each in (scorer, None)
    )
    assert text_of(best.labels) == "AB A"
    assert text_of(plain.labels) != "AB A"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_beams", [100, 400])
def test_texts_and_scores_are_those_of_pyctcdecode(tmp_path, seed, num_beams):
    pytest.importorskip("kenlm")
    theirs = pytest.importorskip("pyctcdecode")
    file = save_arpa(tmp_path)
    log_probs = scores_of(12, 4, seed)
    # A space at the end costs there as much as an unknown word: none of its beams is kept.
    log_probs[-1] = np.log([1e-12, 1 - 3e-12, 1e-12, 1e-12])
    decoder = theirs.build_ctcdecoder(list(LETTERS), str(file), alpha=0.7, beta=0.4)
    pruning = {"beam_prune_logp": -1e9, "token_min_logp": -20.0}
    expected = decoder.decode_beams(log_probs, beam_width=2 * num_beams, **pruning)
    scorer = read_language_model(file, alpha=0.7, beta=0.4).scorer(LETTERS, SEPARATOR)
    found = prefix_beams(log_probs, blank=BLANK, num_beams=num_beams, scorer=scorer)
    assert text_of(found[0].labels) == expected[0][0]
    for (labels, score), (text, *_, own) in zip(found[:3], expected[:3], strict=True):
        assert text_of(labels) == text
        assert score == pytest.approx(own, abs=1e-4 if num_beams == 400 else 0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_speaker(tmp_path_factory.mktemp("speaker"))


def save_processor(folder, **attributes):
    """Writes what `Wav2Vec2ProcessorWithLM` writes beside a tokenizer."""
    own = folder / "language_model"
    own.mkdir(parents=True)
    save_arpa(own)
    (own / "unigrams.txt").write_text("AB\nBA\nunheard\n")
    values = {"alpha": 0.9, "beta": -0.5, "unk_score_offset": -7.0, "score_boundary": False}
    (own / "attrs.json").write_text(json.dumps(values | attributes))
    alphabet = {"labels": list(LETTERS), "is_bpe": False}
    (folder / "alphabet.json").write_text(json.dumps(alphabet))
    return own


def test_the_folder_of_a_processor_has_words_and_weights(in_python, tmp_path):
    own = save_processor(tmp_path)
    for path in (tmp_path, own):
        model = read_language_model(path, beta=2)
        assert (model.alpha, model.beta, model.unk_score_offset) == (0.9, 2, -7.0)
        assert model.score_boundary is False
        assert model.words == ("AB", "BA")
        assert model.alphabet == LETTERS
    with pytest.raises(ConfigError, match=r"alphabet.json has 'A' as label 1"):
        model.scorer(("", "B", "A", " "), SEPARATOR)


def test_a_folder_of_pyctcdecode_is_read(tmp_path):
    pytest.importorskip("kenlm")
    theirs = pytest.importorskip("pyctcdecode")
    decoder = theirs.build_ctcdecoder(list(LETTERS), str(save_arpa(tmp_path)), alpha=0.7, beta=0.4)
    own = tmp_path / "own"
    own.mkdir()
    decoder.save_to_dir(str(own))
    model = read_language_model(own)
    assert (model.alpha, model.beta) == (0.7, 0.4)
    assert set(model.words) == {"AB", "BA", "A", "BAA"}
    assert model.alphabet == LETTERS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.arpa", "no model", "a.arpa: KenLM reads no language model here"),
        ("a.bin", "\x82\x00" * 99, "a.bin: KenLM reads no language model here"),
        ("a.txt", "no model", "a.txt: must end with .arpa, .bin, .binary"),
        ("empty/notes.txt", "", "empty: must have one language model .* and has none"),
    ],
)
def test_what_is_no_language_model_is_named(library, tmp_path, name, content, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    path = tmp_path / name
    with pytest.raises(DataError, match=message):
        read_language_model(path.parent if path.parent != tmp_path else path)


def test_weights_and_words_that_do_not_fit_are_named(in_python, tmp_path):
    own = save_processor(tmp_path, alpha="much")
    with pytest.raises(DataError, match=r"attrs.json: alpha = 'much': must be a finite number"):
        read_language_model(own)
    file = save_arpa(tmp_path)
    with pytest.raises(ConfigError, match="beta = nan"):
        read_language_model(file, beta=math.nan)
    with pytest.raises(ConfigError, match=r"none of its words, such as 'B.*', is spelled"):
        read_language_model(file).scorer(("", "a", "b", " "), SEPARATOR)


def test_the_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(MissingExtra, match=r"pip install 'jaxformer\[kenlm\]'"):
        read_language_model(save_arpa(tmp_path))


@pytest.mark.more
def test_the_command_weighs_words(in_python, folder, tmp_path, capsys):
    soundfile = pytest.importorskip("soundfile")
    sound, output = tmp_path / "a.wav", tmp_path / "a.json"
    noise = np.random.default_rng(0).standard_normal(3000) / 5
    soundfile.write(sound, noise, 16_000)
    # The small model has no B.
    file = tmp_path / "words.arpa"
    file.write_text(ngrams.ARPA.replace("B", "T"))
    command = ["transcribe", str(folder), str(sound), "--language-model", str(file)]
    assert main([*command, "--beams", "20", "--beta", "6", "--output", str(output)]) == 0
    text = json.loads(output.read_text())["text"]
    words = text.split(" ")
    assert set(words) <= {"AT", "TA", "A", "TAA"}
    assert main(command) != 0
    assert "num_beams = 1: must be at least 2" in capsys.readouterr().err
    assert main([*command[:3], "--alpha", "1"]) != 0
    assert "give it by --language-model" in capsys.readouterr().err


@pytest.mark.more
def test_a_whisper_needs_none(in_python, tmp_path):
    model = load(Recording.read("whisper").write(tmp_path))
    speech.write_files(tmp_path)
    file = save_arpa(tmp_path)
    with pytest.raises(ConfigError, match="language_model: chooses among the beams of a CTC head"):
        jaxformer.transcribe(model, np.zeros(100, np.float32), language_model=file)
