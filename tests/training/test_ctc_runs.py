"""Runs that learn to transcribe: fine-tuned from a checkpoint, resumed, exported and used."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from saved_folders import save_tiny
from speech_tokenizers import VOCABULARY, save_characters
from tuned_runs import tune

import jaxformer
from jaxformer.config import load_config
from jaxformer.data import Characters
from jaxformer.errors import ConfigError
from jaxformer.models import CTC, WaveformConfig
from jaxformer.training.vocabulary import check_tokenizer

soundfile = pytest.importorskip("soundfile")
CONFIGS = Path(__file__).parents[2] / "configs"
TEXTS = ["a tin", "no rest", "that is it", "tea", "she is on it", "all do", "near us", "one more"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A checkpoint with characters, and a table of clips whose texts have only these."""
    home = tmp_path_factory.mktemp("clips")
    save_tiny("wav2vec2", home / "model")
    (home / "model" / "tokenizer.json").unlink()
    save_characters(home / "model")
    letters = {token: number for token, number in VOCABULARY.items() if number < 23}
    letters["<unk>"], letters["<pad>"] = 0, 3
    (home / "model" / "vocab.json").write_text(json.dumps(letters))
    lines = ["path,text"]
    for number, text in enumerate(TEXTS):
        noise = np.random.default_rng(number).standard_normal(1200 + 100 * number) / 5
        soundfile.write(home / f"{number}.wav", noise, 16_000)
        lines.append(f"{number}.wav,{text}")
    (home / "clips.csv").write_text("\n".join(lines) + "\n")
    return home


@pytest.mark.slow
def test_a_checkpoint_is_tuned_resumed_exported_and_transcribes(home, tmp_path, capsys):
    command = [
        "train", str(CONFIGS / "finetune_ctc.py"), "--init-from", str(home / "model"),
        "--data.train", str(home / "clips.csv"), "--data.batch-size", "2", "--data.buckets", "2",
        "--data.validation-fraction", "0.3", "--train.epochs", "None",
    ]  # fmt: skip
    assert {"wer", "cer"} <= tune(command, tmp_path).keys()
    assert "unalignable" in capsys.readouterr().out
    before, after = (jaxformer.load(f, dtype=None) for f in (home / "model", tmp_path / "a"))
    for name, array in after.parameters.items():
        same = np.array_equal(array, before.parameters[name])
        assert same == name.startswith("feature_encoder.") or "key.bias" in name
    wave = soundfile.read(home / "3.wav", dtype="float32")[0]
    both = [jaxformer.load(tmp_path / name, dtype="float32") for name in ("a", "hf")]
    texts = {jaxformer.transcribe(model, wave)["text"] for model in both}
    assert len(texts) == 1
    assert (tmp_path / "hf" / "vocab.json").exists()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (CTC(vocab_size=8, blank=1), "blank = 1: must be the padding id of the tokenizer, 0"),
        (CTC(vocab_size=7), "the tokenizer has 8 tokens, more than the vocab_size = 7"),
    ],
)
def test_the_head_must_fit_the_tokenizer(head, words):
    tokenizer = Characters("abc").fit([])
    sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "mlp_dim": 16}
    model = WaveformConfig(**sizes, heads=(CTC(vocab_size=8),))
    check_tokenizer(model, tokenizer)
    with pytest.raises(ConfigError, match=words):
        check_tokenizer(replace(model, heads=(head,)), tokenizer)


@pytest.mark.more
def test_sentences_are_spoken_once(tmp_path):
    pytest.importorskip("espeakng_loader")
    data = load_config(str(CONFIGS / "tiny_speech_ctc.py")).data
    few = replace(data, sentences=6, validation_sentences=4)
    first, second = few.prepare(tmp_path), few.prepare(tmp_path)
    assert [first.train.num_rows, first.validation.num_rows] == [6, 4]
    texts = [
        {clip.text for clip in side.examples.clips} for side in (first.train, first.validation)
    ]
    assert not texts[0] & texts[1]
    for one, other in zip(first.train.rows(), second.train.rows(), strict=True):
        np.testing.assert_array_equal(one["waveforms"], other["waveforms"])
        assert 4000 < one["num_samples"] < 8000 * few.max_seconds
