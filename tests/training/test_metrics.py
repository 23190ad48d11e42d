"""Metrics on disk, on the screen and as pictures; rates and the table at the start."""

import itertools
import json
import os
import signal
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.checkpoints.run_dir import METRICS_FILE
from jaxformer.distributed.preemption import StopSignal
from jaxformer.distributed.processes import device_batches, local_rows
from jaxformer.training.logging.metrics_writer import MetricsLog, read_metrics
from jaxformer.training.logging.plot import curve, is_per_token, plot_loss, smooth
from jaxformer.training.logging.progress import duration, short_number
from jaxformer.training.logging.report import (
    bytes_per_device,
    parameter_count,
    short_bytes,
    total_bytes,
)
from jaxformer.training.logging.throughput import PEAK_FLOPS, Stopwatch, WorkStage, peak_flops


def write_steps(folder, start, steps):
    with closing(MetricsLog(folder, start)) as log:
        for step in steps:
            log.write("train", step, {"loss": 1 / step})


def test_rows_past_the_step_that_a_run_resumes_from_go(tmp_path):
    write_steps(tmp_path, 0, [1, 2, 3, 4])
    write_steps(tmp_path, 2, [3, 4, 5])
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    write_steps(tmp_path, 0, [])
    assert read_metrics(tmp_path) == []


def test_a_line_that_a_killed_process_cut_off_is_dropped(tmp_path):
    write_steps(tmp_path, 0, [1, 2])
    path = tmp_path / METRICS_FILE
    path.write_text(path.read_text() + '{"step": 3, "spl')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    write_steps(tmp_path, 2, [3])
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


DAMAGED = [
    b"oops",
    b"",
    b"\x00" * 50,
    b'{"step": 2, "split": "tr\xff"}',
    b"[" * 9999,
    b'{"step": %s, "split": "train"}' % (b"9" * 5000),
    b"[1, 2]",
    b'{"split": "train", "loss": 1.0}',
    b'{"step": "2", "split": "train"}',
    b'{"step": 2.0, "split": "train"}',
    b'{"step": true, "split": "train"}',
    b'{"step": -2, "split": "train"}',
    b'{"step": 2}',
    b'{"step": 2, "split": null}',
    b'{"step": 2, "split": "train", "loss": "low"}',
    b'{"step": 2, "split": "train", "loss": NaN}',
    b'{"step": 2, "split": "train", "loss": Infinity}',
    b'{"step": 2, "split": "train", "loss": 1%s}' % (b"0" * 400),
    b'{"step": 2, "split": "train", "loss": [1]}',
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:45]))
def test_damaged_lines_are_set_aside_and_the_others_stay(tmp_path, caplog, line):
    write_steps(tmp_path, 0, [1, 2])
    path = tmp_path / METRICS_FILE
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second, b""]))
    with caplog.at_level("WARNING"):
        assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
        assert curve(tmp_path, "train")[0].tolist() == [1, 2]
    assert all("metrics.jsonl:2: " in said.message for said in caplog.records)
    caplog.clear()
    write_steps(tmp_path, 2, [3])
    (said,) = caplog.messages
    assert "metrics.jsonl:2: " in said
    assert "1 damaged line kept in metrics.jsonl.damaged" in said
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == line + b"\n"
    caplog.clear()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    path.write_bytes(b"again\n" + path.read_bytes())
    write_steps(tmp_path, 3, [])
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == line + b"\n"
    assert (tmp_path / "metrics.jsonl.damaged-2").read_bytes() == b"again\n"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("absent")])
def test_what_is_in_the_place_of_the_metrics_is_moved(tmp_path, caplog, make):
    make(tmp_path / METRICS_FILE)
    assert read_metrics(tmp_path) == []
    write_steps(tmp_path, 0, [1])
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    assert "it kept in metrics.jsonl.damaged" in caplog.messages[-1]
    assert os.path.lexists(tmp_path / "metrics.jsonl.damaged")


@given(st.binary(max_size=200), st.integers(0, 120))
def test_any_bytes_give_rows_or_damage(tmp_path_factory, junk, place):
    folder = tmp_path_factory.mktemp("junk")
    rows = b"".join(b'{"step": %d, "split": "train", "loss": 1.5}\n' % n for n in range(1, 6))
    (folder / METRICS_FILE).write_bytes(rows[:place] + junk + rows[place:])
    for row in read_metrics(folder):
        assert row["step"] >= 0
        assert row["split"]
    MetricsLog(folder, 9).close()
    assert [row["step"] for row in read_metrics(folder)].count(5) >= 1


def test_lost_rows_are_said(tmp_path, caplog):
    (tmp_path / METRICS_FILE).write_text('{"step": 5, "split": "train", "loss": 1.5}\n')
    MetricsLog(tmp_path, 7, num_rows=1).close()
    assert not caplog.records
    MetricsLog(tmp_path, 10, num_rows=2).close()
    assert "metrics.jsonl is damaged: it has 1 rows up to step 10 instead of 2" in caplog.text


def test_rows_are_valid_json_whatever_was_measured(tmp_path):
    with closing(MetricsLog(tmp_path, 0)) as log:
        log.write("train", 1, {"loss": float("nan"), "gradient_norm": float("inf")})

    def refuse(name):
        raise AssertionError(name)

    (line,) = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["loss"] is None
    assert len(curve(tmp_path, "train")[0]) == 0


def test_the_picture(tmp_path):
    assert plot_loss(tmp_path, "nothing yet") is None
    with closing(MetricsLog(tmp_path, 0)) as log:
        for step in range(1, 50):
            log.write("train", step, {"loss": 2 + 7 / step})
            if step % 10 == 0:
                log.write("validation", step, {"loss": 2.1 + 7 / step, "perplexity": 8.0})
    path = plot_loss(tmp_path, "run", "3 steps")
    assert path == tmp_path / "loss.png"
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_a_loss_has_a_perplexity_where_it_is_one_of_tokens(tmp_path, metric):
    with closing(MetricsLog(tmp_path, 0)) as log:
        log.write("validation", 1, {"loss": 2.0, metric: 0.5})
    assert is_per_token(tmp_path) == (metric == "perplexity")


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=300))
def test_smoothing_stays_within_the_curve(values):
    values = np.array(values)
    smoothed = smooth(values)
    assert smoothed.shape == values.shape
    assert smoothed[0] == values[0]
    assert values.min() - 1e-9 <= smoothed.min() <= smoothed.max() <= values.max() + 1e-9


def test_smoothing_does_not_lag():
    line = np.linspace(9, 2, 240)
    np.testing.assert_allclose(smooth(line)[:-4], line[:-4], rtol=1e-12)


def test_rates(monkeypatch):
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    work = WorkStage(0, 1, tokens=100, flops=400.0, causal_flops=300.0, peak=1000.0)
    larger = WorkStage(0, 3, tokens=300, flops=800.0, causal_flops=500.0, peak=1000.0)
    watch = Stopwatch()
    assert watch.read() == {}
    watch.waited(0.5)
    assert watch.step_done(work, counts=False) == 1.0  # and the clock starts anew
    assert watch.read() == {}
    watch.waited(0.2)
    watch.pause(0.5)
    assert watch.step_done(work) == 0.5
    watch.pause(0.25)
    assert watch.step_done(larger) == 0.75
    rates = watch.read()
    assert rates["step_seconds"] == 1.25 / 2
    assert rates["data_wait_seconds"] == pytest.approx(0.1)
    assert rates["tokens_per_second"] == 400 / 1.25
    assert rates["model_flops_per_second"] == 1200 / 1.25
    assert (rates["mfu"], rates["mfu_causal"]) == (1.2 / 1.25, 0.8 / 1.25)
    assert watch.read() == {}


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("cpu", None),
    ],
)
def test_peaks_by_device(kind, peak):
    assert peak_flops(kind) == peak


@pytest.mark.parametrize("name", PEAK_FLOPS)
def test_no_name_in_the_table_hides_a_longer_one(name):
    assert peak_flops(f"NVIDIA {name} 80GB") == PEAK_FLOPS[name]


def test_numbers_as_people_write_them():
    assert [duration(s) for s in (4.21, 42, 190, 7500, 3e5)] == [
        "4.2s", "42s", "3m 10s", "2h 05m", "3d 11h",
    ]  # fmt: skip
    assert [short_number(x) for x in (950, 12345, 4.2e6, 8.03e9, 1.5e12, 0.5)] == [
        "950", "12.3k", "4.20M", "8.03B", "1.50T", "0.50",
    ]  # fmt: skip
    assert [short_bytes(x) for x in (5, 2048, 3 * 2**20, 1.5 * 2**30)] == [
        "5 B", "2 KiB", "3 MiB", "1.5 GiB",
    ]  # fmt: skip


def test_memory_per_device():
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    tree = {
        "cut": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(mesh, P("tensor"))),
        "kept": jax.ShapeDtypeStruct((3,), np.float32, sharding=NamedSharding(mesh, P())),
    }
    assert parameter_count(tree) == 35
    assert total_bytes(tree) == 140
    assert bytes_per_device(tree) == 32 + 12


@pytest.mark.parametrize("rows", [P("data"), P(("data", "tensor")), P()])
def test_batches_reach_the_devices_whole(rows):
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, rows)
    np.testing.assert_array_equal(local_rows(sharding, 16), np.arange(16))
    batch = {"inputs": np.arange(48).reshape(16, 3), "label": np.arange(16)}
    placed = next(device_batches([batch], sharding, 16))
    for name, array in batch.items():
        assert placed[name].sharding.is_equivalent_to(sharding, array.ndim)
        np.testing.assert_array_equal(placed[name], array)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda n: n.name
)
def test_a_first_signal_asks_and_a_second_one_acts(number):
    def acted(*_):
        raise InterruptedError

    before = signal.signal(number, acted)
    try:
        with StopSignal() as stop:
            assert not stop.requested(1)
            signal.raise_signal(number)
            assert stop.requested(2)
            with pytest.raises(InterruptedError):
                signal.raise_signal(number)
        assert signal.getsignal(number) is acted
    finally:
        signal.signal(number, before)


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested(1)
    finally:
        signal.signal(signal.SIGHUP, before)
