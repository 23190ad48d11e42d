"""Scripts for sbatch: bash reads them, and they do what they say with a stand-in for srun."""

import re

import pytest
from odd_words import ODD

from jaxformer.errors import ArgumentError
from jaxformer.launch import Job, Slurm, slurm_script
from jaxformer.launch.slurm import seconds

JOB = Job("configs/a b.py:x", "/shared/runs/it's", "llama", ODD, (("A", "1 $B"),))
TOLD = ["JAX_COMPILATION_CACHE_DIR", "XLA_PYTHON_CLIENT_MEM_FRACTION"]


def directives(script):
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    # sbatch reads no directive after the first command.
    assert script.startswith("#!/bin/bash\n" + "\n".join(lines))
    found = dict(re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line).groups() for line in lines)
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize(
    ("cluster", "nodes", "tasks", "gpus"),
    [
        (Slurm(nodes=8), "8", "1", "8"),
        (Slurm(nodes=2, gpus_per_node=4), "2", "1", "4"),
        (Slurm(nodes=2, gpus_per_node=4, tasks="gpu"), "2", "4", "4"),
        (Slurm(chips="h100:64"), "8", "1", "8"),
        (Slurm(chips="gb200:72", nodes=18), "18", "1", "4"),
        (Slurm(chips="a100:4"), "1", "1", "4"),
        (Slurm(nodes=3, gpus_per_node=0), "3", "1", None),
    ],
)
def test_the_shape_of_a_job(cluster, nodes, tasks, gpus):
    found = directives(slurm_script(JOB, cluster))
    assert found["nodes"] == nodes
    assert found["ntasks-per-node"] == tasks
    assert found.get("gpus-per-node") == gpus
    # The run is told in time to save, and the job may go back into the queue.
    assert found["signal"] == "TERM@300"
    assert {"requeue", "exclusive"} <= found.keys()
    assert found["open-mode"] == "append"


def test_what_a_site_asks_for():
    cluster = Slurm(
        nodes=1, time="2-00:00:00", save_before=600, partition="gpu", account="p-1", qos="high",
        cpus_per_task=32, log="logs/%x-%j.log", sbatch=("--constraint=ib", "--overcommit"),
    )  # fmt: skip
    found = directives(slurm_script(JOB, cluster))
    expected = {"time": "2-00:00:00", "signal": "TERM@600", "partition": "gpu", "account": "p-1"}
    expected |= {"qos": "high", "output": "logs/%x-%j.log", "constraint": "ib", "overcommit": None}
    assert expected.items() <= found.items()
    assert "--cpus-per-task=32" in slurm_script(JOB, cluster).split("srun")[1]


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (143, False), (75, True)])
def test_a_stopped_run_goes_back_into_the_queue(cluster, status, requeued):
    cluster.stand_in("srun", f"assert os.environ['A'] == '1 $B'; sys.exit({status})")
    cluster.stand_in("scontrol")
    script = slurm_script(JOB, Slurm(nodes=2, setup=("touch ready",)))
    assert cluster.run(script, SLURM_JOB_ID="77")[0] == status
    assert (cluster.folder / "ready").exists()
    srun, *rest = cluster.calls()
    assert srun[-len(JOB.command) :] == list(JOB.command)
    assert rest == ([["scontrol", "requeue", "77"]] if requeued else [])


@pytest.mark.parametrize(("gpus", "fraction"), [(8, "0.9"), (0, None)])
def test_what_was_compiled_is_kept_and_gpus_have_their_memory(cluster, gpus, fraction):
    cluster.stand_in("srun", "print([os.environ.get(name) for name in " + str(TOLD) + "])")
    script = slurm_script(JOB, Slurm(nodes=1, gpus_per_node=gpus))
    assert cluster.run(script) == (0, f"{[fraction and '/shared/runs/compiled', fraction]}\n")


def test_a_container_runs_the_command(cluster):
    cluster.stand_in("srun")
    script = slurm_script(JOB, Slurm(nodes=1, container="nvcr.io#i/j:1", mounts=("/a:/b", "/c d")))
    assert cluster.run(script, SLURM_JOB_ID="1") == (0, "")
    ((_, *words),) = cluster.calls()
    assert "--container-image=nvcr.io#i/j:1" in words
    assert "--container-mounts=/a:/b,/c d" in words


@pytest.mark.parametrize(
    ("time", "total"),
    [
        *(("90", 5400), ("01:30", 90), ("12:00:00", 43200), ("1-12", 129600)),
        *(("1-12:30", 131400), ("2-00:00:01", 172801)),
    ],
)
def test_the_forms_of_a_time(time, total):
    assert seconds(time) == total


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "nodes"),
        ({"nodes": 0}, "nodes = 0"),
        ({"nodes": 1, "time": "soon"}, "time = 'soon'"),
        ({"nodes": 1, "time": "0"}, "time = '0'"),
        ({"nodes": 1, "time": "00:04:00"}, "save-before = 300"),
        ({"nodes": 1, "partition": "a b"}, "partition = 'a b'"),
        ({"nodes": 1, "log": "a\n#SBATCH"}, "log ="),
        ({"nodes": 1, "sbatch": ("constraint=a",)}, "sbatch = 'constraint=a'"),
        ({"nodes": 1, "tasks": "gpu", "gpus_per_node": 0}, "tasks = 'gpu'"),
        ({"nodes": 9, "chips": "h100:64"}, "nodes = 9"),
        ({"gpus_per_node": 4, "chips": "h100:64"}, "gpus-per-node = 4"),
        ({"chips": "v5p:4x4x4"}, "must be GPUs for SLURM"),
        ({"chips": "h101:64"}, "did you mean 'h100'"),
        ({"nodes": 1, "setup": ("a\nb",)}, "setup ="),
        ({"nodes": 1, "container": "a\nb"}, "container ="),
    ],
)
def test_what_a_cluster_cannot_be(options, text):
    with pytest.raises(ArgumentError, match=text):
        slurm_script(JOB, Slurm(**options))
