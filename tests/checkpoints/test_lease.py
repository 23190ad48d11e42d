"""The lock of a run in an object store: one writer, and none that is dead blocks it for long."""

import contextlib
import threading
import time

import pytest
from object_store import (  # noqa: F401 (fixtures)
    bucket,
    gcs_bucket,
    gcs_server,
    memory_bucket,
    s3_server,
)
from tiny_models import tiny

from jaxformer.checkpoints import lease
from jaxformer.checkpoints.lease import Lease
from jaxformer.checkpoints.run_dir import locked, moved_aside, open_run_folder, read_config
from jaxformer.config import Config
from jaxformer.errors import ConfigError, RunError
from jaxformer.io.paths import any_path

CONFIG = Config(tiny())


STORES = [
    pytest.param("bucket", marks=pytest.mark.more),
    "memory_bucket",
    pytest.param("gcs_bucket", marks=pytest.mark.slow),
]


@pytest.fixture(params=STORES)
def run(request, monkeypatch):
    for name, seconds in (("BEAT", 0.1), ("EXPIRY", 1.0), ("_POLL", 0.05)):
        monkeypatch.setattr(lease, name, seconds)
    return any_path(f"{request.getfixturevalue(request.param)}/runs/run", "run_dir")


def silent(run) -> Lease:
    """A lease of a process elsewhere that does not renew it any more."""
    found = Lease(run)
    found._stop.set()
    found._thread.join()
    found._owner["machine"] = "another"
    found._path(found._number).write_bytes(found._contents())
    return found


def test_a_second_writer_is_refused(run):
    with locked(run) as check:
        with pytest.raises(ConfigError, match="another process is training in "):
            Lease(run)
        check()
    assert not run.files()
    Lease(run).close()


def test_one_of_many_that_start_at_once_gets_the_lock(run):
    got, refused, start = [], [], threading.Barrier(4)

    def try_it():
        start.wait()
        try:
            got.append(Lease(run))
        except ConfigError:
            refused.append(1)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 3)
    got[0].check()
    got[0].close()


def test_the_lock_of_a_dead_process_expires(run):
    silent(run)
    started = time.monotonic()
    with contextlib.closing(Lease(run)) as mine:
        mine.check()
    assert time.monotonic() - started >= 1.0
    assert not run.files()


def test_the_lock_of_a_process_that_died_here_is_taken_at_once(run, monkeypatch):
    first = silent(run)
    first._owner |= {"machine": lease._machine(), "pid": 2**22 + 1}  # no process has such a number
    first._path(first._number).write_bytes(first._contents())
    monkeypatch.setattr(lease, "EXPIRY", 1000.0)
    Lease(run).close()


def test_an_owner_that_was_only_slow_stops(run):
    slow = silent(run)
    with contextlib.closing(Lease(run)) as mine:
        slow._stop.clear()
        slow._thread = threading.Thread(target=slow._renew)
        slow._thread.start()
        slow._thread.join()
        with pytest.raises(RunError, match=r"^stopped: .* is now locked by another process"):
            slow.check()
        slow.close()
        mine.check()
        assert mine._numbers() == [2]


def test_a_start_that_fails_leaves_nothing(run):
    with pytest.raises(KeyboardInterrupt), locked(run):  # noqa: PT012
        open_run_folder(run, CONFIG)
        (run / "tokenizer" / "x").write_text("x")
        raise KeyboardInterrupt
    assert not run.files()


def test_the_same_experiment_goes_on_and_another_is_refused(run):
    open_run_folder(run, CONFIG)
    open_run_folder(run, CONFIG)
    assert read_config(run) == CONFIG
    with pytest.raises(ConfigError, match="contains a run with another configuration"):
        open_run_folder(run, Config(tiny(num_layers=3)))


def test_fresh_keeps_the_old_run_under_another_name(run):
    open_run_folder(run, CONFIG)
    before = run.files().keys()
    with pytest.raises(KeyboardInterrupt), moved_aside(run) as target:  # noqa: PT012
        assert (target.name, target.files().keys(), run.files()) == ("run-1", before, {})
        raise KeyboardInterrupt
    assert run.files().keys() == before
    for name in ("run-1", "run-2"):
        with moved_aside(run) as target:
            open_run_folder(run, CONFIG)
        assert (target.name, target.files().keys()) == (name, before)
