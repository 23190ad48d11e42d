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
    """Nodes of the job."""
    gpus_per_node: int | None = None
    """GPUs of each node (default: 8, or what the machines of --chips have)."""
    chips: str | None = None
    """GPUs in place of nodes, as `plan` takes them: h100:64."""
    tasks: Literal["node", "gpu"] = "node"
    """A process for each node, or for each GPU."""
    time: str = "24:00:00"
    """The time limit as SLURM writes it: MINUTES, HH:MM:SS or DAYS-HH:MM:SS."""
    save_before: int = 300
    """Seconds before the time limit at which the run saves, ends and is queued again."""
    partition: str | None = None
    """The partition."""
    account: str | None = None
    """The account that is charged."""
    qos: str | None = None
    """The quality of service."""
    cpus_per_task: int | None = None
    """CPU cores of each process (default: all of the node are open to all)."""
    container: str | None = None
    """An image that pyxis runs (srun --container-image); its Python has jaxformer."""
    mounts: tuple[str, ...] = ()
    """Folders of the node in the container: SOURCE or SOURCE:TARGET."""
    setup: tuple[str, ...] = ()
    """Lines of bash before the run: "source .venv/bin/activate"."""
    log: str = "%x-%j.log"
    """The file of the output; sbatch makes no folder for it."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch: "--constraint=ib"."""

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
        """The number of nodes, and of GPUs of each.

        Raises:
            ArgumentError: It is given twice or not at all, or the chips are not GPUs.
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
                f"gpus-per-node = {self.gpus_per_node}: must be {each}, as the machines of "
                f"{slices.name} have; leave it out"
            )
        return slices.hosts, each


def seconds(time: str) -> int:
    """Returns the seconds of a time limit in one of SLURM's forms."""
    found = next((each for form in _TIMES if (each := re.fullmatch(form, time))), None)
    given = found.groupdict() if found else {}
    days, hours, minutes, rest = (int(given.get(unit) or 0) for unit in _UNITS)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + rest
    check_argument("time", time, total > 0, "a time such as 90 (minutes), 12:00:00 or 2-00:00:00")
    return total


def slurm_script(job: Job, cluster: Slurm) -> str:
    """Writes the script that `sbatch` takes.

    The run gets SIGTERM before the time limit, saves and ends with a special exit status, for which
    the script puts the job back into the queue; so it does after a preemption.

    Args:
        job: The run.
        cluster: The nodes.

    Returns:
        The script.

    Raises:
        ArgumentError: The nodes cannot be.
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
    # Processes end by themselves when one is lost; one that ends first must not kill those that
    # still save. Without --cpu-bind a process for a node may get one core.
    srun = ["srun", "--kill-on-bad-exit=0", "--cpu-bind=none"]
    if cluster.cpus_per_task is not None:
        srun.append(f"--cpus-per-task={cluster.cpus_per_task}")  # srun does not take it over
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

# Its Python, 3.11 or later, has `pip install '.[pod-gpu]'` (without GPUs '.[all,gcs,s3]').
# Submit: sbatch THIS_FILE   Watch: squeue --me   End for good: scancel JOB
# The same script, submitted again, continues the run from its last checkpoint.
set -u
{setup}
{command}
status=$?

# The run was told to stop (time limit, preemption) and has saved: it goes on in the queue.
if [ "$status" -eq {stopped} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
