"""Which of a node's GPUs belong to one of several processes on it."""

from pathlib import Path

from jaxformer.distributed.launchers.base import Variables, number
from jaxformer.errors import ConfigError

_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DEVICE_FILES = Path("/dev")


def local_gpus(local: int, here: int | None, variables: Variables) -> tuple[int, ...] | None:
    """Returns the GPUs of one of the processes on a node, each of which has as many."""
    given = variables.get("JAX_LOCAL_DEVICE_IDS") or variables.get("JAX_PLATFORMS") == "cpu"
    if given or here == 1:
        return None
    visible = _visible(variables)
    if visible is None or here is None:  # as JAX has it: a process for each GPU
        return (local,)
    if visible <= 1 or _are_its_own(visible, variables):
        return None
    share = number(variables, "SLURM_GPUS_PER_TASK", 1) or visible // here
    if visible % here or share * here > visible:
        raise ConfigError(
            f"{here} processes on this node cannot share {visible} GPUs evenly: start one for "
            "each GPU, or one for all of them"
        )
    return tuple(range(local * share, (local + 1) * share))


def _are_its_own(visible: int, variables: Variables) -> bool:
    """Whether srun bound GPUs to the task: it sees its share, not all that the node has."""
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    per_task = number(variables, "SLURM_GPUS_PER_TASK", 1)
    return visible == per_task or (on_node is not None and visible < on_node)


def _visible(variables: Variables) -> int | None:
    """How many GPUs this process sees; None: not known."""
    for name in _MASKS:
        if name in variables:
            return len([part for part in variables[name].split(",") if part.strip()])
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    if on_node is not None:
        return on_node
    return len(list(_DEVICE_FILES.glob("nvidia[0-9]*"))) or None
