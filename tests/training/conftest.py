"""Checkpoints that transformers saves, for runs that start from them."""

import pytest
from hf_checkpoints import save_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Returns the folder of a checkpoint of a kind, which is saved once and must not be changed."""
    home = tmp_path_factory.mktemp("checkpoints")

    def get(kind):
        folder = home / kind
        return folder if folder.exists() else save_checkpoint(kind, folder)

    return get
