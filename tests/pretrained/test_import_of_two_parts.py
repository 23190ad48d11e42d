"""Models of two parts become runs, and their files come back."""

import pytest
from saved_folders import save_tiny

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.data import DataConfig
from jaxformer.data.tasks.images.text_pairs import ImageTextPairs
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.writing import save

COLOURS = {"vision_config": TINY["clip"]["vision_config"] | {"num_channels": 3}}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "changes", "data"),
    [("vision-encoder-decoder", {}, DataConfig), ("clip", COLOURS, ImageTextPairs)],
)
@pytest.mark.quick("vision-encoder-decoder-changes0-DataConfig")
def test_a_run_has_data_for_its_model_and_exports_the_same_weights(kind, changes, data, tmp_path):
    save_tiny(kind, tmp_path / "hf", **changes)
    import_folder(tmp_path / "hf", tmp_path / "run")
    assert type(SavedRun(tmp_path / "run").config.data) is data
    save(load(tmp_path / "run", dtype=None), tmp_path / "out")
    before, after = (tmp_path / name / "model.safetensors" for name in ("hf", "out"))
    assert before.read_bytes() == after.read_bytes()
