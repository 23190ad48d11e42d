"""Checkpoints that several tests of the laboratory use."""

import pytest
from hf_checkpoints import save_checkpoint


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {kind: save_checkpoint(kind, home / kind) for kind in ("bert", "gpt2", "t5")}
