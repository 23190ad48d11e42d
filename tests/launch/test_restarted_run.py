"""The script for TPU machines, with two processes here: what is killed starts again by itself."""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest
from ports import free_address
from tiny_run import ROOT, finish_all, has_saved, hash_of

from jaxformer.launch import Job, TpuVm, tpu_vm_script

pytestmark = pytest.mark.slow

STEPS = 60
OPTIONS = (
    *("--train.steps", str(STEPS), "--train.checkpoint-interval", "10", "--mesh.data", "2"),
    *("--job.initialization-timeout", "60"),
)
TWO = TpuVm(chips="v5p:4x4x4*2", zone="z", setup=("true",), max_restarts=4)


class Machines:
    """Two machines with a run, whose script asks nobody after it has started."""

    def __init__(self, cluster, runs, run_dir):
        self.cluster, self.run_dir = cluster, run_dir
        self.homes = cluster.machines("tiny-0", "tiny-1")
        cluster.stand_in("sleep", "subprocess.run(['/bin/sleep', '0.2'], check=True)")
        modules = f"{ROOT}{os.pathsep}{runs.environment['PYTHONPATH']}"
        own = {k: v for k, v in runs.environment.items() if k.startswith(("JAX", "XLA", "OMP"))}
        own |= {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": "2"}
        self.job = Job(
            str(runs.experiment), str(run_dir), "tiny", OPTIONS,
            tuple((own | {"PYTHONPATH": modules}).items()),
            program=(sys.executable, "-m", "jaxformer"),
        )  # fmt: skip

    def start(self, cluster=TWO):
        status, output = self.cluster.run(tpu_vm_script(self.job, cluster), "start")
        assert status == 0, output

    def send(self, machine, number, after):
        """Signals the process of a machine once the run has the checkpoint of a step."""
        self.until(lambda: has_saved(self.run_dir, after))
        os.kill(int((self.homes[machine] / "tiny.pid").read_text()), number)

    def until(self, condition):
        until = time.monotonic() + 300
        while not condition():
            assert not self.statuses(), self.logs()
            assert time.monotonic() < until, self.logs()
            time.sleep(0.02)

    def statuses(self):
        files = [home / "tiny.status" for home in self.homes]
        return [file.read_text().strip() for file in files if file.exists()]

    def end(self):
        until = time.monotonic() + 300
        while len(self.statuses()) < 2 or "" in self.statuses():
            assert time.monotonic() < until, self.logs()
            time.sleep(0.1)
        return self.statuses()

    def logs(self):
        return [(home / "tiny.log").read_text() for home in self.homes]


def test_machines_whose_processes_are_killed_and_stopped_go_on_to_the_same_bits(
    cluster, runs, tmp_path
):
    """Process 0 included. Nobody starts anything again but the script."""
    finish_all(runs.start_two(tmp_path / "undisturbed", *OPTIONS))

    machines = Machines(cluster, runs, tmp_path / "run")
    machines.start()
    machines.send(1, signal.SIGKILL, after=10)
    machines.until(lambda: "continuing from step 10" in machines.logs()[0])
    machines.send(0, signal.SIGKILL, after=20)
    machines.until(lambda: "continuing from step 20" in machines.logs()[0])
    machines.send(1, signal.SIGTERM, after=30)
    assert machines.end() == ["0", "0"], machines.logs()
    first, second = machines.logs()
    assert "stopped after step" in first
    assert all("error: another process of this job has ended" in log for log in (first, second))
    assert all("Traceback" not in log for log in (first, second))
    assert hash_of(machines.run_dir, STEPS) == hash_of(tmp_path / "undisturbed", STEPS)


def test_machines_give_up_after_as_many_failures_as_they_may_have(cluster, runs, tmp_path):
    machines = Machines(cluster, runs, tmp_path / "run")
    machines.start(replace(TWO, max_restarts=0))
    machines.send(1, signal.SIGKILL, after=10)
    assert machines.end() == ["1", "137"], machines.logs()
