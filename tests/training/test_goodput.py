"""Where the wall time of a run went: what is written while it trains, and what is made of it."""

import json
import signal
import time
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from tiny_run import tiny_config, wait_for

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.cli import main as cli
from jaxformer.errors import ConfigError, DataError
from jaxformer.training.logging import wall_time
from jaxformer.training.logging.goodput import BETWEEN, LOST, goodput
from jaxformer.training.logging.goodput_plot import plot_goodput
from jaxformer.training.logging.throughput import device_memory
from jaxformer.training.logging.wall_time import (
    PARTS,
    WALL_TIME_FILE,
    Clock,
    TimeRow,
    WallTime,
    process_began,
    read_wall_time,
)
from jaxformer.training.loop import train

pytestmark = pytest.mark.more


@pytest.mark.slow
def test_a_killed_run_accounts_for_the_time_that_was_measured(runs, tmp_path, capsys):
    """From outside, by another clock: from the first start to the last line that is printed.

    What Python does afterwards to end takes seconds, and nothing can write it down.
    """
    folder = tmp_path / "run"

    def has_reached(step):
        return any(row.step > step for row in read_wall_time(folder))

    options = ("--train.steps", "200", "--train.checkpoint-interval", "20")
    began = time.time()
    process = runs.start(folder, *options)
    wait_for(lambda: has_reached(40), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(1.5)  # nothing runs
    process = runs.start(folder, *options)
    wait_for(lambda: has_reached(80), process)
    process.send_signal(signal.SIGTERM)  # saves, and loses nothing
    process.communicate()
    process, printed = runs.start(folder, *options), {}
    for line in process.stdout:
        printed[line] = time.time()
    assert process.wait() == 0, list(printed)
    measured = max(printed.values()) - began

    assert any("at step 200" in line for line in printed)
    found = goodput(folder)
    assert sum(found.parts.values()) == pytest.approx(found.wall, rel=1e-3)
    assert 0.95 * measured <= sum(found.parts.values()) <= 1.01 * measured
    first, second, third = found.starts
    assert (first.rows[0].step, third.rows[-1].step) == (0, 200)
    assert second.rows[0].step == first.kept.step < first.rows[-1].step
    assert third.rows[0].step == second.kept.step == second.rows[-1].step
    assert found.parts[LOST] == pytest.approx(first.seconds[LOST], abs=0.05)
    assert 0 < found.parts[LOST] < found.parts["step"]
    assert found.parts[BETWEEN] >= 1.5
    assert all(found.parts[part] > 0 for part in PARTS)

    picture = tmp_path / "p.png"
    assert cli.main(["goodput", str(folder), "--out", str(picture)]) == 0
    assert "goodput" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_run_accounts_for_all_of_its_time(tmp_path):
    before = time.time()
    train(tiny_config(steps=6, eval_interval=3), tmp_path / "run", began=before - 5)
    took = time.time() - before
    found = goodput(tmp_path / "run")
    assert found.parts["imports"] > 5
    assert all(found.parts[part] > 0 for part in PARTS)
    assert took + 5 - 0.5 < found.wall <= took + 5
    assert sum(found.parts.values()) == pytest.approx(found.wall, rel=1e-3)
    steps = [row.step for row in found.starts[0].rows]
    assert steps == sorted(steps)
    assert {0, 3, 4, 6} <= set(steps)
    assert [row.ended for row in found.starts[0].rows] == [False] * (len(steps) - 1) + [True]


SECONDS = dict.fromkeys(PARTS, 0.0)


def row(began, at, ended=False, /, **seconds):
    spent = SECONDS | {name: float(value) for name, value in seconds.items()}
    return TimeRow(began, at, float(sum(spent.values())), spent, ended)


@pytest.fixture
def run(tmp_path):
    """Writes rows into the folder of a run; returns it."""

    def write(*rows, text=""):
        open_run_folder(tmp_path / "run", tiny_config())
        lines = "".join(json.dumps(each._asdict()) + "\n" for each in rows)
        (tmp_path / "run" / WALL_TIME_FILE).write_text(lines + text)
        return tmp_path / "run"

    return write


def test_work_after_the_checkpoint_that_a_later_start_takes_is_lost(run):
    found = goodput(
        run(
            row(1000, 0, start=10),
            row(1000, 10, start=10, compile=5, step=20, save=1),
            row(1000, 20, start=10, compile=5, step=40, save=2),
            row(1000, 27, start=10, compile=5, step=54, data=1, save=2),  # killed: 72 s
            row(1082, 10, start=8),  # the checkpoint of step 20 was not complete
            row(1082, 12, start=8, compile=4, step=4),  # killed again
            row(1100, 10, start=9),
            row(1100, 30, True, start=9, compile=1, step=40, evaluation=6, save=4),
        )
    )
    assert found.wall == 160
    assert found.parts == {
        "step": 20 + 0 + 40,
        "imports": 0,
        "corpus": 0,
        "start": 27,
        "trace": 0,
        "compile": 10,
        "data": 0,
        "evaluation": 6,
        "save": 1 + 4,
        LOST: 34 + 1 + 1 + 4,
        BETWEEN: 10 + 2,
    }
    assert found.share == 60 / 160
    assert found.as_json()["attributed"] == 1
    kept = [each["kept_to_step"] for each in found.as_json()["starts"]]
    assert kept == [10, 10, 30]


def test_a_start_whose_first_checkpoint_was_never_saved_loses_all_of_its_steps(run):
    rows = [row(0, 0, start=2), row(0, 9, start=2, step=9), row(20, 0, start=2)]
    found = goodput(run(*rows))
    assert (found.parts[LOST], found.parts["step"], found.parts["start"]) == (9, 0, 4)


def test_the_pieces_of_a_start_follow_each_other(run):
    first = row(1000, 5, start=3, compile=2, step=5)
    rows = (row(1000, 0, start=3), first, row(1000, 9, start=3, compile=2, step=8, data=1))
    start, _ = goodput(run(*rows, row(1020, 5, start=1))).starts
    pieces = [piece for piece in start.pieces() if piece[1] > 0]
    assert pieces == [
        (1000, 3, "start"),
        (1003, 2, "compile"),
        (1005, 5, "step"),
        (1010, 1, LOST),  # data
        (1011, 3, LOST),
    ]
    for (at, seconds, _), (then, _, _) in pairwise(pieces):
        assert at + seconds == then


def test_many_starts_share_the_last_lane_of_the_picture(run, tmp_path):
    rows = [row(1000 + 10 * n, n, start=2, step=n) for n in range(30)]
    assert plot_goodput(goodput(run(*rows)), tmp_path / "a.png", "many").exists()


def test_what_is_no_row_is_named(run, tmp_path, capsys, caplog):
    found = goodput(run(row(0, 0), row(0, 1)._replace(elapsed="long"), text='{"began": 0}\n[]\n-'))
    assert [each.step for each in found.starts[0].rows] == [0]
    for number, message in zip((2, 3, 4), caplog.messages, strict=True):
        assert f"{WALL_TIME_FILE}:{number}: " in message
    with pytest.raises(DataError, match=f"has no {WALL_TIME_FILE}"):
        goodput(run())
    with pytest.raises(ConfigError, match="is not a run folder"):
        goodput(tmp_path)
    assert cli.main(["goodput", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_line_that_was_cut_off_is_dropped_and_a_link_is_not_written_through(tmp_path):
    other = tmp_path / "other"
    other.write_text(json.dumps(row(7, 3, start=1)._asdict()) + '\n{"began": 7, "st')
    (tmp_path / WALL_TIME_FILE).symlink_to(other)
    before = other.read_text()
    WallTime(tmp_path, Clock(time.time() - 2), 3).close(4)
    assert other.read_text() == before
    old, first, last = read_wall_time(tmp_path)
    assert (old.began, first.step, last.step, last.ended) == (7, 3, 4, True)
    assert first.seconds["start"] == pytest.approx(2, abs=0.5)


def test_what_is_no_file_is_moved_aside(tmp_path, caplog):
    (tmp_path / WALL_TIME_FILE).mkdir()
    WallTime(tmp_path, Clock(time.time()), 0).close(0)
    assert len(read_wall_time(tmp_path)) == 2
    assert (tmp_path / f"{WALL_TIME_FILE}.damaged").is_dir()
    assert WALL_TIME_FILE in caplog.text


def test_a_clock_that_is_set_changes_nothing_within_a_process(tmp_path, monkeypatch):
    clock = Clock(time.time())
    times = WallTime(tmp_path, clock, 0)
    now = time.time()
    monkeypatch.setattr(wall_time.time, "time", lambda: now + 3600)
    clock.lap("step")
    times.close(1)
    assert read_wall_time(tmp_path)[-1].elapsed < 60


def test_compilation_is_heard_as_long_as_the_clock_is_open():
    with Clock(time.time()) as clock:
        jax.jit(lambda x: jnp.sin(x) + 1)(jnp.arange(7.0))
        heard = clock.compiled
        assert heard > 0
        clock.lap("trace", compile=heard)
        assert (clock.seconds["compile"], clock.compiled) == (heard, 0)
    jax.jit(lambda x: jnp.sin(x) + 2)(jnp.arange(7.0))
    assert clock.compiled == 0


def test_rows_of_versions_that_knew_fewer_parts_are_read(run):
    old = row(1000, 5, start=3, step=5)
    seconds = {k: v for k, v in old.seconds.items() if k not in ("imports", "corpus", "trace")}
    found = goodput(run(old._replace(seconds=seconds)))
    assert (found.parts["start"], found.parts["imports"], found.wall) == (3, 0, 8)


def test_rows_are_written_in_time(tmp_path, monkeypatch):
    times = WallTime(tmp_path, Clock(time.time()), 0)
    times.write_in_time(1)
    assert len(read_wall_time(tmp_path)) == 1
    monkeypatch.setattr(wall_time, "INTERVAL", 0)
    times.write_in_time(2)
    assert [each.step for each in read_wall_time(tmp_path)] == [0, 2]


def test_a_process_knows_when_it_began():
    assert 0 < time.time() - process_began() < 86400


def test_the_memory_of_the_fullest_device_is_told():
    def device(stats):
        return SimpleNamespace(memory_stats=lambda: stats)

    full = {"peak_bytes_in_use": 7, "bytes_limit": 9, "bytes_in_use": 1}
    half = {"peak_bytes_in_use": 4, "bytes_limit": 9}
    found = device_memory([device(half), device(full), device(None)])
    assert found == {"memory_peak_bytes": 7, "memory_limit_bytes": 9}
    assert device_memory([device({"peak_bytes_in_use": 7})]) == {"memory_peak_bytes": 7}
    assert device_memory([device(None), device({})]) == {}
