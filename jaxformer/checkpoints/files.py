"""The folder of checkpoints on disk: steps, retention, leftovers.

Each step is a folder named by its number. Orbax writes it under a temporary name and renames it
once every byte is on disk, so a folder with a plain number was complete when it was written. Its
manifest tells whether it still is (``manifest.py``).

Object stores cannot rename. There orbax writes a step directly under its number and writes the
object ``commit_success.txt`` last: a folder without it is not a checkpoint. Deleting a checkpoint
deletes that object first.
"""

import fcntl
import json
import logging
import os
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from jaxformer.errors import StorageError
from jaxformer.io.files import DAMAGED, damaged_name, remove_folder, write_text
from jaxformer.io.paths import AnyPath, is_remote

_TEMPORARY = ".orbax-checkpoint-tmp"
COMMIT_FILE = "commit_success.txt"
"""The object that marks a checkpoint in an object store as complete."""
_DELETING = ".deleting"
# The folder name of a step, within the range of an optimizer's int32 counter.
_STEP = re.compile(r"0|[1-9][0-9]{0,8}")

_log = logging.getLogger(__name__)


def saved_steps(folder: AnyPath) -> list[int]:
    """Returns the steps saved in ``folder``, ascending, including damaged ones."""
    if not folder.is_dir():
        return []
    begun = [item for item in folder.iterdir() if _STEP.fullmatch(item.name)]
    return sorted(int(item.name) for item in begun if _is_committed(item))


def _is_committed(step_folder: AnyPath) -> bool:
    if is_remote(step_folder):
        return (step_folder / COMMIT_FILE).is_file()
    return step_folder.is_dir()


def unfinished_step(folder: AnyPath, step: int) -> AnyPath:
    """Returns the folder that holds the files of a step until it is complete."""
    if is_remote(folder):
        return folder / str(step)
    (unfinished,) = folder.glob(f"{step}{_TEMPORARY}*")
    return unfinished


def set_aside(step_folder: AnyPath) -> AnyPath:
    """Renames a damaged checkpoint so that it is neither used again nor lost."""
    target = damaged_name(step_folder)
    if is_remote(step_folder):
        return step_folder.rename(target, first=COMMIT_FILE)
    return step_folder.rename(target)


def steps_to_keep(costs: Mapping[int, float | None], keep: int) -> set[int]:
    """Returns the steps of the checkpoints to keep."""
    best = best_step(costs)
    return set(sorted(costs)[-keep:]) | ({best} if best is not None else set())


def best_step(costs: Mapping[int, float | None]) -> int | None:
    """Returns the step with the lowest cost, or None if no cost was measured."""
    measured = [(cost, step) for step, cost in costs.items() if cost is not None]
    return min(measured)[1] if measured else None


def damaged_checkpoints(folder: AnyPath) -> list[AnyPath]:
    """Returns the damaged checkpoints that were set aside."""
    return sorted(folder.glob(f"*{DAMAGED}*")) if folder.is_dir() else []


def validation_of(meta: Mapping[str, Any]) -> dict[str, float]:
    """Returns the validation metrics in a ``meta`` item, by metric name."""
    if "validation" in meta:
        return meta["validation"]
    loss = meta["validation_loss"]  # format 1 only had the loss
    return {} if loss is None else {"loss": loss}


class StepHold:
    """Keeps a run from deleting a checkpoint while it is read; released with the object.

    Object stores do not support this: there a checkpoint may be deleted while it is read. A lock
    `to_delete` is exclusive.

    Raises:
        FileNotFoundError: The checkpoint was already deleted.
        BlockingIOError: The checkpoint was to be deleted but is being read.
    """

    def __init__(self, step_folder: AnyPath, to_delete: bool = False):
        self.close = lambda: None
        if is_remote(step_folder):
            return
        folder = os.open(step_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB if to_delete else fcntl.LOCK_SH)
        except BlockingIOError:
            self.close()
            raise
        except OSError:
            pass  # a file system without locks
        if not os.path.samestat(os.fstat(folder), os.stat(step_folder)):
            raise FileNotFoundError(f"{step_folder} was deleted in the meantime")


def delete_step(step_folder: AnyPath) -> threading.Thread | None:
    """Deletes a step in the background, unless it is being read (None).

    If the process is killed meanwhile, the remaining files are not mistaken for a checkpoint.
    """
    if is_remote(step_folder):
        (step_folder / COMMIT_FILE).unlink(missing_ok=True)
        thread = threading.Thread(target=_remove_objects, args=(step_folder,))
    else:
        try:
            hold = StepHold(step_folder, to_delete=True)
        except BlockingIOError:
            return None
        doomed = step_folder.rename(step_folder.with_name(step_folder.name + _DELETING))
        hold.close()
        thread = threading.Thread(target=remove_folder, args=(doomed,))
    thread.start()
    return thread


def _remove_objects(step_folder: AnyPath) -> None:
    try:
        step_folder.rmtree()
    except StorageError as error:  # the next start removes the remaining files
        _log.warning("%s could not be deleted: %s", step_folder, error)


def remove_leftovers(folder: AnyPath) -> None:
    """Removes files that a killed process left half-written or half-deleted."""
    if is_remote(folder):
        for item in folder.iterdir() if folder.is_dir() else ():
            if _STEP.fullmatch(item.name) and not _is_committed(item):
                item.rmtree()
        return
    for item in folder.iterdir():
        if _TEMPORARY in item.name or item.name.endswith(_DELETING):
            remove_folder(item)


def write_json(path: AnyPath, data: object) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json.dumps(data, indent=1) + "\n")
