"""Files that start a run on a cluster: SLURM scripts, JobSet manifests, TPU VM commands."""

from jaxformer.launch.job import Job
from jaxformer.launch.jobset import JobSet, jobset_manifest
from jaxformer.launch.slurm import Slurm, slurm_script
from jaxformer.launch.tpu_vm import TpuVm, tpu_vm_script

__all__ = ["Job", "JobSet", "Slurm", "TpuVm", "jobset_manifest", "slurm_script", "tpu_vm_script"]
