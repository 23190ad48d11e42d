"""A script of gcloud commands for Cloud TPU virtual machines."""

import shlex
import textwrap
from dataclasses import dataclass

from jaxformer.checks import check_argument
from jaxformer.distributed.slices import Slice, parse_chips
from jaxformer.errors import ArgumentError
from jaxformer.launch.google import accelerator_type, google_names
from jaxformer.launch.job import STOPPED, Job, check_nodes, check_plain

# The machine images ship Python 3.10, which is too old.
_PYTHON = "3.12"
_ACTIVATE = ". ~/jaxformer-python/bin/activate"
_MAKE_PYTHON = (
    "export PATH=~/.local/bin:$PATH",
    "{ command -v uv > /dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh; }",
    f"{{ [ -x ~/jaxformer-python/bin/python ] || uv venv --seed --python {_PYTHON} "
    "~/jaxformer-python; }",
    _ACTIVATE,
)


@dataclass(frozen=True, kw_only=True)
class TpuVm:
    """TPU virtual machines of Google Cloud, without Kubernetes."""

    chips: str
    """TPU slices, as for `plan`: v6e:16x16, v5p:4x4x4*2 (two slices)."""
    zone: str
    """The zone: us-east5-a."""
    nodes: int | None = None
    """Number of machines, checked against the chips."""
    project: str | None = None
    """The project (default: gcloud's)."""
    runtime: str | None = None
    """The runtime version of the machines (default: the one for the chip)."""
    spot: bool = False
    """Use preemptible machines at a lower price."""
    reservation: str | None = None
    """A reservation."""
    service_account: str | None = None
    """The service account with read and write access to the bucket (default: the project's)."""
    max_restarts: int = 10
    """Maximum restarts after failures; stops by a signal do not count."""
    setup: tuple[str, ...] = ()
    """Lines of bash that install jaxformer on a machine, in an environment with Python 3.12, and
    copy the config.
    """

    def __post_init__(self):
        check_argument("max-restarts", self.max_restarts, self.max_restarts >= 0, "at least 0")
        check_argument(
            "setup", self.setup, bool(self.setup) and "\n" not in "".join(self.setup),
            "lines of bash that install jaxformer, as in --setup 'git clone URL project' \"uv pip "
            "install './project[pod-tpu]'\"",
        )  # fmt: skip
        check_plain(
            zone=self.zone, project=self.project, runtime=self.runtime,
            reservation=self.reservation, service_account=self.service_account,
        )  # fmt: skip


def tpu_vm_script(job: Job, cluster: TpuVm) -> str:
    """Returns a script with a subcommand for each step from creating to deleting the machines.

    Args:
        job: The run.
        cluster: The machines.

    Returns:
        A bash script, to be run on a machine with gcloud.

    Raises:
        ArgumentError: The chips or the folder of the run is invalid.
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
        "a bucket (gs://BUCKET/RUN), or an absolute path that all machines have mounted; local "
        "disks are lost with the machines",
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
        setup=shlex.quote(" && ".join((*_MAKE_PYTHON, *cluster.setup))),
        train=shlex.quote(_train(job, cluster)),
        stop=shlex.quote(
            f'touch ~/{job.name}.stopped; kill -TERM "$(cat ~/{job.name}.pid)" 2> /dev/null || true'
        ),
        status=shlex.quote(f"cat ~/{job.name}.status 2> /dev/null || echo running"),
        log=shlex.quote(f"tail -n 50 -F ~/{job.name}.log"),
    )


def _create(job: Job, cluster: TpuVm, slices: Slice) -> list[str]:
    """Returns the options of the request for machines."""
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


def _train(job: Job, cluster: TpuVm) -> str:
    """Returns the script that a machine runs; it outlives the connection and restarts the run."""
    name = job.name
    variables = job.variables("tpu").items()
    exports = "".join(f"export {each}={shlex.quote(value)}\n" for each, value in variables)
    loop = textwrap.dedent(_LOOP).format(
        name=name, command=shlex.join(job.command), stopped=STOPPED, most=cluster.max_restarts
    )
    return (
        f'if kill -0 "$(cat ~/{name}.loop 2> /dev/null)" 2> /dev/null; then\n'
        f"    echo '{name} is running already'; exit\n"
        f"fi\n"
        f"{exports}{_ACTIVATE} || exit\n"
        f"rm -f ~/{name}.stopped ~/{name}.status\n"
        f"nohup bash -c {shlex.quote(loop)} >> ~/{name}.log 2>&1 < /dev/null &\n"
        f"echo $! > ~/{name}.loop"
    )


_LOOP = """\
    failures=0
    while [ ! -e ~/{name}.stopped ]; do
        {command} &
        echo $! > ~/{name}.pid
        wait $!
        status=$?
        case $status in
        0 | 2) break ;;
        {stopped}) ;;
        *) failures=$((failures + 1)); [ $failures -le {most} ] || break ;;
        esac
        sleep 10
    done
    echo $status > ~/{name}.status
"""
"""Restarts the run until it is complete, stopped by hand, or refused (status 2)."""

_SCRIPT = """\
#!/bin/bash
# {chips} as TPU virtual machines. Usage: bash THIS_FILE STEP, with the steps in this order:
#   create   request the machines         wait    until they are ready
#   setup    install on each machine      start   start the run, or continue it
#   log      follow the first process     stop    save a checkpoint and end the run
#   state    show the request's state     delete  release the machines, which cost until then
#   again    after a preemption: delete, create, wait, setup, start
#   keep     until the run is complete: `again` after each preemption
# A machine restarts a run that ends early; `keep` must stay running on this machine.
set -euo pipefail
name={name}
where=({where})
nodes=({nodes})

state() {{
    gcloud compute tpus queued-resources describe "$name" "${{where[@]}}" \\
        --format='value(state.state)'
}}

ended() {{
    gcloud compute tpus tpu-vm ssh "${{nodes[0]}}" "${{where[@]}}" --worker=0 \\
        --command={status} | tail -n 1 || echo unreachable
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
    keep)
        while true; do
            case "$(state)" in
            ACTIVE)
                local status
                status=$(ended)
                case "$status" in
                0) echo "$name is complete; to release the machines: bash $0 delete"; return ;;
                [0-9]*) echo "$name ended with status $status; why: bash $0 log" >&2; exit 1 ;;
                esac ;;
            FAILED | SUSPEND*) bash "$0" again || echo "trying again in a minute" >&2 ;;
            esac
            sleep 60
        done ;;
    again) for each in delete create wait setup start; do step "$each"; done ;;
    *) echo "error: STEP = '$1': must be one of those at the top of this file" >&2; exit 2 ;;
    esac
}}

step "${{1:-}}"
"""
