"""Before JAX starts: joining the other processes of a job, making virtual devices on a CPU."""

import math
import os
from dataclasses import dataclass

import jax

from jaxformer.errors import ConfigError
from jaxformer.sharding import MeshConfig


@dataclass(frozen=True)
class Job:
    """The processes that train together.

    Under SLURM, Open MPI and Kubernetes, and with ``auto`` on TPU pods, JAX finds everything by
    itself. Elsewhere start the same command once per process, with an address of process 0 that
    all can reach, the number of processes and each one's own index.
    """

    coordinator: str | None = None
    """HOST:PORT of process 0 (or JAX_COORDINATOR_ADDRESS)."""
    num_processes: int | None = None
    """How many processes (or JAX_NUM_PROCESSES)."""
    process_id: int | None = None
    """This one's index, from 0 (or JAX_PROCESS_ID)."""
    auto: bool = False
    """Ask the cluster (TPU pods)."""


def join(job: Job) -> int:
    """Connects to the other processes of a job.

    Returns:
        The number of processes as far as it is known before JAX starts; 1 where there is no job.

    Raises:
        ConfigError: The job is described in part only.
    """
    address = job.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    count = _number(job.num_processes, "JAX_NUM_PROCESSES")
    index = _number(job.process_id, "JAX_PROCESS_ID")
    launched = _launcher_processes()
    if not (address or job.auto or launched > 1):
        if count is not None or index is not None:
            raise ConfigError(
                "a job of several processes needs --job.coordinator HOST:PORT (or "
                "JAX_COORDINATOR_ADDRESS) besides their number and index"
            )
        return 1
    if address and launched == 1 and (count is None or index is None):
        raise ConfigError(
            f"the coordinator is {address}, but --job.num-processes or --job.process-id is missing"
        )
    jax.distributed.initialize(address, count, index)
    return count or launched


def make_cpu_devices(mesh: MeshConfig, num_processes: int = 1) -> None:
    """Lets a mesh run on a CPU as typed, with a virtual device per core where it needs several.

    A number of devices that the user has set stays, and a mesh larger than the cores is left to
    fail with the message that says how to get more. Accelerators are not affected.

    Args:
        mesh: The mesh to run on.
        num_processes: Processes that share it.
    """
    chosen = "JAX_NUM_CPU_DEVICES" in os.environ
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    devices = math.prod(size for size in sizes if size != -1) // num_processes
    if not (chosen or forced) and 1 < devices <= len(os.sched_getaffinity(0)):
        jax.config.update("jax_num_cpu_devices", devices)


def _number(given: int | None, variable: str) -> int | None:
    return int(os.environ[variable]) if given is None and variable in os.environ else given


def _launcher_processes() -> int:
    """How many processes a launcher that JAX knows has started."""
    variables = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    return max(int(os.environ.get(name, "1")) for name in variables)
