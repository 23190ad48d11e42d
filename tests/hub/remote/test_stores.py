"""The files of a model in an object store that are copied, and in which order."""

import json

import pytest

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.remote.stores import remote_model
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath
from jaxformer.io.staging import CACHE, address_of

pytestmark = pytest.mark.more

pytest_plugins = "object_store"
CONFIG = json.dumps({"model_type": "llama"})
SHARDED = json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture
def model(memory_bucket):
    """Puts files into a folder of a store."""

    def put(files):
        home = any_path(f"{memory_bucket}/model", "model")
        for name, text in files.items():
            (home / name).write_text(text)
        return home

    return put


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_configuration_is_checked_before_the_weights_come(model, monkeypatch):
    others = {"pytorch_model.bin": "a pickle", "logs/events": "not of the model"}
    needed = {"config.json": CONFIG, "model.safetensors": "w", "tokenizer.json": "{}"}
    home = model(others | needed)
    fetched, get = [], RemotePath.get
    monkeypatch.setattr(
        RemotePath, "get", lambda self, to: [fetched.append(self.name), get(self, to)]
    )

    def refuses(folder):
        assert names(folder) == ["config.json", "tokenizer.json"]
        raise ConfigError("the system is not known")

    with pytest.raises(ConfigError, match="not known"):
        remote_model(home, "folder", True, refuses)
    assert "model.safetensors" not in fetched
    copy = remote_model(home, "folder", True, names)
    assert names(copy) == list(needed)
    assert address_of(copy) == str(home)


def test_weights_are_left_out_unless_they_are_needed(model):
    home = model({"config.json": CONFIG, "model.safetensors": "w"})
    assert names(remote_model(home, "folder", False, names)) == ["config.json"]


def test_one_format_is_copied(model):
    weights = {"model.safetensors.index.json": SHARDED, "model-1-of-2.safetensors": "w"}
    home = model({"config.json": CONFIG, "flax_model.msgpack": "w"} | weights)
    assert names(remote_model(home, "folder", True, names)) == [
        "config.json",
        "model-1-of-2.safetensors",
        "model.safetensors.index.json",
    ]
    (home / "model-1-of-2.safetensors").unlink()
    with pytest.raises(DataError, match=r"folder = gs://.* names 'model-1-of-2.safetensors'"):
        remote_model(home, "folder", True, names)


def test_a_run_stays_where_it_is(model):
    home = model({"config.json": json.dumps({"model": {}}), "metrics.jsonl": ""})
    assert remote_model(home, "folder", True, names) == home


def test_a_pickle_and_nothing_are_refused(model, memory_bucket):
    home = model({"config.json": CONFIG, "pytorch_model.bin": "w"})
    with pytest.raises(ConfigError, match=r"folder = gs://.* holds pytorch_model.bin, a pickle"):
        remote_model(home, "folder", True, names)
    with pytest.raises(ConfigError, match=r"init_from = gs://.*/none: must be the folder of a run"):
        remote_model(any_path(f"{memory_bucket}/none", "url"), "init_from", True, names)
