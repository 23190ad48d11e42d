"""Determines the processes of a job from options and from a launcher's environment."""

import re
from dataclasses import dataclass

from jaxformer.checks import at_least, between, check_fields, optional
from jaxformer.distributed.launchers import LAUNCHERS, Processes
from jaxformer.distributed.launchers.base import ALONE, Variables, number
from jaxformer.distributed.launchers.signs import refuse_lone_process, refuse_ranks
from jaxformer.errors import ConfigError


@dataclass(frozen=True)
class DistributedConfig:
    """The processes of a job.

    Under SLURM (srun), Open MPI (mpirun), on TPU pods and in Kubernetes Jobs, processes find each
    other by environment variables of the launcher. Elsewhere, start the same command once per
    process, with a reachable address of process 0, the number of processes and the index of each
    process.
    """

    coordinator: str | None = None
    """HOST:PORT of process 0 (or JAX_COORDINATOR_ADDRESS)."""
    num_processes: int | None = None
    """Number of processes (or JAX_NUM_PROCESSES); 1 ignores launchers."""
    process_id: int | None = None
    """Index of this process, from 0 (or JAX_PROCESS_ID)."""
    auto: bool = False
    """Let JAX detect the cluster if no environment variable identifies it."""
    initialization_timeout: int = 300
    """Seconds to wait for all processes at the start."""
    heartbeat_timeout: int = 180
    """Seconds without a heartbeat after which a process counts as lost. They are measured with the
    system clock; setting it forward by half of this time or more may end the job.
    """
    stopped_status: int = 0
    """The exit status of a run that was stopped by a signal; if not 0, a scheduler can restart it
    (`jaxformer launch` sets 75).
    """


def find_processes(job: DistributedConfig, variables: Variables) -> Processes | None:
    """Determines the processes; options take precedence over variables of JAX and launchers."""
    address, count, index = _given(job, variables)
    if count == 1 and address is None:
        return None
    launched = next((each for detect in LAUNCHERS if (each := detect(variables))), None)
    if None in (address, count, index) and not job.auto:
        refuse_ranks(variables, launched)
    if launched is None and address is None and not job.auto:
        if count is not None or index is not None:
            raise ConfigError(
                "a job of several processes needs --job.coordinator HOST:PORT (or "
                "JAX_COORDINATOR_ADDRESS) in addition to their number and index"
            )
        refuse_lone_process(variables)
        return None
    known = launched or Processes(None, None, None)
    address = known.coordinator if address is None else address
    count = known.count if count is None else count
    index = known.index if index is None else index
    if not (job.auto or known.cluster_knows):
        _check_complete(address, count, index)
    if None not in (count, index) and index >= count:
        raise ConfigError(
            f"job.process_id = {index}: must be less than job.num_processes = {count}; "
            "the first process is 0"
        )
    return Processes(address, count, index, known.devices)


def _given(
    job: DistributedConfig, variables: Variables
) -> tuple[str | None, int | None, int | None]:
    """Returns address, number and index from the options or from JAX's environment variables."""
    check_fields(
        job,
        "job",
        num_processes=optional(at_least(1)),
        process_id=optional(at_least(0)),
        initialization_timeout=at_least(1),
        heartbeat_timeout=at_least(1),
        stopped_status=between(0, 255),
    )
    for name in ("JAX_COORDINATOR_PORT", "JAX_LOCAL_DEVICE_IDS"):
        for part in variables[name].split(",") if variables.get(name) else ():
            number({name: part}, name)
    address, source = job.coordinator, "job.coordinator"
    if address is None and variables.get("JAX_COORDINATOR_ADDRESS"):
        address = variables["JAX_COORDINATOR_ADDRESS"]
        source = "JAX_COORDINATOR_ADDRESS"
        if re.fullmatch(r"[^:]+|\[.*\]", address) and variables.get("JAX_COORDINATOR_PORT"):
            address = f"{address}:{variables['JAX_COORDINATOR_PORT']}"
    if address is not None:
        _check_address(address, source)
    count, index = job.num_processes, job.process_id
    if count is None:
        count = number(variables, "JAX_NUM_PROCESSES", 1)
    return address, count, number(variables, "JAX_PROCESS_ID") if index is None else index


def _check_complete(address: str | None, count: int | None, index: int | None) -> None:
    if count is None and index is not None:
        first = "" if address else "--job.coordinator HOST:PORT and "
        raise ConfigError(
            f"this is process {index} of a job of unknown size, as in a pod of an indexed Job "
            f"(JOB_COMPLETION_INDEX): give {first}--job.num-processes (or JAX_NUM_PROCESSES), or "
            f"install jax[k8s], with which JAX queries the cluster; {ALONE} trains alone"
        )
    if address is None:
        raise ConfigError(
            f"{count} processes were started together, but the address of process 0 is unknown: "
            "set it with --job.coordinator HOST:PORT"
        )
    if count is None or index is None:
        raise ConfigError(
            f"the coordinator is {address}, but --job.num-processes or --job.process-id is missing"
        )


def _check_address(address: str, source: str) -> None:
    host, _, port = address.rpartition(":")
    whole = host and (":" not in host or re.fullmatch(r"\[.*\]", host)) and port.isdecimal()
    if not (whole and 1 <= int(port) <= 65535):
        raise ConfigError(
            f"{source} = {address!r}: must be HOST:PORT with a port from 1 to 65535, as "
            "in 10.0.0.1:1234 or [fe80::1]:1234"
        )
