"""Logs of a run in an object store, which cannot be appended to."""

from contextlib import closing

import pytest
from object_store import memory_bucket  # noqa: F401 (fixture)

from jaxformer.config.loggers import LoggedRun, TensorBoard
from jaxformer.errors import StorageError
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath
from jaxformer.training.logging.metrics_writer import MetricsLog, read_metrics
from jaxformer.training.logging.run_logger import LogFolder
from jaxformer.training.logging.wall_time import Clock, WallTime, read_wall_time


@pytest.fixture
def run(memory_bucket):  # noqa: F811
    return any_path(f"{memory_bucket}/runs/run", "run_dir")


def test_a_local_run_has_its_logs_in_its_folder(tmp_path):
    with closing(LogFolder(tmp_path, continues=True)) as logs:
        logs.push()
    assert logs.path is tmp_path
    assert not list(tmp_path.iterdir())


def test_rows_are_in_the_store_once_they_are_pushed(run):
    logs = LogFolder(run, continues=True)
    rows = MetricsLog(logs.path, 0, loggers=())
    rows.write("train", 1, {"loss": 2.0})
    assert read_metrics(run) == []
    logs.push()
    rows.write("train", 2, {"loss": 1.0})
    assert [row["step"] for row in read_metrics(run)] == [1]
    rows.close()
    logs.close()
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    assert not logs.path.exists()


def test_a_run_goes_on_with_its_rows_and_drops_later_ones(run):
    for start, steps, loss in ((0, (1, 2, 3), 1.0), (2, (3,), 9.0)):
        with closing(LogFolder(run, continues=True)) as logs:
            rows = MetricsLog(logs.path, start, num_rows=start, loggers=())
            for step in steps:
                rows.write("train", step, {"loss": loss})
            rows.close()
    assert [row["loss"] for row in read_metrics(run)] == [1.0, 1.0, 9.0]


def test_the_times_of_every_start_are_kept(run):
    for step in (0, 5):
        with closing(LogFolder(run, continues=True)) as logs:
            WallTime(logs.path, Clock(1000.0 + step), step).close(step)
    assert [row.began for row in read_wall_time(run)] == [1000, 1000, 1005, 1005]


def test_events_of_every_start_are_kept(run):
    for step in (0, 5):
        with closing(LogFolder(run, continues=True)) as logs:
            writer = TensorBoard().open(LoggedRun(logs.path, step, {}))
            writer.scalars("train", step + 1, {"loss": 1.0})
            writer.close()
            (logs.path / "tensorboard" / f"of-{step}").write_text("x")
    names = [name for name in run.files() if name.startswith("tensorboard/")]
    assert {"tensorboard/of-0", "tensorboard/of-5"} < set(names)
    assert any("tfevents" in name for name in names)


def test_only_what_has_changed_is_uploaded(run, monkeypatch):
    logs, sent, put = LogFolder(run, continues=False), [], RemotePath.put

    def watched(path, file):
        sent.append(path.name)
        put(path, file)

    monkeypatch.setattr(RemotePath, "put", watched)
    (logs.path / "b").write_text("b")
    for text in ("one", "one and two"):
        (logs.path / "a").write_text(text)
        logs.push()
    logs.close()
    assert sent == ["a", "b", "a"]


def test_the_last_logs_are_kept_where_the_store_is_gone(run, monkeypatch, caplog):
    logs = LogFolder(run, continues=False)
    (logs.path / "metrics.jsonl").write_text("{}\n")

    def lost(path, file):
        raise StorageError(f"{path}: the connection was lost")

    monkeypatch.setattr(RemotePath, "put", lost)
    logs.close()
    assert (logs.path / "metrics.jsonl").exists()
    assert str(logs.path) in caplog.text
