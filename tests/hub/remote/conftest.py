"""A small hub with a model on it."""

import pytest
from hub_server import serving
from saved_folders import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def hub(folder, tmp_path_factory, monkeypatch):
    with serving(tmp_path_factory.mktemp("cache"), monkeypatch) as server:
        server.add("org/name", folder)
        yield server
