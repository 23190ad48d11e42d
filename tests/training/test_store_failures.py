"""What a run says that fails while its store is out of reach."""

import pytest
from tiny_models import tiny

from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.config import Config
from jaxformer.errors import StorageError
from jaxformer.training import failures

pytestmark = pytest.mark.more


def test_the_failure_is_told_and_not_that_the_store_cannot_be_asked(tmp_path, monkeypatch):
    def lost(folder):
        raise StorageError(f"{folder}: the connection to the store was lost")

    monkeypatch.setattr(failures, "saved_steps", lost)
    cause = OSError("gone")

    def save():
        raise CheckpointError("Could not save the checkpoint of step 2") from cause

    def run():
        with failures.explained(Config(tiny()), tmp_path):
            save()

    with pytest.raises(CheckpointError, match="Could not save") as error:
        run()
    assert error.value.__cause__ is cause
