"""The choice of a run's checkpoint: the one asked for, or the newest that is whole.

Everything that opens a run uses it, so that training, evaluation, generation and export agree.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.checkpoints import files, manifest
from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.checkpoints.run_dir import CHECKPOINTS, CONFIG_FILE, RunConfig
from jaxformer.config.experiment import Config, changed_fields
from jaxformer.errors import ConfigError

_log = logging.getLogger(__name__)


def newest_whole(folder: Path, on_damage: Callable[[Path, str], None]) -> int | None:
    """Finds the newest checkpoint of which every byte is what was saved.

    In a job of several processes all of them call this together: each reads a share of the files,
    and all get the same answer.

    Args:
        folder: The checkpoints.
        on_damage: Called, by the first process, with each damaged one and what is wrong with it.

    Returns:
        The step, or None where no checkpoint is whole.
    """
    steps = files.saved_steps(folder) if jax.process_index() == 0 else []
    while (step := _of_first_process(steps.pop() if steps else -1)) >= 0:
        if (problem := _damage(folder / str(step))) is None:
            return step
        if jax.process_index() == 0:
            on_damage(folder / str(step), problem)
    return None


def chosen_step(run: Path, step: int | None = None) -> int:
    """Returns the step of a whole checkpoint of a run; warns of damaged ones that it passes over.

    Args:
        run: The run's folder.
        step: The wanted one; None: the newest.

    Raises:
        ConfigError: The run has saved no checkpoint yet, or the wanted one is not there or damaged.
        CheckpointError: All of them are damaged.
    """
    folder = run / CHECKPOINTS
    if step is None:
        found = newest_whole(folder, _warn)
        if found is not None:
            return found
        if files.saved_steps(folder) or files.damaged_ones(folder):
            raise CheckpointError(f"Every checkpoint in {folder} is damaged: none can be read")
        raise ConfigError(f"{run} holds no whole checkpoint: the run has saved none yet")
    steps = files.saved_steps(folder)
    if step not in steps:
        held = ", ".join(map(str, steps)) or "none"
        raise ConfigError(f"--step {step}: there is none; {folder} holds {held}")
    if problem := _damage(folder / str(step)):
        raise ConfigError(
            f"--step {step}: it is damaged ({problem}); without --step, the newest whole "
            f"checkpoint in {folder} is read"
        )
    return step


def saved_config(run: RunConfig, step: int) -> Config:
    """The configuration that a checkpoint was saved with.

    Args:
        run: The configuration in the run's folder.
        step: The step of a whole checkpoint.

    Returns:
        The checkpoint's configuration.

    Raises:
        ConfigError: The run's config.json says something else, so one of the two was changed.
    """
    saved = run.build(manifest.read_item(run.folder / CHECKPOINTS / str(step), "config"))
    if changes := changed_fields(saved, run.config):
        listed = "; ".join(
            f"{name} was {old!r}, is {new!r}" for name, (old, new) in changes.items()
        )
        raise ConfigError(
            f"{run.folder / CONFIG_FILE} is not what the checkpoint of step {step} was saved with: "
            f"{listed}. Put back what was there"
        )
    return saved


def _warn(step_folder: Path, problem: str) -> None:
    _log.warning("Passing over the damaged checkpoint %s (%s).", step_folder, problem)


def _damage(step_folder: Path) -> str | None:
    """The damage of a checkpoint, found by all processes together; None if it is whole."""
    problem = manifest.damage(step_folder, jax.process_index(), jax.process_count())
    if jax.process_count() == 1:
        return problem
    words = np.frombuffer((problem or "").encode()[:200].ljust(200), np.uint8)
    rows = multihost_utils.process_allgather(words)
    told = (row.tobytes().decode(errors="ignore").strip() for row in rows)
    return next((text for text in told if text), None)


def _of_first_process(step: int) -> int:
    if jax.process_count() == 1:
        return step
    return int(multihost_utils.broadcast_one_to_all(np.asarray(step, np.int32)))
