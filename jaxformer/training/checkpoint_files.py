"""What a folder of checkpoints holds on disk: steps, completeness, retention.

A step is a folder named by its number. Orbax writes it under a temporary name and renames it when
every byte is on disk, so a folder with a plain number was complete once. Its ``files.json`` holds
the size of every file: a folder that lost something since (a copy that broke off, a hand) is
recognised without reading the arrays.
"""

import json
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "files.json"
_TEMPORARY = ".orbax-checkpoint-tmp"
_DELETING = ".deleting"
_DAMAGED = ".damaged"
# What orbax still writes after the manifest, and no restore needs.
_UNLISTED = (MANIFEST, MANIFEST + ".tmp", "_CHECKPOINT_METADATA", "commit_success.txt")


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps that were saved in ``folder``, ascending, damaged ones included."""
    if not folder.is_dir():
        return []
    return sorted(int(item.name) for item in folder.iterdir() if item.name.isdecimal())


def write_manifest(folder: Path, step: int) -> None:
    """Records the size of every file of a checkpoint that is about to be renamed into place."""
    (unfinished,) = folder.glob(f"{step}{_TEMPORARY}*")
    write_json(unfinished / MANIFEST, _file_sizes(unfinished))


def damage(step_folder: Path) -> str | None:
    """Compares a checkpoint with its manifest; returns what is wrong with it, or None."""
    try:
        expected = json.loads((step_folder / MANIFEST).read_text())
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except ValueError:
        return f"{MANIFEST} is not readable"
    found = _file_sizes(step_folder)
    for name, size in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != size:
            return f"{name} has {found[name]} bytes instead of {size}"
    return None


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


def read_item(step_folder: Path, item: str) -> dict[str, Any]:
    """Reads the ``config`` or the ``meta`` item of a checkpoint."""
    return json.loads((step_folder / item / "metadata").read_text())


def saved_rows(folder: Path, step: int) -> list[dict[str, float]]:
    """Returns what `RunLog.unlogged` was at a step; empty at step 0."""
    return read_item(folder / str(step), "meta").get("unlogged", []) if step else []


def write_json(path: Path, data: object) -> None:
    """Writes a JSON file that is never seen half-written."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _file_sizes(folder: Path) -> dict[str, int]:
    return {
        str(item.relative_to(folder)): item.stat().st_size
        for item in sorted(folder.rglob("*"))
        if item.is_file() and item.name not in _UNLISTED
    }
