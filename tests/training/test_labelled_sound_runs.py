"""Sounds with labels: batches, scores as in transformers, and runs that are exported and used."""

import json
from pathlib import Path

import numpy as np
import pytest
import speech_models as speech
from saved_folders import copy_of, save_tiny
from tuned_runs import tune

from jaxformer.cli.main import main
from jaxformer.config import Config, TrainConfig
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks import FilterBanks, LabelledClips, LogMel, WaveformFeatures
from jaxformer.errors import ConfigError, DataError
from jaxformer.optim import AdamW
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.training.resolve import resolve

soundfile = pytest.importorskip("soundfile")
CONFIG = Path(__file__).parents[2] / "configs" / "finetune_audio_classification.py"
LABELS = ("yes", "no", "up")
RATE = speech.RATE
WAVEFORMS = {"feature_size": 1, "sampling_rate": RATE, "do_normalize": True}
BANKS = {"num_mel_bins": 9, "max_length": 14, "sampling_rate": RATE, "mean": -4.0, "std": 3.0}


def write_settings(kind, folder):
    """Writes how a small model reads sounds."""
    values = {"whisper": speech.PREPROCESSOR, "audio-spectrogram-transformer": BANKS}
    values = values.get(kind, WAVEFORMS)
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Small models of three systems, and a table of clips."""
    home = tmp_path_factory.mktemp("labelled")
    for kind in ("wav2vec2", "audio-spectrogram-transformer", "whisper", "bert"):
        save_tiny(kind, home / kind)
        write_settings(kind, home / kind)
    lines = ["path,label"]
    for number in range(18):
        soundfile.write(home / f"{number}.wav", speech.sound(1500 + 150 * number, number), RATE)
        lines.append(f"{number}.wav,{LABELS[number % 3]}")
    (home / "clips.csv").write_text("\n".join(lines) + "\n")
    return home


def clips(home, **fields):
    own = {"train": str(home / "clips.csv"), "batch_size": 3, "validation_fraction": 0.3}
    return LabelledClips(**(own | fields))


def resolved(home, model, run, **fields):
    """The experiment that starts from a checkpoint."""
    origin = None if model is None else str(home / model)
    train = TrainConfig(steps=1)
    config = Config(None, clips(home, **fields), AdamW(), train=train, init_from=origin)
    return resolve(config, run).config


def test_waveforms_are_cut_and_padded_in_buckets(home, tmp_path):
    form = WaveformFeatures(min_samples=11)
    data = clips(home, form=form, max_seconds=0.15, buckets=2)
    found = data.prepare(tmp_path)
    assert found.labels == ("no", "up", "yes")
    assert found.train.lengths[-1] == 2400
    rows = {clip.name: clip for clip in found.train.examples.clips}
    held_out = {clip.name for clip in found.validation.examples.clips}
    assert len(rows) + len(held_out) == 18
    assert not held_out & rows.keys()
    batch = found.train.batch(0)
    assert batch["waveforms"].shape[1] in found.train.lengths
    for wave, count in zip(batch["waveforms"], batch["num_samples"], strict=True):
        assert abs(wave[:count].mean()) < 1e-5
        assert not wave[count:].any()
    kept = json.loads((tmp_path / "tokenizer" / "preprocessor_config.json").read_text())
    assert WaveformFeatures.read("x", kept, 11) == form


@pytest.mark.parametrize(
    ("form", "name", "shape"),
    [
        (LogMel(num_mel_bins=20, num_frames=12), "spectrograms", (12, 20)),
        (FilterBanks(num_mel_bins=9, num_frames=14, mean=-1.0), "images", (9, 14, 1)),
        (FilterBanks(num_mel_bins=9, num_frames=14, mean=0.0, std=0.5), "images", (9, 14, 1)),
    ],
)
def test_windows(home, tmp_path, form, name, shape):
    found = clips(home, form=form).prepare(tmp_path)
    batch = found.train.batch(0)
    assert batch[name].shape == (3, *shape)
    assert batch[name].dtype == np.float32
    kept = json.loads((tmp_path / "tokenizer" / "preprocessor_config.json").read_text())
    assert type(form).read("x", kept, form.num_mel_bins, form.num_frames) == form


def test_clips_that_cannot_be_used(home, tmp_path, caplog):
    form = WaveformFeatures(min_samples=2000)
    with pytest.raises(DataError, match=r"clips\.csv:2: 1,500 samples .* at least 2,000"):
        clips(home, form=form).prepare(tmp_path)
    (home / "unlabelled.csv").write_text("path,label\n0.wav,\n1.wav,no\n")
    with pytest.raises(DataError, match=r"unlabelled\.csv:2: no label"):
        clips(home, form=WaveformFeatures(), train=str(home / "unlabelled.csv")).prepare(tmp_path)
    (home / "other.csv").write_text("path,label\n0.wav,maybe\n1.wav,no\n")
    other = clips(home, form=WaveformFeatures(), validation=str(home / "other.csv"))
    with pytest.raises(DataError, match=r"other\.csv:2: the label 'maybe' is not one of"):
        other.prepare(tmp_path)


def test_experiments_that_are_refused(home, tmp_path):
    with pytest.raises(ConfigError, match="contains sounds to be labelled, which EncoderConfig"):
        resolved(home, "bert", tmp_path)
    model = resolved(home, "whisper", tmp_path).model
    with pytest.raises(ConfigError, match=r"data\.form = None: set how sounds are read"):
        resolve(Config(model, clips(home), AdamW()), tmp_path)
    for kind, change in (
        ("wav2vec2", {"feature_size": 80}),
        ("whisper", {"feature_size": 80}),
        ("audio-spectrogram-transformer", {"max_length": 1024}),
    ):
        spoilt = copy_of(home / kind, tmp_path / kind)
        file = spoilt / "preprocessor_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        with pytest.raises(ConfigError, match=rf"preprocessor_config\.json: {next(iter(change))}"):
            resolved(tmp_path, kind, tmp_path / "run", train=str(home / "clips.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wav2vec2", "audio-spectrogram-transformer", "whisper"])
def test_a_checkpoint_is_tuned_resumed_exported_and_predicts(home, tmp_path, kind, capsys):
    command = [
        "train", str(CONFIG), "--init-from", str(home / kind), "--data.train",
        str(home / "clips.csv"), "--data.batch-size", "2", "--data.buckets", "1",
        "--data.validation-fraction", "0.3", "--train.epochs", "None",
    ]  # fmt: skip
    assert "accuracy" in tune(command, tmp_path)
    assert "accuracy" in capsys.readouterr().out
    tables = []
    for name in ("a", "hf"):
        given = ["--input", str(home / "clips.csv"), "--output", str(tmp_path / f"{name}.csv")]
        assert main(["predict", str(tmp_path / name), *given, "--scores"]) == 0
        tables.append([row.values for row in read_records(tmp_path / f"{name}.csv")])
    for one, other in zip(*tables, strict=True):
        assert one["predicted_label"] == other["predicted_label"]
        for label in LABELS:
            assert float(one[f"score_{label}"]) == pytest.approx(float(other[f"score_{label}"]))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("wav2vec2", "ForSequenceClassification"),
        ("hubert", "ForSequenceClassification"),
        ("audio-spectrogram-transformer", "ForAudioClassification"),
        ("whisper", "ForAudioClassification"),
    ],
)
@pytest.mark.quick("whisper*", "audio*")
def test_scores_are_those_of_transformers(home, tmp_path, kind, head):
    import torch
    import transformers

    folder = save_tiny(kind, tmp_path / kind, head, id2label=dict(enumerate(LABELS)))
    write_settings(kind, folder)
    predictor = open_predictor(folder, PredictionConfig(scores=True, batch_size=4))
    records = list(predictor.reader.records(home, True))
    found = predictor.predict(records)
    model = transformers.AutoModelForAudioClassification.from_pretrained(folder).eval()
    if kind == "whisper":
        settings = speech.PREPROCESSOR | {"chunk_length": 1}  # its windows have whole seconds
        extractor = transformers.WhisperFeatureExtractor(**settings)
    else:
        extractor = transformers.AutoFeatureExtractor.from_pretrained(
            folder,
            feature_extractor_type="ASTFeatureExtractor"
            if kind == "audio-spectrogram-transformer"
            else "Wav2Vec2FeatureExtractor",
        )
    assert len(found) == 18
    for record, row in zip(records, found, strict=True):
        wave = soundfile.read(record.values["file"], dtype="float32")[0]
        inputs = extractor(wave, sampling_rate=RATE, return_tensors="pt")
        if kind == "whisper":
            inputs["input_features"] = inputs["input_features"][:, :, : speech.FRAMES]
        with torch.no_grad():
            wanted = model(**inputs).logits.softmax(-1)[0].numpy()
        ours = [row[f"score_{label}"] for label in LABELS]
        np.testing.assert_allclose(ours, wanted, atol=2e-5)
