"""The folder of checkpoints on disk: steps, retention, leftovers.

A step is a folder named by its number. Orbax writes it under a temporary name and renames it when
every byte is on disk, so a folder with a plain number was complete once. Whether it still is, its
manifest says (``manifest.py``).
"""

import json
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.io.files import replacing

_TEMPORARY = ".orbax-checkpoint-tmp"
_DELETING = ".deleting"
_DAMAGED = ".damaged"
# A step as it is written, within an optimizer's int32: nothing else with digits is a checkpoint.
_STEP = re.compile(r"0|[1-9][0-9]{0,8}")


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps that were saved in ``folder``, ascending, damaged ones included."""
    if not folder.is_dir():
        return []
    names = [item.name for item in folder.iterdir() if item.is_dir()]
    return sorted(int(name) for name in names if _STEP.fullmatch(name))


def unfinished_step(folder: Path, step: int) -> Path:
    """Returns where the files of a step lie until it is complete."""
    (unfinished,) = folder.glob(f"{step}{_TEMPORARY}*")
    return unfinished


def set_aside(step_folder: Path) -> Path:
    """Renames a damaged checkpoint so that it is neither used again nor lost."""
    target = step_folder.with_name(step_folder.name + _DAMAGED)
    number = 1
    while target.exists():
        number += 1
        target = step_folder.with_name(f"{step_folder.name}{_DAMAGED}-{number}")
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


def damaged_ones(folder: Path) -> list[Path]:
    """Returns the checkpoints that were set aside."""
    return sorted(folder.glob(f"*{_DAMAGED}*")) if folder.is_dir() else []


def validation_of(meta: Mapping[str, Any]) -> dict[str, float]:
    """Returns what was measured at the step of a ``meta`` item, by the name of the metric."""
    if "validation" in meta:
        return meta["validation"]
    loss = meta["validation_loss"]  # format 1 had the loss alone
    return {} if loss is None else {"loss": loss}


def delete_step(step_folder: Path) -> threading.Thread:
    """Deletes in the background; a process killed meanwhile leaves nothing like a checkpoint."""
    doomed = step_folder.rename(step_folder.with_name(step_folder.name + _DELETING))
    thread = threading.Thread(target=shutil.rmtree, args=(doomed, True))
    thread.start()
    return thread


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left half-written or half-deleted."""
    for item in folder.iterdir():
        if _TEMPORARY in item.name or item.name.endswith(_DELETING):
            shutil.rmtree(item, ignore_errors=True)


def write_json(path: Path, data: object) -> None:
    """Writes a JSON file that is never seen half-written."""
    with replacing(path) as aside:
        aside.write_text(json.dumps(data, indent=1) + "\n")
