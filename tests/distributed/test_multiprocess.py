"""Two processes on one machine train together as one would, and stop together."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from ports import free_address
from tiny_run import finish_all, steps_logged, tiny_config, wait_for

from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train

pytestmark = pytest.mark.more


def started_two(runs, run_dir, *options):
    """Two processes of a long run that have trained a while."""
    options = ("--train.steps", "2000", "--mesh.data", "2", *options)
    processes = runs.start_two(run_dir, *options)
    wait_for(lambda: steps_logged(run_dir) > 20, *processes)
    return processes


def losses(run_dir):
    return [row["loss"] for row in read_metrics(run_dir)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    train(tiny_config(sample_tokens=3), run_dir)
    return run_dir


@pytest.mark.parametrize(
    "mesh",
    [
        ("--mesh.data", "2"),
        ("--mesh.fsdp", "2", "--mesh.tensor", "2"),  # two devices in each process
    ],
)
@pytest.mark.quick("mesh0")
def test_two_processes_agree_with_one(runs, alone, tmp_path, mesh):
    outputs = finish_all(runs.start_two(tmp_path / "two", "--train.sample-tokens", "3", *mesh))
    assert "2 processes" in outputs[0]
    assert "validation loss" not in outputs[1]  # only the first one prints
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(alone), rtol=1e-5)
    folders = [folder / "checkpoints" / "12" for folder in (alone, tmp_path / "two")]
    for (name, left), (_, right) in zip(*map(read_arrays, folders), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_agree_with_one_in_every_stage(runs, tmp_path):
    ramp = "--data.packing Joined --data.ramp Stage Stage --data.ramp.0.sequence-length 12 "
    ramp += "--data.ramp.0.batch-size 16 --data.ramp.0.until-step 3 "
    ramp += "--data.ramp.1.batch-size 4 --data.ramp.1.until-step 7"
    runs.finish(tmp_path / "one", *ramp.split())
    outputs = finish_all(runs.start_two(tmp_path / "two", *ramp.split(), "--mesh.data", "2"))
    assert "first step of 4 rows of 48 tokens" in outputs[0]
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both(runs, tmp_path):
    run_dir = tmp_path / "run"
    processes = started_two(runs, run_dir)
    processes[1].send_signal(signal.SIGTERM)
    outputs = finish_all(processes)
    stopped = int(re.search(r"stopped after step (\d+)", outputs[0]).group(1))
    assert checkpoint_files.saved_steps(run_dir / "checkpoints")[-1] == stopped
    runs_on = ("--train.steps", str(stopped + 4), "--mesh.data", "2")
    assert f"continuing from step {stopped}" in finish_all(runs.start_two(run_dir, *runs_on))[0]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_is_one_sentence_for_the_other(runs, tmp_path, victim):
    run_dir = tmp_path / "run"
    processes = started_two(runs, run_dir)
    processes[victim].kill()
    output, _ = processes[1 - victim].communicate(timeout=40)
    assert processes[1 - victim].returncode == 1
    last, *others = reversed([line for line in output.splitlines() if "Gloo] Rank" not in line])
    assert "error: another process of this job has ended" in last
    assert "rerun the same command" in last
    assert not any(line.startswith(("error", "Traceback", "E", "F", "***")) for line in others)
    processes[victim].communicate()
    assert (
        "continuing from step"
        in finish_all(runs.start_two(run_dir, "--train.steps", "30", "--mesh.data", "2"))[0]
    )


WAITING = """
import sys, time
from jaxformer.cli.errors import reporting_errors
from jaxformer.distributed.join import DistributedConfig, join

def action():
    join(DistributedConfig(sys.argv[1], 3, int(sys.argv[2])))
    print("joined", flush=True)
    time.sleep(float(sys.argv[3]))

sys.exit(reporting_errors(action))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["600", "0"], ids=["working", "leaving"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_dies_ends_the_others_whatever_they_wait_for(runs, victim, seconds):
    """No collective fails then, and heartbeats are missed after minutes."""
    address = free_address()
    each = [seconds] * 3
    each[victim] = "600"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING, address, str(index), each[index]],
            env=runs.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(3)
    ]  # fmt: skip
    assert [process.stdout.readline() for process in processes] == ["joined\n"] * 3
    processes.pop(victim).kill()
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert output.splitlines()[-1].startswith("error: another process of this job has ended")
        assert "Traceback" not in output


@pytest.mark.slow
def test_a_process_that_hangs_is_one_sentence_for_the_other(runs, tmp_path):
    """No collective fails then: it is the heartbeats that stop."""
    processes = started_two(runs, tmp_path / "run", "--job.heartbeat-timeout", "20")
    processes[1].send_signal(signal.SIGSTOP)
    try:
        output, _ = processes[0].communicate(timeout=120)
    finally:
        processes[1].kill()
        processes[1].communicate()
    assert processes[0].returncode == 1
    assert "error: another process of this job has ended" in output.splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.slow
def test_processes_that_do_not_meet(runs, tmp_path):
    options = ("--mesh.data", "2", "--job.initialization-timeout", "3")
    first, second = runs.start_two(tmp_path / "run", *options)
    first.kill()
    first.communicate()
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 1  # not 2: a scheduler starts it again, and they may meet then
    assert "process 1 of 2 could not connect to the others at localhost:" in output
    assert "job.initialization_timeout = 3 s" in output.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_refusal_ends_every_process(runs, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    processes = runs.start_two(tmp_path, "--mesh.data", "2")
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "thesis.tex" in outputs[0]
    assert "first process refused" in outputs[1]
