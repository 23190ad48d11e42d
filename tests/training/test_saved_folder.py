"""A run that starts from a folder that transformers saved."""

import dataclasses

import chex
import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.checkpoints.restore import read_arrays
from jaxformer.config import Config, TrainConfig
from jaxformer.data import TokenizerFile, TrainTokenizer
from jaxformer.data.tasks import LabelledText
from jaxformer.distributed import MeshConfig
from jaxformer.models import Classification
from jaxformer.optim import AdamW, Constant
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.hf_folder import FolderCheckpoint
from jaxformer.training.loop import train
from jaxformer.training.resolve import fill
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("bert"), "MaskedLM")


@pytest.fixture
def experiment(folder, tmp_path):
    """Two labels on the words that the folder's tokenizer knows."""
    for name in ("train", "dev"):
        rows = ["sentence\tlabel", *["the dog\tcat", "runs the\tdog"] * 8]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    model = load(folder).config
    return Config(
        model=dataclasses.replace(model, heads=(Classification(num_labels=2),)),
        data=LabelledText(
            train=str(tmp_path / "train.tsv"),
            validation=str(tmp_path / "dev.tsv"),
            text=("sentence",),
            label="label",
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=1000),
            sequence_length=7,
            batch_size=4,
        ),
        optimizer=AdamW(schedule=Constant(learning_rate=1e-12, warmup_steps=0), weight_decay=0.0),
        train=TrainConfig(steps=1, eval_interval=1, checkpoint_interval=1),
        mesh=MeshConfig(data=1),
        init_from=str(folder),
    )


def test_its_parameters_are_those_that_load_reads(folder):
    saved, model = open_named(folder, "init_from"), load(folder)
    assert isinstance(saved, FolderCheckpoint)
    assert saved.shapes == {name: x.shape for name, x in model.parameters.items()}
    chex.assert_trees_all_equal(saved.read(saved.shapes), dict(model.parameters))


@pytest.mark.slow
def test_a_run_takes_the_body_and_the_tokenizer(experiment, folder, tmp_path, capsys):
    train(experiment, tmp_path / "run")
    output = capsys.readouterr().out
    assert "new here: heads.label.output.bias, heads.label.output.kernel" in output
    assert "left there: heads.masked_language_model" in output
    expected = load(folder).parameters
    stored = dict(read_arrays(tmp_path / "run" / "checkpoints" / "1"))
    body = [name for name in expected if not name.startswith("heads.")]
    for name in body:
        np.testing.assert_allclose(stored[f"params/{name}"], expected[name], atol=1e-9)
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()


def test_the_tokenizer_of_the_origin_is_not_trained_anew(experiment, folder):
    assert fill(experiment).config.data.tokenizer == TokenizerFile(str(folder))
    alone = dataclasses.replace(experiment, init_from=None)
    assert fill(alone).config == alone
