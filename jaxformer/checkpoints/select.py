"""The choice of a run's checkpoint: the one asked for, the best, or the newest that is whole.

Everything that opens a run uses it, so that training, evaluation, generation and export agree.
"""

import logging
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.checkpoints import files, manifest
from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.checkpoints.run_dir import CHECKPOINTS, CONFIG_FILE, RunConfig
from jaxformer.config.experiment import Config, changed_fields
from jaxformer.config.metric import cost
from jaxformer.errors import ConfigError
from jaxformer.io.paths import AnyPath, any_path

_log = logging.getLogger(__name__)


def newest_whole(folder: AnyPath, on_damage: Callable[[AnyPath, str], None]) -> int | None:
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


def chosen_step(run: AnyPath, step: int | None = None, best: bool = False) -> int:
    """Returns the step of a whole checkpoint of a run; warns of damaged ones that it passes over.

    Args:
        run: The run's folder.
        step: The wanted one; None: the newest, or the best.
        best: Whether the one with the best value of `train.metric` is wanted.

    Raises:
        ConfigError: The run has saved no checkpoint yet, the wanted one is not there or damaged,
            both a step and the best are wanted, or none was measured.
        CheckpointError: All of them are damaged.
    """
    run = any_path(run, "run_dir")
    folder = run / CHECKPOINTS
    if best and step is not None:
        raise ConfigError(f"--step {step} with --best: must be one of the two; leave one out")
    if step is None and not best:
        found = newest_whole(folder, _warn)
        if found is not None:
            return found
        if files.saved_steps(folder) or files.damaged_ones(folder):
            raise CheckpointError(f"Every checkpoint in {folder} is damaged: none can be read")
        raise ConfigError(f"{run} holds no whole checkpoint: the run has saved none yet")
    steps = files.saved_steps(folder)
    held = ", ".join(map(str, steps)) or "none"
    asked = "--best" if best else f"--step {step}"
    if best and (step := best_step(run)) is None:
        raise ConfigError(
            f"--best: no checkpoint in {folder} was measured by train.metric; name one with "
            f"--step, of {held}"
        )
    if step not in steps:
        raise ConfigError(f"{asked}: there is none; {folder} holds {held}")
    if problem := _damage(folder / str(step)):
        raise ConfigError(
            f"{asked}: it is damaged ({problem}); without {asked.split()[0]}, the newest whole "
            f"checkpoint in {folder} is read"
        )
    return step


def run_and_step(
    folder: AnyPath, step: int | None = None, best: bool = False
) -> tuple[AnyPath, int | None]:
    """Splits RUN/checkpoints/300 into the run and the step; a run's folder stays as it is.

    Args:
        folder: The folder of a run, or of one of its checkpoints.
        step: The step that is asked for besides, if any.
        best: Whether the best step is asked for.

    Returns:
        The run's folder, and the step that the folder names, or else `step`.

    Raises:
        ConfigError: The folder names another step than is asked for.
    """
    folder = any_path(folder, "run_dir")
    if not (folder.name.isdecimal() and folder.parent.name == CHECKPOINTS):
        return folder, step
    named = int(folder.name)
    if best or step not in (None, named):
        asked = "--best" if best else f"--step {step}"
        raise ConfigError(f"{asked}: {folder} is a single checkpoint; name {folder.parent.parent}")
    return folder.parent.parent, named


def best_step(run: AnyPath) -> int | None:
    """Returns the step with the best value of the run's `train.metric`, of those it has kept.

    Args:
        run: The run's folder.

    Returns:
        The first of equals; None where none was measured.
    """
    metric, folder = RunConfig(run).config.train.metric, run / CHECKPOINTS
    measured = {step: _validation(folder / str(step)) for step in files.saved_steps(folder)}
    return files.best_step({step: cost(metric, v.get(metric)) for step, v in measured.items()})


def _validation(step_folder: AnyPath) -> dict[str, float]:
    """What was measured at a step; nothing where that cannot be read."""
    try:
        return files.validation_of(manifest.read_item(step_folder, "meta"))
    except (OSError, ValueError, KeyError):
        return {}


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


def _warn(step_folder: AnyPath, problem: str) -> None:
    _log.warning("Passing over the damaged checkpoint %s (%s).", step_folder, problem)


def _damage(step_folder: AnyPath) -> str | None:
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
