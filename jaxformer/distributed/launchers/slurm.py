"""srun of SLURM."""

import re

from jaxformer.distributed.launchers.base import (
    Launcher,
    Processes,
    Variables,
    job_port,
    needed,
    number,
)
from jaxformer.distributed.launchers.gpus import local_gpus

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Step numbers from here on are not the user's srun: the batch script, an interactive shell."""


class Slurm(Launcher):
    """The tasks of an srun; a shell within an allocation is a step of one task or no step."""

    def detect(self, variables: Variables) -> Processes | None:
        count = number(variables, "SLURM_STEP_NUM_TASKS", 1)
        if count in (None, 1):
            return None
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")
        index, local, job = (needed(variables, name, "srun") for name in names)
        nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
        host = first_node(nodes)
        # Two steps of a job that start on the same node must not get the same port.
        port = job_port(job + 257 * (number(variables, "SLURM_STEP_ID") or 0), variables)
        return Processes(
            f"{host}:{port}" if host else None,
            count,
            index,
            local_gpus(local, _tasks_here(variables), variables),
        )


def first_node(nodes: str) -> str | None:
    """Returns the first node of SLURM's node list: "n1" for "n[1-4,7]", None for an empty list."""
    # Names and ranges: node[001-004,007],rack[1-2]node[5-6],host2
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[0]) if first else None


def nodes_without_srun(variables: Variables) -> int | None:
    """Returns how many nodes are allocated to a shell or script that srun did not start."""
    by_user = (number(variables, "SLURM_STEP_ID") or 0) < _FIRST_SPECIAL_STEP
    if by_user and number(variables, "SLURM_STEP_NUM_TASKS", 1) is not None:
        return None
    nodes = number(variables, "SLURM_JOB_NUM_NODES", 1)
    return number(variables, "SLURM_NNODES", 1) if nodes is None else nodes


def _tasks_here(variables: Variables) -> int | None:
    """Returns how many tasks of the step run on this node; SLURM writes 4(x2),3 for 4, 4 and 3."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = number(variables, "SLURM_NODEID") or 0
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    tasks = [int(size) for size, times in groups for _ in range(int(times or 1))]
    return tasks[node] if node < len(tasks) else None
