"""``jaxformer launch slurm|jobset|tpu-vm CONFIG``: writes a script or manifest that starts a run on
a cluster.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax

from jaxformer.cli.options import split_config
from jaxformer.cli.training.train import Launch
from jaxformer.config.experiment import Config, load_config, validate
from jaxformer.config.options import given, without
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.distributed.chips import GIB
from jaxformer.distributed.slices import Slice, parse_chips
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.launch import Job, JobSet, Slurm, TpuVm, jobset_manifest, slurm_script, tpu_vm_script
from jaxformer.launch.job import default_name, variables
from jaxformer.plan.search import largest_stage
from jaxformer.plan.trace import check

R = TypeVar("R", bound="_Run")

_DESCRIPTION = """\
Writes {what} to the standard output. CONFIG is the same as for `train`. Options of
`train` follow two hyphens and are checked before anything is queued:

  {prog} CONFIG {example} -- --train.steps 1000 > {file}

`{prog} CONFIG --help` lists the options."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Options of a run for all clusters."""

    run_dir: str | None = None
    """The run's folder: a shared folder or a bucket, gs://BUCKET/RUN (default: runs/NAME)."""
    name: str | None = None
    """The name of the job (default: derived from the config)."""
    env: tuple[str, ...] = ()
    """Environment variables of every process: NAME=VALUE."""
    program: str = "python -m jaxformer"
    """The command that starts jaxformer on the cluster."""
    check_memory: bool = True
    """Refuse a run that cannot fit in device memory, according to the closed form of `plan`."""


@dataclass(frozen=True, kw_only=True)
class SlurmRun(Slurm, _Run):
    """Writes a script for sbatch."""


@dataclass(frozen=True, kw_only=True)
class JobSetRun(JobSet, _Run):
    """Writes a manifest for kubectl."""


@dataclass(frozen=True, kw_only=True)
class TpuVmRun(TpuVm, _Run):
    """Writes a script of gcloud commands."""


def slurm(arguments: Sequence[str], prog: str) -> None:
    """Prints a script for sbatch."""
    job, run = _read(SlurmRun, arguments, prog, "a SLURM script", "--nodes 8")
    nodes, gpus = run.shape
    _print(slurm_script(job, run), job, run, prog, nodes * gpus)


def jobset(arguments: Sequence[str], prog: str) -> None:
    """Prints a manifest for kubectl."""
    example = "--chips v5p:4x4x4 --image IMAGE --run-dir gs://BUCKET/RUN"
    job, run = _read(JobSetRun, arguments, prog, "a JobSet", example, "job.yaml")
    _print(jobset_manifest(job, run), job, run, prog, parse_chips(run.chips).num_devices)


def tpu_vm(arguments: Sequence[str], prog: str) -> None:
    """Prints a script of gcloud commands."""
    example = "--chips v6e:16x16 --zone ZONE --run-dir gs://BUCKET/RUN --setup LINE ..."
    job, run = _read(TpuVmRun, arguments, prog, "gcloud commands", example)
    _print(tpu_vm_script(job, run), job, run, prog, parse_chips(run.chips).num_devices)


def _read(
    kind: type[R],
    arguments: Sequence[str],
    prog: str,
    what: str,
    example: str,
    file: str = "job.sh",
) -> tuple[Job, R]:
    """Parses a command line into the job, and the cluster with the options of the run."""
    words = {"what": what, "example": example, "file": file}
    usage = "[OPTION ...] [-- OPTION_OF_TRAIN ...]"
    config, rest = split_config(arguments, prog, _DESCRIPTION, usage, **words)
    split = rest.index("--") if "--" in rest else len(rest)
    own, options = rest[:split], rest[split + 1 :]
    run = parse(kind, own, f"{prog} {config}")
    misplaced = given(options) & {"run_dir", "fresh", "job.stopped_status"}
    if misplaced:
        option = sorted(misplaced)[0].replace("_", "-")
        raise ArgumentError(f"--{option}: must come before the two hyphens, or be left out")
    name = default_name(config) if run.name is None else run.name
    job = Job(
        config=config,
        run_dir=f"runs/{name}" if run.run_dir is None else run.run_dir,
        name=name,
        options=tuple(options),
        environment=variables(run.env),
        program=tuple(run.program.split()),
    )
    return job, run


def _print(
    text: str, job: Job, run: SlurmRun | JobSetRun | TpuVmRun, prog: str, num_devices: int
) -> None:
    """Prints a script or manifest, once the experiment that it starts is checked."""
    _check_experiment(job, run, prog, num_devices)
    sys.stdout.write(text)


def _check_experiment(
    job: Job, run: SlurmRun | JobSetRun | TpuVmRun, prog: str, num_devices: int
) -> None:
    """Checks the config and the training options as the processes will, for their devices.

    Checks that depend on a checkpoint's model, on the data or on CPU cores happen when the run
    starts.
    """
    defaults = Launch(**vars(load_config(config_spec(job.config))))
    options = list(job.options)
    if defaults.model is None and "model" not in given(options):
        parse(defaults, without(options, "model"), prog)
        return
    experiment = parse(defaults, options, prog).experiment
    if num_devices > 0:
        validate(experiment, num_devices)
    if run.chips is not None and run.check_memory and experiment.init_from is None:
        _check_memory(job.config, experiment, parse_chips(run.chips))


def _check_memory(name: str, experiment: Config, slice_: Slice) -> None:
    """Reports how much memory a step needs, and refuses a run that cannot fit."""
    jax.config.update("jax_platforms", "cpu")  # tracing only, without running anything
    check(experiment, slice_)
    (_, memory), usable = largest_stage(experiment, slice_), slice_.chip.memory.value
    needs = f"{memory.peak / GIB:.2f} of {usable / GIB:.2f} GiB on each device of {slice_.name}"
    if memory.cannot_fit(usable):
        raise ConfigError(
            f"{name} needs {needs}: `jaxformer plan {name} --chips {slice_.name}`, with the same "
            "options, shows what needs it and which mesh fits; --no-check-memory writes the file "
            "anyway"
        )
    verdict = memory.verdict(usable)
    print(f"memory: {verdict}: {needs}, estimated without gaps between arrays", file=sys.stderr)
