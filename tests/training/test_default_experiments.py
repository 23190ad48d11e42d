"""The experiments that need no download, cut short: they learn, and by how much.

The bands of whole runs stand in the configs; here a fraction of the steps has to leave the best
answer that never looks at its inputs well behind.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jaxformer.config import load_config
from jaxformer.distributed import MeshConfig
from jaxformer.training.loop import train

pytestmark = pytest.mark.optimized

CONFIGS = Path(__file__).parents[2] / "configs"
# Name -> steps, and the metric with the least improvement over the trivial answer.
SHORT = {
    "tiny_decoder": (60, "loss", 0.5),
    "tiny_encoder_mlm": (100, "loss", 0.2),
    "tiny_seq2seq_span_corruption": (50, "loss", 0.4),
    "tiny_translation": (120, "loss", 1.5),
    "tiny_encoder_tagging": (50, "accuracy", 0.3),
    "tiny_vit": (120, "accuracy", 0.7),
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.slow
def test_a_short_run_beats_the_trivial_answer(name, tmp_path):
    steps, metric, margin = SHORT[name]
    config = load_config(str(CONFIGS / f"{name}.py"))
    settings = replace(
        config.train,
        steps=steps,
        eval_interval=steps,
        checkpoint_interval=steps,
        sample_tokens=0,
    )
    schedule = replace(config.optimizer.schedule, warmup_steps=steps // 5)
    short = replace(
        config,
        train=settings,
        data=replace(config.data, max_validation_batches=4),
        optimizer=replace(config.optimizer, schedule=schedule),
        mesh=MeshConfig(data=1),
    )
    train(short, tmp_path / "run")
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    reached, trivial = found["metrics"][metric], found["trivial"][metric]
    better = reached - trivial if metric == "accuracy" else trivial - reached
    assert better >= margin, found
