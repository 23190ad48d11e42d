"""Images with hidden patches: how many, which, and that a model learns from them."""

import json

import numpy as np
import pytest

import jaxformer
from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import Images, MaskedImages
from jaxformer.functional import Learned
from jaxformer.models import MaskedPixels, VisionConfig

SCALE = {"mean": (0.31,), "std": (0.38,)}
DATA = MaskedImages(batch_size=8, validation_fraction=0.1, **SCALE)
MODEL = VisionConfig(
    num_layers=1, model_dim=16, num_heads=2, mlp_dim=24, image_size=(8, 8), patch_size=(2, 2),
    channels=1, position=Learned(17), mask_token=True, scan_layers=False,
    heads=(MaskedPixels(stride=2),),
)  # fmt: skip


def test_as_many_patches_of_each_image_are_hidden(tmp_path):
    train = DATA.prepare(tmp_path).train
    batch = train.batch(0)
    assert batch["masked"].shape == (8, 16)
    np.testing.assert_array_equal(batch["masked"].sum(1), 10)  # 0.6 x 16
    assert len({tuple(row) for row in batch["masked"]}) > 1
    again = DATA.prepare(tmp_path).train.batch(0)
    np.testing.assert_array_equal(batch["masked"], again["masked"])
    plain = Images(batch_size=8, validation_fraction=0.1, **SCALE).prepare(tmp_path).train
    np.testing.assert_array_equal(batch["images"], plain.batch(0)["images"])


def test_rows_that_fill_up_a_batch_hide_nothing(tmp_path):
    examples = DATA.prepare(tmp_path).train.examples
    assert not examples.blank()["masked"].any()


@pytest.mark.slow
def test_a_run_learns_hidden_pixels(tmp_path):
    train = TrainConfig(steps=30, eval_interval=10, checkpoint_interval=30)
    result = jaxformer.train(Config(MODEL, DATA, train=train), tmp_path / "run")
    rows = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
    losses = [row["loss"] for row in rows if row["split"] == "validation"]
    assert losses[-1] < losses[0]
