"""The folder of checkpoints on disk: steps, retention, leftovers.

A step is a folder named by its number. Orbax writes it under a temporary name and renames it when
every byte is on disk, so a folder with a plain number was complete once. Whether it still is, its
manifest says (``manifest.py``).

In an object store nothing can be renamed. There orbax writes a step under its own number, and at
last the object ``commit_success.txt``: a number without it is no checkpoint. Whatever ends a
checkpoint deletes that object first.
"""

import json
import logging
import re
import shutil
import threading
from collections.abc import Mapping
from typing import Any

from jaxformer.errors import StorageError
from jaxformer.io.files import replacing
from jaxformer.io.paths import AnyPath, is_remote

_TEMPORARY = ".orbax-checkpoint-tmp"
COMMIT_FILE = "commit_success.txt"
"""The object that completes a checkpoint in an object store."""
_DELETING = ".deleting"
_DAMAGED = ".damaged"
# A step as it is written, within an optimizer's int32: nothing else with digits is a checkpoint.
_STEP = re.compile(r"0|[1-9][0-9]{0,8}")

_log = logging.getLogger(__name__)


def saved_steps(folder: AnyPath) -> list[int]:
    """Returns the steps that were saved in ``folder``, ascending, damaged ones included."""
    if not folder.is_dir():
        return []
    begun = [item for item in folder.iterdir() if _STEP.fullmatch(item.name)]
    return sorted(int(item.name) for item in begun if _is_committed(item))


def _is_committed(step_folder: AnyPath) -> bool:
    if is_remote(step_folder):
        return (step_folder / COMMIT_FILE).is_file()
    return step_folder.is_dir()


def unfinished_step(folder: AnyPath, step: int) -> AnyPath:
    """Returns where the files of a step lie until it is complete."""
    if is_remote(folder):
        return folder / str(step)
    (unfinished,) = folder.glob(f"{step}{_TEMPORARY}*")
    return unfinished


def set_aside(step_folder: AnyPath) -> AnyPath:
    """Renames a damaged checkpoint so that it is neither used again nor lost."""
    target = step_folder.with_name(step_folder.name + _DAMAGED)
    number = 1
    while target.exists():
        number += 1
        target = step_folder.with_name(f"{step_folder.name}{_DAMAGED}-{number}")
    if is_remote(step_folder):
        return step_folder.rename(target, first=COMMIT_FILE)
    return step_folder.rename(target)


def steps_to_keep(costs: Mapping[int, float | None], keep: int) -> set[int]:
    """Chooses the checkpoints that stay.

    Args:
        costs: Of each step held, what the best has the least of; None where it was not measured.
        keep: How many of the newest stay.

    Returns:
        The ``keep`` newest steps and the one with the lowest cost (the first of equals).
    """
    best = best_step(costs)
    return set(sorted(costs)[-keep:]) | ({best} if best is not None else set())


def best_step(costs: Mapping[int, float | None]) -> int | None:
    """Returns the step with the lowest cost, or None where none was measured."""
    measured = [(cost, step) for step, cost in costs.items() if cost is not None]
    return min(measured)[1] if measured else None


def damaged_ones(folder: AnyPath) -> list[AnyPath]:
    """Returns the checkpoints that were set aside."""
    return sorted(folder.glob(f"*{_DAMAGED}*")) if folder.is_dir() else []


def validation_of(meta: Mapping[str, Any]) -> dict[str, float]:
    """Returns what was measured at the step of a ``meta`` item, by the name of the metric."""
    if "validation" in meta:
        return meta["validation"]
    loss = meta["validation_loss"]  # format 1 had the loss alone
    return {} if loss is None else {"loss": loss}


def delete_step(step_folder: AnyPath) -> threading.Thread:
    """Deletes in the background; a process killed meanwhile leaves nothing like a checkpoint."""
    if is_remote(step_folder):
        (step_folder / COMMIT_FILE).unlink(missing_ok=True)
        thread = threading.Thread(target=_remove_objects, args=(step_folder,))
    else:
        doomed = step_folder.rename(step_folder.with_name(step_folder.name + _DELETING))
        thread = threading.Thread(target=shutil.rmtree, args=(doomed, True))
    thread.start()
    return thread


def _remove_objects(step_folder: AnyPath) -> None:
    try:
        step_folder.rmtree()
    except StorageError as error:  # the next start removes what is left
        _log.warning("%s could not be deleted: %s", step_folder, error)


def remove_leftovers(folder: AnyPath) -> None:
    """Removes what a killed process left half-written or half-deleted."""
    if is_remote(folder):
        for item in folder.iterdir() if folder.is_dir() else ():
            if _STEP.fullmatch(item.name) and not _is_committed(item):
                item.rmtree()
        return
    for item in folder.iterdir():
        if _TEMPORARY in item.name or item.name.endswith(_DELETING):
            shutil.rmtree(item, ignore_errors=True)


def write_json(path: AnyPath, data: object) -> None:
    """Writes a JSON file that is never seen half-written."""
    with replacing(path) as aside:
        aside.write_text(json.dumps(data, indent=1) + "\n")
