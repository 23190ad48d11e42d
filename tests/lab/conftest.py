"""Checkpoints and commands that several tests of the laboratory use."""

import pytest
from hf_checkpoints import save_checkpoint

from jaxformer.cli import main as cli


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {kind: save_checkpoint(kind, home / kind) for kind in ("bert", "gpt2", "t5")}


@pytest.fixture
def printed(capsys):
    """Runs `jaxformer lab` and returns its status with what it printed."""

    def run(*arguments):
        status = cli.main(["lab", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run
