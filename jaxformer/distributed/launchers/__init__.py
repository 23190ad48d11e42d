"""What starts several processes, and what it tells each of them in the environment."""

from jaxformer.distributed.launchers.base import Launcher, Processes
from jaxformer.distributed.launchers.kubernetes import IndexedJob, JaxJob
from jaxformer.distributed.launchers.open_mpi import OpenMpi
from jaxformer.distributed.launchers.slurm import Slurm
from jaxformer.distributed.launchers.tpu import CloudTpuVm, TpuPod

__all__ = ["LAUNCHERS", "Launcher", "Processes"]

# mpirun within an allocation of SLURM starts its daemons with srun, and a TPU pod of GKE is an
# indexed Job: the one that started the processes themselves comes first.
LAUNCHERS = (OpenMpi(), Slurm(), TpuPod(), JaxJob(), IndexedJob(), CloudTpuVm())
"""The launchers that are known, in the order in which they are asked."""
