"""Saved models have one door; a run needs nothing of the hub, and keeps what an import gave it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.data import DataConfig
from jaxformer.data.tasks.images.text_pairs import ImageTextPairs
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load, open_checkpoint
from jaxformer.pretrained.checkpoint import RunCheckpoint
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.writing import own_template, save, template_folder

RUN = Path(__file__).parents[1] / "fixtures" / "run_6e84e0a"


def test_a_run_is_opened_with_all_that_belongs_to_it():
    opened = open_checkpoint(RUN, "folder")
    assert isinstance(opened, RunCheckpoint)
    assert opened.step == 4
    assert opened.tokenizer_folder == opened.home == RUN / "tokenizer"
    assert opened.tokenizer.decode(opened.tokenizer.encode("a")) == "a"
    assert opened.chat_template is None
    assert opened.layout is None
    assert opened.description.config == opened.model
    model = jaxformer.load(RUN, dtype=None)
    assert model.parameters.keys() == opened.shapes.keys()
    for name, array in opened.read(opened.shapes).items():
        np.testing.assert_array_equal(array, model.parameters[name])


def test_its_model_is_known_without_its_weights():
    opened = open_checkpoint(RUN, "folder", weights=False)
    assert opened.model == open_checkpoint(RUN, "folder").model
    assert not hasattr(opened, "shapes")


def test_a_step_and_a_class_that_a_run_does_not_have():
    for name, step in ((RUN, 3), (RUN / "checkpoints" / "3", None)):
        with pytest.raises(ConfigError, match=r"--step 3: no such checkpoint; .* contains 4"):
            open_checkpoint(name, "folder", step=step)
    with pytest.raises(ArgumentError, match="architecture = 'BertModel': must be None for a run"):
        open_checkpoint(RUN, "folder", architecture="BertModel")


def test_loading_a_run_imports_no_published_system():
    code = (
        f"import sys, jaxformer; jaxformer.load({str(RUN)!r}); "
        "print([x for x in sys.modules if x.startswith('jaxformer.zoo')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_template_of_training_comes_before_that_of_the_checkpoint(tmp_path):
    home, own = tmp_path / "huggingface", tmp_path / "tokenizer"
    home.mkdir()
    own.mkdir()
    (home / "chat_template.jinja").write_text("theirs")
    assert template_folder(home) == home
    assert own_template(home) is None
    (own / "chat_template.jinja").write_text("ours")
    assert template_folder(home) == own
    assert own_template(home) == "ours"
    (home / "chat_template.jinja").write_text("ours")
    assert own_template(home) is None  # the checkpoint's own file is kept, byte for byte


def test_a_checkpoint_has_no_other_template_than_its_own(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/chat_template.jinja").write_text("another folder's")
    home = tmp_path / "checkpoint"
    home.mkdir()
    assert template_folder(home) == home
    assert own_template(home) is None
    assert own_template(None) is None


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
