"""Detects jobs of several processes that cannot be joined from environment variables alone."""

from pathlib import Path
from typing import NamedTuple

from jaxformer.distributed.launchers.base import ALONE, BY_HAND, Processes, Variables, number
from jaxformer.distributed.launchers.tasks import nodes_without_srun
from jaxformer.errors import ConfigError


class Rank(NamedTuple):
    """The variables of a launcher that numbers its processes without providing an address."""

    launcher: str
    size: str
    index: str
    hint: str = ""


RANKS = (
    Rank("mpiexec", "PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, Cray PALS
    Rank("MVAPICH2", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    Rank("torchrun", "WORLD_SIZE", "RANK", " (HOST is its $MASTER_ADDR, PORT another free port)"),
    Rank("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    Rank("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),  # LSF
)


def refuse_ranks(variables: Variables, launched: Processes | None) -> None:
    """Refuses processes that a launcher numbered but that would not train together.

    Otherwise N processes would train separately, or several would use the same index of a smaller
    job.
    """
    for rank in RANKS:
        size = number(variables, rank.size)
        index = number(variables, rank.index)
        known = launched is not None and (size, index) == (launched.count, launched.index)
        if index is not None and size is not None and size > 1 and not known:
            raise ConfigError(
                f"{rank.size} = {size}: {rank.launcher} started {size} processes that would not "
                "train together; start each with --job.coordinator HOST:PORT --job.num-processes "
                f"{size} --job.process-id ${rank.index}, which is {index} here{rank.hint}, or "
                f"train with this process alone with {ALONE}"
            )


def refuse_lone_process(variables: Variables) -> None:
    """Refuses a process that was started alone in an allocation of several nodes."""
    allocations = (
        ("SLURM", "srun", nodes_without_srun(variables)),
        ("PBS", "mpirun of Open MPI", _pbs_nodes(variables)),
        ("LSF", "mpirun of Open MPI", len(variables.get("LSB_MCPU_HOSTS", "").split()) // 2),
        ("Grid Engine", "mpirun of Open MPI", number(variables, "NHOSTS")),
    )
    for scheduler, launcher, nodes in allocations:
        if nodes is not None and nodes > 1:
            raise ConfigError(
                f"{scheduler} allocated {nodes} nodes, but this process was started alone on one "
                f"of them: start the command with {launcher}, or once on each node with "
                f"{BY_HAND}; {ALONE} trains on this node alone"
            )
    slices = number(variables, "MEGASCALE_NUM_SLICES", 1)
    if slices is not None and slices > 1:
        raise ConfigError(
            f"MEGASCALE_NUM_SLICES = {slices}: the hosts of this slice are unknown; set "
            f"TPU_WORKER_HOSTNAMES and TPU_WORKER_ID, or set {BY_HAND}"
        )


def _pbs_nodes(variables: Variables) -> int | None:
    file = Path(variables.get("PBS_NODEFILE") or "")
    if variables.get("PBS_NODEFILE") and file.is_file():
        return len(set(file.read_text().split()))
    return number(variables, "PBS_NUM_NODES", 1)
