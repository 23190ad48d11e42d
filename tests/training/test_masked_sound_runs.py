"""Pre-training on sounds: a run that is resumed, its log, and its export."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from saved_folders import assert_same_parameters

import jaxformer
from jaxformer.config import load_config
from jaxformer.data.tasks import MaskedSounds
from jaxformer.training.logging.metrics_writer import read_metrics

soundfile = pytest.importorskip("soundfile")
CONFIG = load_config(str(Path(__file__).parents[2] / "configs" / "tiny_wav2vec2.py"))


@pytest.mark.slow
def test_a_run_is_resumed_logged_and_exported(tmp_path):
    for number in range(10):
        noise = np.random.default_rng(number).standard_normal(9000 + 300 * number) / 5
        soundfile.write(tmp_path / f"{number}.wav", noise, 8000)
    data = MaskedSounds(
        train=str(tmp_path),
        sampling_rate=8000,
        min_seconds=1.0,
        max_seconds=1.2,
        features=CONFIG.data.features,
        num_negatives=50,
        buckets=1,
        batch_size=2,
        validation_fraction=0.3,
    )
    settings = replace(CONFIG.train, eval_interval=2, checkpoint_interval=2)
    config = replace(CONFIG, model=replace(CONFIG.model, num_layers=1), data=data)

    for name, steps in (("a", 4), ("b", 2), ("b", 4)):
        own = replace(config, train=replace(settings, steps=steps))
        jaxformer.train(own, tmp_path / name)
    assert_same_parameters(*(jaxformer.load(tmp_path / name) for name in "ab"))
    last = read_metrics(tmp_path / "a", "train")[-1]
    assert {"perplexity_1", "perplexity_2"} <= last.keys()
    assert 1 < last["perplexity_1"] < 32
    assert last["gumbel_temperature"] == pytest.approx(2 * np.mean(0.997 ** np.arange(4)), rel=1e-4)
