"""When to kill a run: while it starts, after some steps, or while a checkpoint is written."""

import contextlib
import random
import time
from collections.abc import Callable, Collection

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, METRICS_FILE
from jaxformer.io.paths import AnyPath, is_remote
from soak.processes import Process


def last_step(run: AnyPath) -> int:
    """How far a run is; in a store, whose metrics come late, how far it has saved."""
    if is_remote(run):
        return max(saved_steps(run / CHECKPOINTS), default=0)
    with contextlib.suppress(OSError):
        return (run / METRICS_FILE).read_bytes().count(b'"train"')
    return 0


def is_saving(run: AnyPath) -> bool:
    """Whether there is a checkpoint that is not complete."""
    checkpoints = run / CHECKPOINTS
    if not is_remote(run):
        return any(checkpoints.glob("*.orbax-checkpoint-tmp*"))
    items = checkpoints.iterdir() if checkpoints.is_dir() else ()
    begun = {int(item.name) for item in items if item.name.isdecimal()}
    return bool(begun - set(saved_steps(checkpoints)))


def wait_for_moment(
    run: AnyPath, started: Collection[Process], dice: random.Random, life: float, steps: int
) -> str:
    """Waits for a random moment of a run, or for the end of one of its processes.

    Args:
        run: The folder of the run.
        started: The processes that train in it.
        dice: Chooses the moment.
        life: The seconds within which a start is struck.
        steps: The most steps that are waited for.

    Returns:
        What the run was doing.
    """
    name = dice.choice(("starting", "stepping", "saving", "saving"))
    end = time.monotonic() + dice.random() * life
    goal = last_step(run) + dice.randint(1, steps)
    moments: dict[str, Callable[[], bool]] = {
        "starting": lambda: time.monotonic() >= end,
        "stepping": lambda: last_step(run) >= goal,
        "saving": lambda: last_step(run) >= goal and is_saving(run),
    }
    while not moments[name]() and all(process.runs for process in started):
        time.sleep(0.1 if is_remote(run) else 0.002)
    return name
