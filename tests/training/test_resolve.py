"""A run opens what it names once, and finds every mismatch before its data are read."""

from dataclasses import replace

import pytest
from tiny_run import tiny_config

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.config.train import Distillation
from jaxformer.data import TrainTokenizer
from jaxformer.errors import ConfigError
from jaxformer.pretrained.checkpoint import RunCheckpoint
from jaxformer.training import loop
from jaxformer.training.loop import train
from jaxformer.training.resolve import ResolvedConfig, fill, resolve


def test_an_origin_is_opened_once(finished, tmp_path, monkeypatch):
    opened = []
    begin = SavedRun.__init__

    def counted(self, folder, *options):
        opened.append(folder)
        begin(self, folder, *options)

    monkeypatch.setattr(SavedRun, "__init__", counted)
    train(
        replace(tiny_config(steps=1, checkpoint_interval=1), init_from=str(finished)),
        tmp_path / "a",
    )
    assert opened == [finished]


@pytest.mark.slow
def test_what_is_opened_can_be_deleted_once_it_is_read(finished, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(RunCheckpoint, "close", lambda self: closed.append(self.folder))
    config = tiny_config(steps=1, checkpoint_interval=1, distillation=Distillation(str(finished)))
    train(replace(config, init_from=str(finished)), tmp_path / "a")
    assert closed == [finished, finished]


def test_a_run_from_nothing_opens_nothing(tmp_path):
    config = tiny_config()
    resolved = resolve(config, tmp_path / "run")
    assert isinstance(resolved, ResolvedConfig)
    assert resolved.config == config
    assert (resolved.origin, resolved.teacher, resolved.reference) == (None, None, None)
    assert resolved.transfer is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: replace(c, model=replace(c.model, mlp_dim=80)),
            r"mlp_dim is 64 there, 80 here.* has shape \(1, 32, 64\) there, \(1, 32, 80\) here",
        ),
        (lambda c: replace(c, init_layers=(7,)), "there is no layer 7"),
        (
            lambda c: replace(
                c, train=replace(c.train, distillation=Distillation("nowhere/at/all"))
            ),
            "train.distillation.teacher = .*nowhere/at/all.*: must be the folder",
        ),
        (
            lambda c: replace(c, model=replace(c.model, vocab_size=272), init_from=None),
            "train.distillation.teacher = .*: its model.vocab_size is 264, this model's 272",
        ),
    ],
    ids=["shapes", "layers", "no-teacher", "teacher"],
)
def test_mismatches_are_found_before_data_are_read(
    finished, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(loop, "prepared_data", lambda *_: pytest.fail("the data were read"))
    distillation = Distillation(str(finished))
    config = replace(tiny_config(steps=1, distillation=distillation), init_from=str(finished))
    with pytest.raises(ConfigError, match=message):
        train(change(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_to_be_trained_and_the_layers_are_the_origins(finished, tmp_path):
    config = replace(tiny_config(), init_from=str(finished))
    config = replace(config, data=replace(config.data, tokenizer=TrainTokenizer()))
    resolved = resolve(config, tmp_path / "run")
    assert resolved.config.data.tokenizer.path == str(finished / "tokenizer")
    assert resolved.transfer.new == resolved.transfer.left == ()
    layers = resolve(replace(config, init_layers=(0,)), tmp_path / "run").transfer
    assert "layers taken there: 0" in layers.report
    alone = replace(config, init_from=None)
    assert fill(alone).config == alone
