"""A script of gcloud commands for Cloud TPU virtual machines."""

import shlex
from dataclasses import dataclass

from jaxformer.errors import ArgumentError, check_argument
from jaxformer.launch.google import accelerator_type, google_names
from jaxformer.launch.job import Job, check_nodes, check_words
from jaxformer.plan.slices import Slice, parse_chips


@dataclass(frozen=True, kw_only=True)
class TpuVm:
    """TPU virtual machines of Google Cloud, without Kubernetes."""

    chips: str
    """TPU slices as `plan` takes them: v6e:16x16, v5p:4x4x4*2 (two slices)."""
    zone: str
    """The zone: us-east5-a."""
    nodes: int | None = None
    """Machines, to be checked against the chips."""
    project: str | None = None
    """The project (default: gcloud's)."""
    runtime: str | None = None
    """The software version of the machines (default: the one for the chip)."""
    spot: bool = False
    """Machines that may be taken away at any time, at a lower price."""
    reservation: str | None = None
    """A reservation."""
    service_account: str | None = None
    """The service account that may read and write the bucket (default: the project's)."""
    setup: tuple[str, ...] = ()
    """Lines of bash that install jaxformer on a machine, and bring the config."""

    def __post_init__(self):
        check_argument(
            "setup", self.setup, bool(self.setup) and "\n" not in "".join(self.setup),
            "lines of bash that install jaxformer, as in --setup 'git clone URL project' 'pip "
            "install ./project[all,tpu]'",
        )  # fmt: skip
        check_words(
            zone=self.zone, project=self.project, runtime=self.runtime,
            reservation=self.reservation, service_account=self.service_account,
        )  # fmt: skip


def tpu_vm_script(job: Job, cluster: TpuVm) -> str:
    """Writes a script with a word for each step from the machines' creation to their deletion.

    Args:
        job: The run.
        cluster: The machines.

    Returns:
        A script for bash, to be run where gcloud is.

    Raises:
        ArgumentError: The chips or the place of the run cannot be.
    """
    slices = parse_chips(cluster.chips)
    if slices.chip.kind != "tpu":
        raise ArgumentError(
            f"chips = {cluster.chips!r}: must be TPUs; GPUs are launched with `launch slurm` or "
            "`launch jobset`"
        )
    check_nodes(cluster.nodes, slices)
    check_argument(
        "run-dir", job.run_dir, job.is_remote or job.run_dir.startswith("/"),
        "a bucket (gs://BUCKET/RUN), or an absolute path that all machines have mounted; their own "
        "disks are lost with them",
    )  # fmt: skip
    where = [f"--zone={cluster.zone}"]
    if cluster.project is not None:
        where.append(f"--project={cluster.project}")
    nodes = [job.name]
    if slices.num_slices > 1:
        nodes = [f"{job.name}-{index}" for index in range(slices.num_slices)]
    return _SCRIPT.format(
        chips=slices.name,
        name=job.name,
        where=" ".join(where),
        nodes=" ".join(nodes),
        create=" \\\n            ".join(_create(job, cluster, slices)),
        setup=shlex.quote(" && ".join(cluster.setup)),
        train=shlex.quote(_train(job)),
        stop=shlex.quote(f'kill -TERM "$(cat ~/{job.name}.pid)"'),
        log=shlex.quote(f"tail -n 50 -F ~/{job.name}.log"),
    )


def _create(job: Job, cluster: TpuVm, slices: Slice) -> list[str]:
    """The options of the request for machines."""
    options = [f"--accelerator-type={accelerator_type(slices)}"]
    options.append(f"--runtime-version={cluster.runtime or google_names(slices.chip).runtime}")
    if slices.num_slices > 1:
        options += [f"--node-count={slices.num_slices}", f"--node-prefix={job.name}"]
    else:
        options.append(f"--node-id={job.name}")
    if cluster.spot:
        options.append("--spot")
    if cluster.reservation is not None:
        options.append(f"--reservation={cluster.reservation}")
    if cluster.service_account is not None:
        options.append(f"--service-account={cluster.service_account}")
    return options


def _train(job: Job) -> str:
    """What a machine runs: it goes on when the connection ends, and keeps its process id."""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in job.environment)
    command = shlex.join(job.command)
    return (
        f"{exports}nohup {command} >> ~/{job.name}.log 2>&1 < /dev/null & "
        f"echo $! > ~/{job.name}.pid"
    )


_SCRIPT = """\
#!/bin/bash
# {chips} as TPU virtual machines. Usage: bash THIS_FILE STEP, with the steps in this order:
#   create   ask for the machines         wait    until they are there
#   setup    make each machine ready      start   start the run, or continue it
#   log      follow the first process     stop    save a checkpoint and end the run
#   state    of the request               delete  give the machines back: until then they cost
#   again    after a preemption: delete, create, wait, setup, start
set -euo pipefail
name={name}
where=({where})
nodes=({nodes})

state() {{
    gcloud compute tpus queued-resources describe "$name" "${{where[@]}}" \\
        --format='value(state.state)'
}}

on_all() {{
    for node in "${{nodes[@]}}"; do
        gcloud compute tpus tpu-vm ssh "$node" "${{where[@]}}" --worker=all --command="$1" &
    done
    local failed=0
    for job in $(jobs -p); do wait "$job" || failed=1; done
    return "$failed"
}}

step() {{
    case "$1" in
    create)
        gcloud compute tpus queued-resources create "$name" "${{where[@]}}" \\
            {create} ;;
    wait)
        until [ "$(state)" = ACTIVE ]; do
            case "$(state)" in FAILED | SUSPEND*) state; exit 1 ;; esac
            sleep 30
        done ;;
    setup) on_all {setup} ;;
    start) on_all {train} ;;
    log)
        gcloud compute tpus tpu-vm ssh "${{nodes[0]}}" "${{where[@]}}" --worker=0 \\
            --command={log} ;;
    stop) on_all {stop} ;;
    state) state ;;
    delete)
        gcloud compute tpus queued-resources delete "$name" "${{where[@]}}" --force --quiet ;;
    again) for each in delete create wait setup start; do step "$each"; done ;;
    *) echo "error: STEP = '$1': must be one of those at the top of this file" >&2; exit 2 ;;
    esac
}}

step "${{1:-}}"
"""
