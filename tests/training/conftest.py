"""What runs of several modules start from: a finished run, and checkpoints of transformers."""

import pytest
from hf_checkpoints import save_checkpoint
from tiny_run import tiny_config

from jaxformer.training.loop import train


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder for what is made once and not to be changed."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")  # so that it compiles as the module's tests do
def finished(shared):
    """The folder of a run of `tiny_config()`."""
    if not (shared / "run").exists():
        train(tiny_config(), shared / "run")
    return shared / "run"


@pytest.fixture(scope="session")
def checkpoint(shared):
    """Returns the folder of a checkpoint of a kind."""

    def get(kind):
        folder = shared / kind
        return folder if folder.exists() else save_checkpoint(kind, folder)

    return get
