"""Launchers of several processes, and the environment variables that they set."""

from jaxformer.distributed.launchers.base import Launcher, Processes
from jaxformer.distributed.launchers.kubernetes import IndexedJob, JaxJob
from jaxformer.distributed.launchers.open_mpi import OpenMpi
from jaxformer.distributed.launchers.slurm import Slurm
from jaxformer.distributed.launchers.tpu import CloudTpuVm, TpuPod

__all__ = ["LAUNCHERS", "Launcher", "Processes"]

# mpirun within a SLURM allocation starts its daemons with srun, and a TPU pod of GKE is an indexed
# Job, so the launcher that started the processes directly comes first.
LAUNCHERS = (OpenMpi(), Slurm(), TpuPod(), JaxJob(), IndexedJob(), CloudTpuVm())
"""The known launchers, in the order of detection."""
