"""A run read back to be used: which of its checkpoints, and the parameters in it, on any mesh."""

from pathlib import Path

import jax
import orbax.checkpoint as ocp

from jaxformer.config import Config
from jaxformer.errors import ConfigError
from jaxformer.models import Parameters
from jaxformer.training import checkpoint_files as files
from jaxformer.training.run_folder import CHECKPOINTS
from jaxformer.training.step import TrainProgram


def chosen_step(folder: Path, step: int | None = None) -> int:
    """Returns the step of a whole checkpoint of a run.

    Args:
        folder: The run's.
        step: The wanted one; None: the newest.

    Raises:
        ConfigError: There is no such checkpoint, or it is damaged.
    """
    home = folder / CHECKPOINTS
    damage = {held: files.damage(home / str(held)) for held in files.saved_steps(home)}
    whole = [held for held, problem in damage.items() if problem is None]
    if not whole:
        raise ConfigError(f"{folder} holds no whole checkpoint: the run has saved none yet")
    if step is None:
        return whole[-1]
    if step not in whole:
        problem = f"it is damaged ({damage[step]})" if step in damage else "there is none"
        raise ConfigError(f"--step {step}: {problem}; {home} holds {', '.join(map(str, whole))}")
    return step


def restore_parameters(
    folder: Path, step: int, config: Config, program: TrainProgram
) -> Parameters:
    """Reads the parameters of a checkpoint to the program's mesh, each device its own part.

    Args:
        folder: The run's.
        step: Of the checkpoint.
        config: The run's configuration; the averaged parameters are read where it keeps such.
        program: Says where each parameter shall be.
    """
    prefix = "params/" if config.train.ema_decay is None else "ema/"
    wanted = {
        prefix + name: jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=program.param_shardings[name]
        )
        for name, shape in program.template.shapes.items()
    }
    arguments = {
        name: ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )
        for name, leaf in wanted.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        found = reader.restore(
            (folder / CHECKPOINTS / str(step) / "state").absolute(),
            args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True),
        )
    return {name.removeprefix(prefix): array for name, array in found.items()}
