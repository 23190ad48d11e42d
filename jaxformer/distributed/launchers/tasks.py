"""srun of SLURM and mpirun of Open MPI, whose processes share the GPUs of a node."""

import re
from pathlib import Path

from jaxformer.distributed.launchers.base import Processes, Variables, job_port, needed, number
from jaxformer.errors import ConfigError

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Step numbers from here on are not the user's srun: the batch script, an interactive shell."""
_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DEVICE_FILES = Path("/dev")


def srun(variables: Variables) -> Processes | None:
    """The tasks of an srun; a shell within an allocation is a step of one task, or not a step."""
    count = number(variables, "SLURM_STEP_NUM_TASKS", 1)
    if count in (None, 1):
        return None
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")
    index, local, job = (needed(variables, name, "srun") for name in names)
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    host = first_node(nodes)
    # Two steps of a job that start on the same node must not get the same port.
    port = job_port(job + 257 * (number(variables, "SLURM_STEP_ID") or 0), variables)
    devices = _local_gpus(local, _tasks_here(variables), variables)
    return Processes(f"{host}:{port}" if host else None, count, index, devices)


def mpirun(variables: Variables) -> Processes | None:
    """The processes of an mpirun; since Open MPI 5, the address of the first one is unknown."""
    count = number(variables, "OMPI_COMM_WORLD_SIZE", 1)
    if count in (None, 1):
        return None
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    index, local, here = (needed(variables, name, "mpirun") for name in names)
    # For example 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 or ...;tcp6://[fe80::b9b]:43370
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
    coordinator = None
    if found:
        host = found[2] or f"[{found[3]}]"
        coordinator = f"{host}:{job_port(int(found[1]) // 4096, variables)}"
    return Processes(coordinator, count, index, _local_gpus(local, here, variables))


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


def _local_gpus(local: int, here: int | None, variables: Variables) -> tuple[int, ...] | None:
    """Returns the GPUs of one process on a node, with an equal share for each process."""
    given = variables.get("JAX_LOCAL_DEVICE_IDS") or variables.get("JAX_PLATFORMS") == "cpu"
    if given or here == 1:
        return None
    visible = _visible(variables)
    if visible is None or here is None:  # JAX's default: one process per GPU
        return (local,)
    if visible <= 1 or _are_bound_by_srun(visible, variables):
        return None
    share = number(variables, "SLURM_GPUS_PER_TASK", 1) or visible // here
    if visible % here or share * here > visible:
        raise ConfigError(
            f"{here} processes on this node cannot share {visible} GPUs evenly: start one process "
            "per GPU, or one for all GPUs"
        )
    return tuple(range(local * share, (local + 1) * share))


def _are_bound_by_srun(visible: int, variables: Variables) -> bool:
    """Whether srun bound GPUs to the task, so that it does not see all GPUs of the node."""
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    per_task = number(variables, "SLURM_GPUS_PER_TASK", 1)
    return visible == per_task or (on_node is not None and visible < on_node)


def _visible(variables: Variables) -> int | None:
    """Returns the number of GPUs that this process sees, or None if unknown."""
    for name in _MASKS:
        if name in variables:
            return len([part for part in variables[name].split(",") if part.strip()])
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    if on_node is not None:
        return on_node
    return len(list(_DEVICE_FILES.glob("nvidia[0-9]*"))) or None
