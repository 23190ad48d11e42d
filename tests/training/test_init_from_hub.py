"""A run from a name of the hub keeps the commit: it goes on with it, whatever is pushed later."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from corpora import write_rows
from hub_server import serving
from huggingface_hub import constants
from saved_folders import save_tiny
from tuned_runs import shipped

import jaxformer
from jaxformer.checkpoints.run_dir import read_config
from jaxformer.errors import ConfigError
from jaxformer.hub.remote.names import read_source
from jaxformer.training.loop import train
from jaxformer.training.resolve import fill
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bert"
    return save_tiny("bert", folder, "ForSequenceClassification")


@pytest.fixture
def hub(folder, tmp_path_factory, monkeypatch):
    with serving(tmp_path_factory.mktemp("cache"), monkeypatch) as server:
        server.add("org/name", folder)
        yield server


def experiment(tmp_path, name, steps=1):
    """A classifier of a few lines."""
    words = enumerate(("runs", "the") * 20)
    rows = [{"sentence": f"the dog {word} {number}", "label": word} for number, word in words]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    return shipped("finetune_classification", name, steps, train=file, batch_size=4)


def push_another(hub):
    """Another commit of the branch main; returns the one before."""
    repository = hub.repositories["org/name"]
    commit = repository.commit("main")
    repository.branches["before"] = dict(repository.branches["main"])
    repository.branches["main"]["generation_config.json"] = b"{}"
    repository.commit = lambda branch: {"before": commit, "main": "f" * 40}[branch]
    return commit


@pytest.mark.slow
def test_a_run_goes_on_from_its_commit(tmp_path, hub, folder, monkeypatch):
    run = tmp_path / "run"
    train(experiment(tmp_path, "org/name"), run)
    commit = push_another(hub)
    assert json.loads((run / "config.json").read_text())["init_from"] == f"org/name@{commit}"
    assert read_source(run / "huggingface") == ("org/name", commit)
    # What was pushed since is another experiment, only where it is asked for.
    train(experiment(tmp_path, "org/name", 2), run)
    with pytest.raises(ConfigError, match=f"init_from: 'org/name@{commit}' there"):
        train(experiment(tmp_path, "org/name@main", 3), run)
    # With another cache; without network, and without the cache too.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert fill(experiment(tmp_path, "org/name", 2), run).config == replace(
        read_config(run), train=experiment(tmp_path, "org/name", 2).train
    )
    hub.go_away()
    train(experiment(tmp_path, "org/name", 3), run)
    shutil.rmtree(constants.HF_HUB_CACHE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("org/name", "org/name@before", f"org/name@{commit}"):
        assert fill(experiment(tmp_path, name, 3), run).config.init_from == f"org/name@{commit}"
    train(experiment(tmp_path, "org/name@before", 4), run)
    with pytest.raises(ConfigError, match="init_from = 'org/name': must be the folder of a run"):
        train(experiment(tmp_path, "org/name"), tmp_path / "other")
    jaxformer.save(jaxformer.load(run), tmp_path / "out")
    for name in ("tokenizer.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_what_a_name_becomes(tmp_path, hub, folder):
    run = tmp_path / "run"
    run.mkdir()
    config = experiment(tmp_path, "org/name")
    begun = fill(config, None).config
    commit = push_another(hub)
    assert begun.init_from == f"org/name@{commit}"
    (run / "config.json").write_text(json.dumps(jaxformer.io.serialization.to_json(begun)))
    assert fill(config, run).config.init_from == begun.init_from
    assert fill(config, None).config.init_from == f"org/name@{'f' * 40}"
    assert fill(begun, run).config == begun
    local = replace(config, init_from=str(folder))
    assert fill(local, run).config.init_from == str(folder)


def test_a_teacher_and_a_reference_may_be_names(hub, folder):
    saved, theirs = open_named("org/name", "train.distillation.teacher"), jaxformer.load(folder)
    name = "embedding.table"
    np.testing.assert_array_equal(saved.read([name])[name], theirs.parameters[name])
    with pytest.raises(ConfigError, match=r"preference.reference = .org/none.: must be"):
        open_named("org/none", "train.preference.reference")
