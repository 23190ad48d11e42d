"""Launchers of several processes, and the environment variables that they set."""

from jaxformer.distributed.launchers.base import Launcher, Processes
from jaxformer.distributed.launchers.kubernetes import indexed_job, jax_job
from jaxformer.distributed.launchers.tasks import mpirun, srun
from jaxformer.distributed.launchers.tpu import cloud_tpu_vm, tpu_pod

__all__ = ["LAUNCHERS", "Launcher", "Processes"]

# mpirun within a SLURM allocation starts its daemons with srun, and a TPU pod of GKE is an indexed
# Job, so the launcher that started the processes directly comes first.
LAUNCHERS = (mpirun, srun, tpu_pod, jax_job, indexed_job, cloud_tpu_vm)
"""The known launchers, in the order of detection."""
