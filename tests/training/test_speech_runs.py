"""Runs on speech: transcribing by CTC or Whisper, and masked sounds; resumed, exported and used."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import speech_models as speech
from saved_folders import assert_same_parameters, save_tiny
from speech_tokenizers import VOCABULARY, save_characters
from tiny_models import tiny_waveform
from tuned_runs import tune

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import Config, TrainConfig, load_config
from jaxformer.data import Characters
from jaxformer.data.tasks import MaskedSounds, SpeechToText
from jaxformer.errors import ConfigError
from jaxformer.models import CTC
from jaxformer.optim import AdamW
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.resolve import resolve
from jaxformer.training.vocabulary import check_tokenizer

soundfile = pytest.importorskip("soundfile")
CONFIGS = Path(__file__).parents[2] / "configs"

# CTC ----------------------------------------------------------------------------------------------

TEXTS = ["a tin", "no rest", "that is it", "tea", "she is on it", "all do", "near us", "one more"]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
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
def test_ctc_is_tuned_resumed_exported_and_transcribes(spoken, tmp_path, capsys):
    command = [
        "train", str(CONFIGS / "finetune_ctc.py"), "--init-from", str(spoken / "model"),
        "--data.train", str(spoken / "clips.csv"), "--data.batch-size", "2", "--data.buckets", "2",
        "--data.validation-fraction", "0.3", "--train.epochs", "None",
    ]  # fmt: skip
    assert {"wer", "cer"} <= tune(command, tmp_path).keys()
    assert "unalignable" in capsys.readouterr().out
    before, after = (jaxformer.load(f, dtype=None) for f in (spoken / "model", tmp_path / "a"))
    for name, array in after.parameters.items():
        same = np.array_equal(array, before.parameters[name])
        assert same == name.startswith("feature_encoder.") or "key.bias" in name
    wave = soundfile.read(spoken / "3.wav", dtype="float32")[0]
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
    model = tiny_waveform(heads=(CTC(vocab_size=8),))
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


# Whisper ------------------------------------------------------------------------------------------

WORDS = ["w1 w2", "w4", "w7 w8 w10", "w11 w13", "w14", "w16 w17 w19", "w20", "w22 w23"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Whisper, and clips as `datasets` keeps them in Parquet."""
    home = tmp_path_factory.mktemp("whisper")
    save_tiny("whisper", home / "model")
    speech.write_files(home / "model")
    speech.write_words(home / "model")
    rows = []
    for number, text in enumerate(WORDS):
        file = home / f"{number}.wav"
        soundfile.write(file, speech.sound(4000 + 600 * number, number), speech.RATE)
        rows.append({"audio": {"bytes": file.read_bytes(), "path": file.name}, "sentence": text})
    pa.parquet.write_table(pa.Table.from_pylist(rows), home / "clips.parquet")
    return home


def command(home):
    return [
        "train", str(CONFIGS / "finetune_whisper.py"), "--init-from", str(home / "model"),
        "--data.train", str(home / "clips.parquet"), "--data.batch-size", "2",
        "--data.language", "german", "--data.target-length", "12",
        "--data.validation-fraction", "0.3", "--train.epochs", "None",
    ]  # fmt: skip


@pytest.mark.slow
def test_whisper_is_tuned_resumed_exported_and_transcribes(home, tmp_path, capsys):
    measured = tune(command(home), tmp_path)
    assert {"wer", "cer"} <= measured.keys()
    shown = capsys.readouterr().out
    assert "wer" in shown
    assert "cer" in shown
    wave = soundfile.read(home / "3.wav", dtype="float32")[0]
    both = [jaxformer.load(tmp_path / name, dtype="float32") for name in ("a", "hf")]
    one, other = (jaxformer.transcribe(model, wave, temperature=(0.0,)) for model in both)
    assert one == other


@pytest.mark.slow
def test_low_rank_factors(home, tmp_path):
    options = ["--train.lora", "LoRA", "--train.lora.rank", "2", "--train.steps", "3"]
    assert main([*command(home), *options, "--run-dir", str(tmp_path / "run")]) == 0
    tuned = jaxformer.load(tmp_path / "run", dtype=None).parameters
    before = jaxformer.load(home / "model", dtype=None).parameters
    changed = {name for name in before if not np.array_equal(before[name], tuned[name])}
    assert any("cross" in name or "decoder" in name for name in changed)
    assert not any("embedding" in name for name in changed)


@pytest.mark.torch
@pytest.mark.parametrize("prefix_loss", [True, False])
@pytest.mark.quick("True")
def test_the_loss_is_that_of_transformers(home, tmp_path, prefix_loss):
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    data = SpeechToText(
        train=str(home / "clips.parquet"),
        validation=str(home / "clips.parquet"),
        language="de",
        target_length=12,
        prefix_loss=prefix_loss,
        batch_size=len(WORDS),
    )
    config = Config(
        model=None,
        data=data,
        optimizer=AdamW(),
        train=TrainConfig(steps=1),
        init_from=str(home / "model"),
    )
    data = resolve(config, tmp_path / "run").config.data
    batch = next(data.prepare(tmp_path).validation.epoch())
    model = jaxformer.load(home / "model", dtype="float32").model
    _, sums = jax.jit(model.loss)(batch)
    ours = sums["language_model"].loss / sums["language_model"].weight

    theirs = WhisperForConditionalGeneration.from_pretrained(home / "model").eval()
    # Its windows have whole seconds; what lies behind ours is silence.
    extractor = WhisperFeatureExtractor(**(speech.PREPROCESSOR | {"chunk_length": 1}))
    waves = [soundfile.read(home / f"{n}.wav", dtype="float32")[0] for n in range(len(WORDS))]
    found = extractor(waves, sampling_rate=speech.RATE, return_tensors="pt").input_features
    features = found[:, :, : speech.FRAMES]
    start = [speech.GERMAN, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]
    start = start if prefix_loss else [-100] * 3
    own = [[int(word[1:]) for word in text.split()] for text in WORDS]
    labels = [[*start, *ids, speech.END] for ids in own]
    # The decoder reads the labels, so that those out of the loss are given to it.
    inputs = [
        [speech.START, speech.GERMAN, speech.TRANSCRIBE, speech.NO_TIMESTAMPS, *x] for x in own
    ]
    padded = np.array([row + [-100] * (7 - len(row)) for row in labels])
    read = np.array([row + [speech.END] * (7 - len(row)) for row in inputs])
    with torch.no_grad():
        loss = theirs(
            input_features=features,
            labels=torch.tensor(padded),
            decoder_input_ids=torch.tensor(read),
        ).loss
    np.testing.assert_allclose(float(ours), float(loss), atol=2e-5)


# Masked sounds ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_on_masked_sounds_is_resumed_logged_and_exported(tmp_path):
    shipped = load_config(str(CONFIGS / "tiny_wav2vec2.py"))
    for number in range(10):
        noise = np.random.default_rng(number).standard_normal(9000 + 300 * number) / 5
        soundfile.write(tmp_path / f"{number}.wav", noise, 8000)
    data = MaskedSounds(
        train=str(tmp_path),
        sampling_rate=8000,
        min_seconds=1.0,
        max_seconds=1.2,
        features=shipped.data.features,
        num_negatives=50,
        buckets=1,
        batch_size=2,
        validation_fraction=0.3,
    )
    settings = replace(shipped.train, eval_interval=2, checkpoint_interval=2)
    config = replace(shipped, model=replace(shipped.model, num_layers=1), data=data)

    for name, steps in (("a", 4), ("b", 2), ("b", 4)):
        own = replace(config, train=replace(settings, steps=steps))
        jaxformer.train(own, tmp_path / name)
    assert_same_parameters(*(jaxformer.load(tmp_path / name) for name in "ab"))
    last = read_metrics(tmp_path / "a", "train")[-1]
    assert {"perplexity_1", "perplexity_2"} <= last.keys()
    assert 1 < last["perplexity_1"] < 32
    assert last["gumbel_temperature"] == pytest.approx(2 * np.mean(0.997 ** np.arange(4)), rel=1e-4)
