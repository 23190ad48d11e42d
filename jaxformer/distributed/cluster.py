"""Which processes train together, from options and from the environment of a launcher."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxformer.errors import ConfigError

Variables = Mapping[str, str]

# Each would otherwise start N processes that know nothing of each other: size and rank.
_OTHER_LAUNCHERS = {
    "PMI_SIZE": "PMI_RANK",  # MPICH, Intel MPI
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
    "WORLD_SIZE": "RANK",  # torchrun
}


@dataclass(frozen=True)
class DistributedConfig:
    """The processes that train together.

    Under SLURM (srun), Open MPI (mpirun), on TPU pods and in Kubernetes Jobs they find each other
    by the variables of the launcher. Elsewhere start the same command once per process, with an
    address of process 0 that all can reach, the number of processes and each one's own index.
    """

    coordinator: str | None = None
    """HOST:PORT of process 0 (or JAX_COORDINATOR_ADDRESS)."""
    num_processes: int | None = None
    """How many processes (or JAX_NUM_PROCESSES); 1: this one alone, whatever started it."""
    process_id: int | None = None
    """This one's index, from 0 (or JAX_PROCESS_ID)."""
    auto: bool = False
    """Let JAX ask the cluster (TPU virtual machines without variables)."""
    initialization_timeout: int = 300
    """Seconds to wait at the start until all processes are there."""


class Processes(NamedTuple):
    """What `jax.distributed.initialize` needs to know; None: JAX asks the cluster."""

    coordinator: str | None
    count: int | None
    index: int | None
    devices: tuple[int, ...] | None = None
    """Which of the node's GPUs are this process's; None: all that it sees."""


def find_processes(job: DistributedConfig, variables: Variables) -> Processes | None:
    """Reads who trains together; options come before JAX's variables and those of a launcher.

    Args:
        job: The options.
        variables: The environment.

    Returns:
        None where this process trains alone.

    Raises:
        ConfigError: A value cannot be, or the job is described in part only.
    """
    address = job.coordinator or variables.get("JAX_COORDINATOR_ADDRESS") or None
    count = _given(job.num_processes, "job.num_processes", variables, "JAX_NUM_PROCESSES", 1)
    index = _given(job.process_id, "job.process_id", variables, "JAX_PROCESS_ID", 0)
    _check("job.initialization_timeout", job.initialization_timeout, 1)
    if address is not None:
        _check_address(address)
    for name in ("JAX_COORDINATOR_PORT", "JAX_LOCAL_DEVICE_IDS"):
        for part in variables[name].split(",") if variables.get(name) else ():
            _number({name: part}, name)
    if count == 1 and address is None:
        return None
    readers = (_open_mpi, _slurm, _tpu_pod, _kubernetes)
    launched = next((found for read in readers if (found := read(variables))), None)
    if launched is None and address is None and not job.auto:
        if count is not None or index is not None:
            raise ConfigError(
                "a job of several processes needs --job.coordinator HOST:PORT (or "
                "JAX_COORDINATOR_ADDRESS) besides their number and index"
            )
        _refuse_other_launchers(variables)
        return None
    known = launched or Processes(None, None, None)
    address = known.coordinator if address is None else address
    count = known.count if count is None else count
    index = known.index if index is None else index
    if not (job.auto or _cluster_knows(launched, variables)):
        _check_complete(address, count, index)
    if None not in (count, index) and index >= count:
        raise ConfigError(
            f"job.process_id = {index}: must be less than job.num_processes = {count}; "
            "the first process is 0"
        )
    return Processes(address, count, index, known.devices)


def _cluster_knows(launched: Processes | None, variables: Variables) -> bool:
    """Whether JAX can ask the cluster for what the variables do not say."""
    pod = bool(variables.get("KUBERNETES_SERVICE_HOST"))
    asked = launched is not None and launched.index is None
    return asked or (pod and importlib.util.find_spec("kubernetes") is not None)


def _check_complete(address: str | None, count: int | None, index: int | None) -> None:
    if address is None and count is None:
        raise ConfigError(
            f"this is pod {index} of an indexed Job (JOB_COMPLETION_INDEX), which does not say how "
            "many there are: give --job.coordinator HOST:PORT and --job.num-processes, or install "
            "jax[k8s], with which JAX asks the cluster; --job.num-processes 1 trains alone"
        )
    if address is None:
        raise ConfigError(
            f"{count} processes were started together, and nothing says where process 0 is: name "
            "it with --job.coordinator HOST:PORT"
        )
    if count is None or index is None:
        raise ConfigError(
            f"the coordinator is {address}, but --job.num-processes or --job.process-id is missing"
        )


def _open_mpi(variables: Variables) -> Processes | None:
    count = _number(variables, "OMPI_COMM_WORLD_SIZE", 1)
    if count in (None, 1):
        return None
    needed = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    index, local, here = (_needed(variables, name, "mpirun") for name in needed)
    # For example 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 or ...;tcp6://[fe80::b9b,...]:43370
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
    coordinator = None
    if found:
        host = found[2] or f"[{found[3]}]"
        coordinator = _at(host, int(found[1]) // 4096, variables)
    return Processes(coordinator, count, index, _local_devices(local, here, variables))


def _slurm(variables: Variables) -> Processes | None:
    """The tasks of an srun; a shell within an allocation is a step of one task, or none."""
    count = _number(variables, "SLURM_STEP_NUM_TASKS", 1)
    if count in (None, 1):
        return None
    needed = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID")
    index, local, job = (_needed(variables, name, "srun") for name in needed)
    # Whole names and ranges of them: node[001-004,007],rack[1-2]node[5-6],host2
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    host = re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[0]) if first else None
    return Processes(
        host and _at(host, job, variables),
        count,
        index,
        _local_devices(local, _slurm_tasks_here(variables), variables),
    )


def _slurm_tasks_here(variables: Variables) -> int | None:
    """How many tasks of the step run on this node: SLURM writes 4(x2),3 for 4, 4 and 3."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = _number(variables, "SLURM_NODEID", 0) or 0
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    tasks = [int(size) for size, times in groups for _ in range(int(times or 1))]
    return tasks[node] if node < len(tasks) else None


def _tpu_pod(variables: Variables) -> Processes | None:
    """The hosts of one slice, or of several (Megascale)."""
    named = variables.get("TPU_PROCESS_ADDRESSES") or variables.get("TPU_WORKER_HOSTNAMES", "")
    workers = [worker.strip() for worker in named.split(",") if worker.strip()]
    slices = _number(variables, "MEGASCALE_NUM_SLICES", 1) or 1
    if max(len(workers), 1) * slices == 1:
        return None
    if not workers:  # Google's metadata server knows them
        return Processes(None, None, None)
    older = "CLOUD_TPU_TASK_ID" in variables and "TPU_WORKER_ID" not in variables
    name = "CLOUD_TPU_TASK_ID" if older else "TPU_WORKER_ID"
    worker = _needed(variables, name, "the TPU pod")
    which = _needed(variables, "MEGASCALE_SLICE_ID", "the TPU pod") if slices > 1 else 0
    host = (variables.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0]).split(":")[0]
    coordinator = f"{host}:{variables.get('JAX_COORDINATOR_PORT') or 8482}"
    return Processes(coordinator, len(workers) * slices, which * len(workers) + worker)


def _kubernetes(variables: Variables) -> Processes | None:
    """A pod of an indexed Job (those of a JobSet are), of which only the cluster knows the size."""
    index = _number(variables, "JOB_COMPLETION_INDEX", 0)
    if index is None or not variables.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Processes(None, None, index)


def _local_devices(local: int, here: int | None, variables: Variables) -> tuple[int, ...] | None:
    """The GPUs of one of several processes on a node: as many as each of the others has."""
    given = variables.get("JAX_LOCAL_DEVICE_IDS") or variables.get("JAX_PLATFORMS") == "cpu"
    if given or here == 1:
        return None
    visible = _visible_gpus(variables)
    if visible is None or here is None:
        return (local,)
    if visible <= 1:  # the launcher shows each process its own
        return None
    if visible % here:
        raise ConfigError(
            f"{here} processes on this node cannot share {visible} GPUs evenly: start one for "
            "each GPU, or one for all of them"
        )
    share = visible // here
    return tuple(range(local * share, (local + 1) * share))


def _visible_gpus(variables: Variables) -> int | None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in variables:
            return len([part for part in variables[name].split(",") if part.strip()])
    return _number(variables, "SLURM_GPUS_ON_NODE", 0)


def _refuse_other_launchers(variables: Variables) -> None:
    for size, rank in _OTHER_LAUNCHERS.items():
        if rank in variables and (_number(variables, size, 1) or 1) > 1:
            raise ConfigError(
                f"{size} = {variables[size]}: these processes would each train alone; connect "
                f"them with --job.coordinator HOST:PORT --job.num-processes {variables[size]} "
                f"--job.process-id {variables[rank]}, or let this one be alone with "
                "--job.num-processes 1"
            )


def _given(
    option: int | None, field: str, variables: Variables, variable: str, least: int
) -> int | None:
    if option is None:
        return _number(variables, variable, least)
    _check(field, option, least)
    return option


def _needed(variables: Variables, name: str, launcher: str) -> int:
    value = _number(variables, name, 0)
    if value is None:
        raise ConfigError(
            f"{launcher} started several processes, but {name} is not set: give --job.coordinator "
            "HOST:PORT, --job.num-processes and --job.process-id, or let this process train alone "
            "with --job.num-processes 1"
        )
    return value


def _number(variables: Variables, name: str, least: int = 0) -> int | None:
    """The value of a variable; None where it is not set or empty."""
    text = variables.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ConfigError(f"{name} = {text[:80]!r}: must be an integer")
    _check(name, int(text), least)
    return int(text)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} = {value}: must be at least {least}")


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    whole = host and (":" not in host or re.fullmatch(r"\[.*\]", host)) and port.isdecimal()
    if not (whole and 1 <= int(port) <= 65535):
        raise ConfigError(
            f"job.coordinator = {address!r}: must be HOST:PORT with a port from 1 to 65535, as "
            "in 10.0.0.1:1234 or [fe80::1]:1234"
        )


def _at(host: str, job: int, variables: Variables) -> str:
    """An address with a port that jobs beside this one hardly have (JAX's own rule)."""
    last = 65535
    return f"{host}:{variables.get('JAX_COORDINATOR_PORT') or last - 4095 + job % 4096}"
