"""A SLURM script from start to end: two tasks here, told and killed, end with the same bits."""

import os
import signal
import subprocess
import sys
import time

import pytest
from ports import free_port
from tiny_run import ROOT, has_saved, hash_of, steps_logged

from jaxformer.launch import Job, Slurm, slurm_script

pytestmark = pytest.mark.slow

STEPS = 40
SRUN = """
command = words[1:]
while command[0].startswith("--"):
    command.pop(0)
step = {
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0",
}
tasks = []
for rank in map(str, range(2)):
    own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}
    with open(f"task-{rank}.log", "a") as log:
        tasks.append(subprocess.Popen(
            command, env=os.environ | step | own, stdout=log, stderr=subprocess.STDOUT
        ))
with open("tasks", "w") as file:
    file.write(" ".join(str(task.pid) for task in tasks))
sys.exit(max(task.wait() % 256 for task in tasks))
"""
"""Starts the command twice, with the variables that srun gives two tasks of one node."""


class Scheduler:
    """A folder with the job's script."""

    def __init__(self, cluster, name, runs):
        self.folder = cluster.folder / name
        self.run_dir = self.folder / "run"
        self.folder.mkdir()
        cluster.stand_in("srun", SRUN)
        cluster.stand_in("scontrol")
        options = ("--train.steps", str(STEPS), "--train.checkpoint-interval", "10")
        job = Job(
            str(runs.experiment), str(self.run_dir), "tiny", (*options, "--mesh.data", "2"),
            program=(sys.executable, "-m", "jaxformer"),
        )  # fmt: skip
        (self.folder / "job.sh").write_text(slurm_script(job, Slurm(nodes=1, gpus_per_node=0)))
        modules = f"{ROOT}{os.pathsep}{runs.environment['PYTHONPATH']}"
        programs = f"{cluster.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = runs.environment | {"PYTHONPATH": modules, "PATH": programs}

    def submit(self):
        job = {"SLURM_JOB_ID": "7", "JAX_COORDINATOR_PORT": str(free_port())}
        return subprocess.Popen(["bash", "job.sh"], cwd=self.folder, env=self.environment | job)

    def logs(self):
        return [(self.folder / f"task-{rank}.log").read_text() for rank in range(2)]

    def interrupt(self, rank, number, ready):
        """Signals a task once the run is ready for it; the status of the script."""
        script = self.submit()
        while not ready(self.run_dir):
            assert script.poll() is None, self.logs()
            time.sleep(0.02)
        os.kill(int((self.folder / "tasks").read_text().split()[rank]), number)
        return script.wait(timeout=300)


def test_a_job_that_is_told_to_stop_and_one_that_is_killed_end_with_the_same_bits(cluster, runs):
    undisturbed = Scheduler(cluster, "undisturbed", runs)
    assert undisturbed.submit().wait(timeout=600) == 0, undisturbed.logs()
    assert [call[0] for call in cluster.calls()] == ["srun"]
    assert "2 processes" in undisturbed.logs()[0]

    job = Scheduler(cluster, "disturbed", runs)
    assert job.interrupt(1, signal.SIGTERM, lambda run: steps_logged(run) > 3) == 75, job.logs()
    assert cluster.calls()[2:] == [["scontrol", "requeue", "7"]]
    assert "stopped after step" in job.logs()[0]
    assert job.interrupt(1, signal.SIGKILL, lambda run: has_saved(run, 20)) not in (0, 75)
    assert [call[0] for call in cluster.calls()[3:]] == ["srun"]
    assert "error: another process of this job has ended" in job.logs()[0]
    assert job.submit().wait(timeout=600) == 0, job.logs()
    assert "continuing from step 20" in job.logs()[0]
    assert hash_of(job.run_dir, STEPS) == hash_of(undisturbed.run_dir, STEPS)
