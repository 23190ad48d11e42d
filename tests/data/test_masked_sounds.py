"""Sounds with masked spans: folders and tables, cuts, spans, and negatives."""

import numpy as np
import pytest

from jaxformer.data.sound import read_sound
from jaxformer.data.tasks import MaskedSounds
from jaxformer.data.tasks.sounds.masked import masked_spans, sampled_negatives
from jaxformer.errors import ConfigError, DataError
from jaxformer.nn.waveform import ConvolutionalFeatures

soundfile = pytest.importorskip("soundfile")
FEATURES = ConvolutionalFeatures(channels=(8, 8), kernels=(10, 8), strides=(5, 8))


@pytest.fixture
def folder(tmp_path):
    for number in range(8):
        noise = np.random.default_rng(number).standard_normal(1600 + 400 * number) / 5
        file = tmp_path / "sounds" / f"speaker{number % 2}" / f"{number}.wav"
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, noise, 16_000)
    return tmp_path


def data(folder, **fields):
    usual = {
        "train": str(folder / "sounds"),
        "min_seconds": 0.1,
        "max_seconds": 0.2,
        "features": FEATURES,
        "mask_span": 4,
        "num_negatives": 5,
        "batch_size": 2,
        "buckets": 2,
        "validation_fraction": 0.3,
    }
    return MaskedSounds(**(usual | fields))


def test_a_folder_has_all_sounds_within(folder, tmp_path):
    own = data(folder)
    found = own.prepare(tmp_path / "run")
    names = [each.name for each in own.read(own.train)]
    assert names == sorted(f"speaker{n % 2}/{n}.wav" for n in range(8))
    assert found.train.num_rows + found.validation.num_rows == 8
    assert found.tokenizer is None
    assert "hours" in dict(found.report())["sounds"]
    batch = found.train.batch(0)
    rows, frames = batch["masked"].shape
    assert frames == FEATURES.num_frames(batch["waveforms"].shape[1])
    assert batch["negatives"].shape == (rows, frames, 5)
    np.testing.assert_array_equal(batch["masked"], found.train.batch(0)["masked"])
    for masked, samples in zip(batch["masked"], batch["num_samples"], strict=True):
        assert 4 <= masked.sum() <= FEATURES.num_frames(int(samples))
        assert not masked[FEATURES.num_frames(int(samples)) :].any()


def test_a_table_names_sounds(folder, tmp_path):
    lines = ["path", *(f"sounds/speaker{n % 2}/{n}.wav" for n in range(8))]
    (folder / "sounds.csv").write_text("\n".join(lines) + "\n")
    own = data(folder, train=str(folder / "sounds.csv"))
    assert len(own.read(own.train)) == 8
    assert own.prepare(tmp_path / "run").train.num_rows > 4


def test_a_long_sound_is_cut_somewhere(folder, tmp_path):
    own = data(folder, normalize=False, validation=str(folder / "sounds"))
    examples = own.prepare(tmp_path / "run").train.examples
    whole = read_sound(examples.clips[-1].file, 16_000)
    assert examples.sizes[-1] == 3200 < len(whole)
    cuts = [examples.read(7, np.random.default_rng(seed))["waveforms"][:3200] for seed in range(5)]
    views = np.lib.stride_tricks.sliding_window_view(whole, 3200)
    starts = {int(np.flatnonzero((views == cut).all(axis=1))[0]) for cut in cuts}
    assert len(starts) > 1


def test_what_cannot_be_used_is_said(folder, tmp_path):
    with pytest.raises(
        DataError, match=r"0\.wav: 0\.10 seconds, less than data.min_seconds = 0\.15"
    ):
        data(folder, min_seconds=0.15).prepare(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no sounds"):
        data(folder, train=str(tmp_path / "empty")).prepare(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"min_seconds = 0\.01: must be long enough"):
        data(folder, min_seconds=0.01)
    with pytest.raises(ConfigError, match=r"max_seconds = 0\.05: must be at least min_seconds"):
        data(folder, max_seconds=0.05)


def test_a_row_that_fills_a_batch_has_no_masked_frame(folder, tmp_path):
    examples = data(folder).prepare(tmp_path / "run").train.examples
    assert not examples.blank()["masked"].any()


def test_the_spans_are_as_many_as_published():
    rng = np.random.default_rng(0)
    options = {"probability": 0.65, "span": 10, "min_spans": 2}
    shares = [masked_spans(rng, 400, **options).mean() for _ in range(200)]
    # 26 spans of 10 frames that may overlap: section 4.2 says 49 %.
    assert np.mean(shares) == pytest.approx(0.48, abs=0.02)
    few = [masked_spans(rng, 40, **(options | {"probability": 0.0})) for _ in range(50)]
    assert all(11 <= masked.sum() <= 20 for masked in few)


@pytest.mark.torch
def test_the_spans_are_drawn_as_by_transformers():
    from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices

    # One rounding is drawn for a whole batch there, and one for each row here.
    theirs = [_compute_mask_indices((4, 97), 0.65, 10, min_masks=2) for _ in range(500)]
    theirs = np.concatenate(theirs)
    rng = np.random.default_rng(0)
    options = {"probability": 0.65, "span": 10, "min_spans": 2}
    ours = np.stack([masked_spans(rng, 97, **options) for _ in range(2000)])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.06)
    assert ours.sum(axis=1).mean() == pytest.approx(theirs.sum(axis=1).mean(), abs=0.5)


def test_negatives_are_other_masked_frames_drawn_uniformly():
    masked = np.zeros(30, bool)
    masked[[2, 5, 6, 11, 29]] = True
    found = sampled_negatives(np.random.default_rng(0), masked, 4000)
    assert (found[~masked] == 0).all()
    for place in np.flatnonzero(masked):
        values, counts = np.unique(found[place], return_counts=True)
        assert values.tolist() == [n for n in (2, 5, 6, 11, 29) if n != place]
        np.testing.assert_allclose(counts / 4000, 0.25, atol=0.04)
    alone = np.arange(4) == 1
    assert sampled_negatives(np.random.default_rng(0), alone, 3)[1].tolist() == [1, 1, 1]
    assert not sampled_negatives(np.random.default_rng(0), alone & False, 3).any()
