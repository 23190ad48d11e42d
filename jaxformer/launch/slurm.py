"""Scripts for SLURM's sbatch."""

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from jaxformer.checks import check_argument
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ArgumentError
from jaxformer.launch.job import STOPPED, Job, check_nodes, check_plain, shell_lines

_UNITS = ("days", "hours", "minutes", "seconds")
_TIMES = (
    r"(?P<minutes>\d+)",
    r"(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
)


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Nodes of a SLURM cluster."""

    nodes: int | None = None
    """Number of nodes of the job."""
    gpus_per_node: int | None = None
    """GPUs per node (default: 8, or according to --chips)."""
    chips: str | None = None
    """GPUs instead of nodes, as for `plan`: h100:64."""
    tasks: Literal["node", "gpu"] = "node"
    """Start one process per node or per GPU."""
    time: str = "24:00:00"
    """The time limit in SLURM's notation: MINUTES, HH:MM:SS or DAYS-HH:MM:SS."""
    save_before: int = 300
    """Seconds before the time limit when the run saves, exits and is requeued."""
    partition: str | None = None
    """The partition."""
    account: str | None = None
    """The account to charge."""
    qos: str | None = None
    """The quality of service."""
    cpus_per_task: int | None = None
    """CPU cores per process (default: all processes can use all cores of the node)."""
    container: str | None = None
    """A container image for pyxis (srun --container-image), with jaxformer installed."""
    mounts: tuple[str, ...] = ()
    """Folders to mount in the container: SOURCE or SOURCE:TARGET."""
    setup: tuple[str, ...] = ()
    """Lines of bash to execute before the run: "source .venv/bin/activate"."""
    log: str = "%x-%j.log"
    """The output file, in an existing folder."""
    sbatch: tuple[str, ...] = ()
    """Further sbatch options: "--constraint=ib"."""

    def __post_init__(self):
        limit = seconds(self.time)
        check_argument(
            "save-before", self.save_before, 0 < self.save_before < min(limit, 65536),
            f"seconds above 0, below the time limit of {limit} and at most 65535",
        )  # fmt: skip
        for name in ("nodes", "gpus_per_node", "cpus_per_task"):
            value = getattr(self, name)
            least = 0 if name == "gpus_per_node" else 1
            check_argument(
                name.replace("_", "-"), value, value is None or value >= least,
                f"an integer of at least {least}",
            )  # fmt: skip
        for name in ("setup", "container", "mounts"):
            value = getattr(self, name) or ""
            check_argument(name, value, "\n" not in "".join(value), "without line breaks")
        for option in self.sbatch:
            valid = re.fullmatch(r"--[a-z][a-z-]*(=\S+)?", option) is not None
            check_argument("sbatch", option, valid, "an option such as --constraint=ib")
        words = {name: getattr(self, name) for name in ("partition", "account", "qos", "log")}
        check_plain(**words)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of nodes, and of GPUs per node.

        Raises:
            ArgumentError: The nodes are given twice or not at all, or the chips are not GPUs.
        """
        if self.chips is None:
            if self.nodes is None:
                raise ArgumentError("nodes: must be given, or --chips, as in --chips h100:64")
            return self.nodes, 8 if self.gpus_per_node is None else self.gpus_per_node
        slices = parse_chips(self.chips)
        if slices.chip.kind != "gpu":
            raise ArgumentError(
                f"chips = {self.chips!r}: must be GPUs for SLURM; TPUs are launched with "
                "`launch jobset` or `launch tpu-vm`"
            )
        check_nodes(self.nodes, slices)
        each = slices.chips // slices.hosts
        if self.gpus_per_node not in (None, each):
            raise ArgumentError(
                f"gpus-per-node = {self.gpus_per_node}: must be {each}, as on the machines of "
                f"{slices.name}; leave it out"
            )
        return slices.hosts, each


def seconds(time: str) -> int:
    """Parses a time limit in SLURM's notation into seconds."""
    found = next((each for form in _TIMES if (each := re.fullmatch(form, time))), None)
    given = found.groupdict() if found else {}
    days, hours, minutes, rest = (int(given.get(unit) or 0) for unit in _UNITS)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    check_argument("time", time, total > 0, "a time such as 90 (minutes), 12:00:00 or 2-00:00:00")
    return total


def slurm_script(job: Job, cluster: Slurm) -> str:
    """Returns a script for `sbatch`.

    Before the time limit or on preemption, the run receives SIGTERM, saves and exits with a special
    status, upon which the script requeues the job.

    Args:
        job: The run.
        cluster: The nodes.

    Returns:
        The script.

    Raises:
        ArgumentError: The nodes are invalid.
    """
    nodes, gpus = cluster.shape
    if cluster.tasks == "gpu" and gpus == 0:
        raise ArgumentError("tasks = 'gpu': must be 'node', for nodes without GPUs")
    tasks = gpus if cluster.tasks == "gpu" else 1
    directives = {
        "job-name": job.name,
        "nodes": nodes,
        "ntasks-per-node": tasks,
        "gpus-per-node": gpus or None,
        "cpus-per-task": cluster.cpus_per_task,
        "time": cluster.time,
        "signal": f"TERM@{cluster.save_before}",
        "output": cluster.log,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value is not None]
    flags = ("--exclusive", "--mem=0", "--requeue", "--open-mode=append", *cluster.sbatch)
    lines += [f"#SBATCH {flag}" for flag in flags]
    # Processes exit when one is lost; the first to exit must not kill others that are still saving.
    # Without --cpu-bind a per-node process may get only one core.
    srun = ["srun", "--kill-on-bad-exit=0", "--cpu-bind=none"]
    if cluster.cpus_per_task is not None:
        srun.append(f"--cpus-per-task={cluster.cpus_per_task}")  # srun does not inherit it
    if cluster.container is not None:
        srun.append(f"--container-image={cluster.container}")
        if cluster.mounts:
            srun.append(f"--container-mounts={','.join(cluster.mounts)}")
    variables = job.variables("gpu" if gpus > 0 else "cpu")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return _SCRIPT.format(
        directives="\n".join(lines),
        setup="".join(f"{line}\n" for line in (*cluster.setup, *exports)),
        command=f"{shell_lines(srun)} \\\n    {shell_lines(job.command, ' ' * 8)}",
        stopped=STOPPED,
    )


_SCRIPT = """\
#!/bin/bash
{directives}

# Requires Python 3.11 or later with `pip install '.[pod-gpu]'` (without GPUs '.[all,gcs,s3]').
# Submit: sbatch THIS_FILE   Watch: squeue --me   Cancel: scancel JOB
# The same script, submitted again, continues the run from its last checkpoint.
set -u
{setup}
{command}
status=$?

# The run was stopped (time limit, preemption) and has saved: requeue it.
if [ "$status" -eq {stopped} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
