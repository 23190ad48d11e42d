"""Assigns the GPUs of a node to its processes."""

from pathlib import Path

from jaxformer.distributed.launchers.base import Variables, number
from jaxformer.errors import ConfigError

_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DEVICE_FILES = Path("/dev")


def local_gpus(local: int, here: int | None, variables: Variables) -> tuple[int, ...] | None:
    """Returns the GPUs of one process on a node, with an equal share for each process."""
    given = variables.get("JAX_LOCAL_DEVICE_IDS") or variables.get("JAX_PLATFORMS") == "cpu"
    if given or here == 1:
        return None
    visible = _visible(variables)
    if visible is None or here is None:  # JAX's default: one process per GPU
        return (local,)
    if visible <= 1 or _are_bound_by_srun(visible, variables):
        return None
    share = number(variables, "SLURM_GPUS_PER_TASK", 1) or visible // here
    if visible % here or share * here > visible:
        raise ConfigError(
            f"{here} processes on this node cannot share {visible} GPUs evenly: start one process "
            "per GPU, or one for all GPUs"
        )
    return tuple(range(local * share, (local + 1) * share))


def _are_bound_by_srun(visible: int, variables: Variables) -> bool:
    """Whether srun bound GPUs to the task, so that it does not see all GPUs of the node."""
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    per_task = number(variables, "SLURM_GPUS_PER_TASK", 1)
    return visible == per_task or (on_node is not None and visible < on_node)


def _visible(variables: Variables) -> int | None:
    """Returns the number of GPUs that this process sees, or None if unknown."""
    for name in _MASKS:
        if name in variables:
            return len([part for part in variables[name].split(",") if part.strip()])
    on_node = number(variables, "SLURM_GPUS_ON_NODE")
    if on_node is not None:
        return on_node
    return len(list(_DEVICE_FILES.glob("nvidia[0-9]*"))) or None
