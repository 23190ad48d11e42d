"""Whisper runs: the loss of transformers, and runs that are resumed, exported and used."""

from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import speech_models as speech
from saved_folders import save_tiny
from tuned_runs import tune

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import SpeechToText
from jaxformer.optim import AdamW
from jaxformer.training.resolve import resolve

soundfile = pytest.importorskip("soundfile")
CONFIG = Path(__file__).parents[2] / "configs" / "finetune_whisper.py"
TEXTS = ["w1 w2", "w4", "w7 w8 w10", "w11 w13", "w14", "w16 w17 w19", "w20", "w22 w23"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Whisper, and clips as `datasets` keeps them in Parquet."""
    home = tmp_path_factory.mktemp("whisper")
    save_tiny("whisper", home / "model")
    speech.write_files(home / "model")
    speech.write_words(home / "model")
    rows = []
    for number, text in enumerate(TEXTS):
        file = home / f"{number}.wav"
        soundfile.write(file, speech.sound(4000 + 600 * number, number), speech.RATE)
        rows.append({"audio": {"bytes": file.read_bytes(), "path": file.name}, "sentence": text})
    pa.parquet.write_table(pa.Table.from_pylist(rows), home / "clips.parquet")
    return home


def command(home):
    return [
        "train", str(CONFIG), "--init-from", str(home / "model"), "--data.language", "german",
        "--data.train", str(home / "clips.parquet"), "--data.batch-size", "2",
        "--data.target-length", "12", "--data.validation-fraction", "0.3", "--train.epochs", "None",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_checkpoint_is_tuned_resumed_exported_and_transcribes(home, tmp_path, capsys):
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
        batch_size=len(TEXTS),
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
    waves = [soundfile.read(home / f"{n}.wav", dtype="float32")[0] for n in range(len(TEXTS))]
    found = extractor(waves, sampling_rate=speech.RATE, return_tensors="pt").input_features
    features = found[:, :, : speech.FRAMES]
    start = [speech.GERMAN, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]
    start = start if prefix_loss else [-100] * 3
    own = [[int(word[1:]) for word in text.split()] for text in TEXTS]
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
