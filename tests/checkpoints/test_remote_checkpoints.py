"""Checkpoints on an S3 server, whose connection is cut."""

import threading

import pytest
from object_store import bucket, gcs_bucket, gcs_server, proxy, s3_server  # noqa: F401 (fixtures)
from test_checkpointer import abstract, make_state

from jaxformer.checkpoints import manifest
from jaxformer.checkpoints.checkpointer import (
    Checkpointer,
    CheckpointError,
    content_hash,
    named_arrays,
)
from jaxformer.checkpoints.files import COMMIT_FILE, saved_steps
from jaxformer.checkpoints.remote_arrays import _retries
from jaxformer.checkpoints.restore import read_arrays, restore_newest
from jaxformer.errors import StorageError
from jaxformer.io.attempts import PATIENCE
from jaxformer.io.paths import any_path

pytestmark = pytest.mark.more


def hash_of(state):
    return content_hash(named_arrays(state).items())


@pytest.fixture
def folder(bucket):  # noqa: F811
    return any_path(f"{bucket}/run/checkpoints", "folder")


@pytest.fixture(params=["bucket", pytest.param("gcs_bucket", marks=pytest.mark.slow)])
def either_folder(request):
    return any_path(f"{request.getfixturevalue(request.param)}/run/checkpoints", "folder")


@pytest.mark.slow
def test_a_step_counts_once_its_last_object_is_there(either_folder):
    folder = either_folder
    saver = Checkpointer(folder, {}, keep=2)
    for step in (1, 2, 3, 4):
        saver.save(step, make_state(step), {"loss": float(step)})
    saver.close()
    assert saver.steps() == saved_steps(folder) == [1, 3, 4]  # the best, and the two newest
    assert sorted(item.name for item in folder.iterdir()) == ["1", "3", "4"]
    assert content_hash(read_arrays(folder / "4")) == hash_of(make_state(4))
    step, restored = restore_newest(folder, abstract(make_state()))
    assert (step, hash_of(restored)) == (4, hash_of(make_state(4)))

    (folder / "4" / COMMIT_FILE).unlink()
    assert saved_steps(folder) == [1, 3]
    Checkpointer(folder, {}, keep=2).close()
    assert not (folder / "4").exists()


@pytest.mark.slow
def test_a_damaged_step_is_set_aside(either_folder):
    folder = either_folder
    saver = Checkpointer(folder, {}, keep=2)
    for step in (1, 2):
        saver.save(step, make_state(step))
    saver.close()
    damaged = next(path for path in (folder / "2" / "state").rglob("*") if path.parent.name == "d")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    said = []
    step, restored = restore_newest(folder, abstract(make_state()), warn=said.append)
    assert (step, hash_of(restored)) == (1, hash_of(make_state(1)))
    assert "has changed since it was saved); it is now 2.damaged" in said[0]
    assert saved_steps(folder) == [1]
    assert (folder / "2.damaged" / COMMIT_FILE).is_file()


@pytest.mark.slow
def test_a_connection_that_comes_back_costs_nothing(proxy, folder, monkeypatch):  # noqa: F811
    monkeypatch.setenv(PATIENCE, "60")
    saver = Checkpointer(folder, {}, keep=2)
    saver.save(1, make_state(1))
    saver.wait()
    proxy.cut()
    threading.Timer(1.5, lambda: setattr(proxy, "down", False)).start()
    saver.save(2, make_state(2))
    saver.close()
    assert proxy.refused
    assert [manifest.damage(folder / str(step)) for step in saved_steps(folder)] == [None, None]
    assert content_hash(read_arrays(folder / "2")) == hash_of(make_state(2))


@pytest.mark.slow
def test_a_connection_that_stays_away_is_one_sentence(proxy, folder, monkeypatch):  # noqa: F811
    monkeypatch.setenv(PATIENCE, "1")
    saver = Checkpointer(folder, {}, keep=2)
    saver.save(1, make_state(1))
    saver.wait()
    proxy.cut()

    def save_and_wait():
        saver.save(2, make_state(2))
        saver.wait()

    with pytest.raises(CheckpointError) as error:
        save_and_wait()
    message = str(error.value)
    assert message.startswith(f"Could not save the checkpoint of step 2 in {folder}: ")
    assert message.endswith(
        "The earlier checkpoints were not touched: once the store is reachable again, rerun the "
        "same command to continue from the newest."
    )
    assert "\n" not in message
    with pytest.raises(StorageError, match="the connection to the store was lost"):
        restore_newest(folder, abstract(make_state()))  # and nothing is taken for damaged

    proxy.down = False
    monkeypatch.setenv(PATIENCE, "30")
    step, restored = restore_newest(folder, abstract(make_state()))
    assert (step, hash_of(restored)) == (1, hash_of(make_state(1)))
    assert not any("damaged" in name for name in folder.files())


@pytest.mark.parametrize(("seconds", "count"), [("0", 1), ("3", 3), ("60", 8)])
def test_tensorstore_tries_for_as_long_as_the_others(monkeypatch, seconds, count):
    monkeypatch.setenv(PATIENCE, seconds)
    assert _retries()["max_retries"] == count
