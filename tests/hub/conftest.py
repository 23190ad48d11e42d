"""A small model in a folder, and commands that must fail."""

import pytest
from saved_folders import copy_of, save_tiny

from jaxformer.cli import main as cli
from jaxformer.pretrained.import_run import import_folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def run_folder(llama):
    import_folder(llama, llama.parent / "imported")
    return llama.parent / "imported"


@pytest.fixture
def spoiled(llama, tmp_path):
    return copy_of(llama, tmp_path / "folder")


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs a command that must fail; returns its message and asserts that it left nothing."""

    def run(*arguments, status=2):
        before = sorted(tmp_path.iterdir())
        assert cli.main([str(argument) for argument in arguments]) == status
        assert sorted(tmp_path.iterdir()) == before
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert "Traceback" not in message
        return message

    return run
