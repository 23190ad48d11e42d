"""A saved model is opened through one door, and a run needs nothing of the hub."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.pretrained.checkpoint import RunCheckpoint

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
