"""The choice of a run's checkpoint: the one asked for, the best, or the newest that is whole.

Everything that opens a run uses it, so that training, evaluation, generation and export agree.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.checkpoints import files, manifest
from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.checkpoints.run_data import kept_digests
from jaxformer.checkpoints.run_dir import CHECKPOINTS, CONFIG_FILE, RunConfig, other_fields
from jaxformer.config.experiment import Config
from jaxformer.config.metric import cost
from jaxformer.errors import ConfigError
from jaxformer.io.paths import AnyPath, run_path

_TRIES = 5
_Read = TypeVar("_Read")
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
        # What the run has deleted while it was read here is not damaged.
        if jax.process_index() == 0 and step in files.saved_steps(folder):
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
    run = run_path(run, "run_dir")
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
    problem = _damage(folder / str(step)) if step in steps else None
    if step not in files.saved_steps(folder):
        raise ConfigError(f"{asked}: there is none; {folder} holds {held}")
    if problem:
        raise ConfigError(
            f"{asked}: it is damaged ({problem}); without {asked.split()[0]}, the newest whole "
            f"checkpoint in {folder} is read"
        )
    return step


def read_steadily(run: AnyPath, read: Callable[[], _Read]) -> _Read:
    """Calls what chooses and reads a checkpoint; again where it failed because the run goes on.

    Args:
        run: The run's folder.
        read: Chooses a checkpoint and reads it.

    Returns:
        What it returns.
    """
    for _ in range(_TRIES):
        before = files.saved_steps(run / CHECKPOINTS)
        try:
            return read()
        except Exception:
            # Several processes choose together, and would have to fail together.
            if jax.process_count() > 1 or files.saved_steps(run / CHECKPOINTS) == before:
                raise
    return read()


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
    folder = run_path(folder, "run_dir")
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
    except (FileNotFoundError, ValueError, KeyError):
        return {}


def saved_config(run: RunConfig, step: int) -> Config:
    """The configuration that a checkpoint was saved with, once it is known to be one of its run.

    Args:
        run: The configuration in the run's folder.
        step: The step of a whole checkpoint.

    Returns:
        The checkpoint's configuration.

    Raises:
        ConfigError: The checkpoint is of another step or run, or the run's config.json, tokenizer
            or labels were changed since.
    """
    home = run.folder / CHECKPOINTS / str(step)
    meta = manifest.read_item(home, "meta")
    if meta["step"] != step:
        raise ConfigError(
            f"{home} is the checkpoint of step {meta['step']}, which was copied or renamed: move "
            "it out of the run, or give it its own name back"
        )
    saved = run.build(manifest.read_item(home, "config"))
    if changes := other_fields(saved, run.config, step):
        listed = "; ".join(
            f"{name} was {old!r}, is {new!r}" for name, (old, new) in changes.items()
        )
        raise ConfigError(
            f"{run.folder / CONFIG_FILE} is not what the checkpoint of step {step} was saved with: "
            f"{listed}. Put back what was there, or move {home} out of the run if it is another's"
        )
    there = meta.get("kept", {})  # older versions kept no digests of these
    now = kept_digests(run.folder) if there else {}
    if others := [name for name, digest in there.items() if now.get(name) != digest]:
        raise ConfigError(
            f"{run.folder / others[0]} is not what the checkpoint of step {step} was saved with, "
            "so its numbers would mean other tokens or labels. Put back the file that was there, "
            f"or move {home} out of the run if it is another's"
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
