"""Runs of one process and jobs of several, killed or told to stop, on a disk and in a bucket."""

import contextlib
import itertools
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import fsspec
import numpy as np
from object_store import ACCESS, Server, reached_by
from tiny_run import losses_of

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, METRICS_FILE
from jaxformer.io.paths import AnyPath, any_path, is_remote
from soak.processes import START_SECONDS, Process, Result, Starter, complaint_of, endings
from soak.runs import write_experiments
from soak.trial import Outcome, Silent, Trial, chance, judge

INTERVAL = 5
KILLS_IN_A_ROW = 5
"""How often one run is struck before it may end and is compared."""
STOPPED = 75
"""The status of a job that was told to stop."""
MOST = 4
FEWER = (
    (2, "--mesh.data", 2),
    (2, "--mesh.fsdp", 2),
    (1, "--mesh.data", 2),
    (1, "--mesh.data", 1, "--mesh.tensor", 2),
    (1, "--mesh.data", 1),
)
"""What is left of the most processes, and its mesh."""
ROUNDING = 1e-5
"""How far losses on another mesh may be apart; those of the rows in another order are by 2e-2."""


class Jobs:
    """Kills and stops jobs, and compares what they end with."""

    part = "jobs"
    steps, goal = 40, 6
    """Of a run, and the most that are waited for until it is struck."""
    kinds = tuple(itertools.product((2, MOST), (signal.SIGKILL, signal.SIGTERM), ("disk", "s3")))
    """How many processes, what they get, and where the run is."""
    options = ("--train.loggers",)  # none, which start sooner
    optimized = False
    """In a job JAX keeps the first process's programs alone; the others compile at each start."""

    def __init__(self, folder: Path, seed: int, kinds: tuple[tuple, ...] = ()):
        self.folder, self.seed, self.kinds = folder, seed, kinds or self.kinds
        experiment = write_experiments(folder.parent)["text"]
        options = ("--train.steps", self.steps, "--train.checkpoint-interval", INTERVAL)
        options += ("--train.eval-interval", 100, "--job.stopped-status", STOPPED, *self.options)
        quickly = {} if self.optimized else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        self.starter = Starter(folder, experiment, *options, **quickly)
        self._whole: dict[int, Result] = {}
        self._life: dict[int, float] = {}

    def trial(self, index: int) -> Trial:
        """Strikes one job a few times, lets it end, and compares."""
        dice = chance(self.seed, self.part, index)
        processes, number, place = self.kinds[index % len(self.kinds)]
        log: list[str] = []
        with self._place(place, f"run-{index}") as run:
            outcome, detail = judge(lambda: self._struck(run, processes, number, dice, log), (), 0)
        attack = f"{processes} processes, {number.name}, {place}: {', '.join(log)}"
        if outcome is Outcome.SURVIVED:
            shutil.rmtree(self.folder / f"run-{index}", ignore_errors=True)
        else:
            attack += f" (kept in {self.folder})"
        return Trial(self.part, index, attack, outcome, detail, KILLS_IN_A_ROW)

    def _struck(
        self,
        run: AnyPath,
        processes: int,
        number: signal.Signals,
        dice: random.Random,
        log: list[str],
    ) -> None:
        whole, complaints = self._undisturbed(processes), set()
        for _ in range(KILLS_IN_A_ROW):
            before = saved_steps(run / CHECKPOINTS)
            started = self.starter.start(run, processes, "--mesh.data", processes)
            name = wait_for_moment(run, started, dice, self._life[processes], self.goal)
            victims = dice.sample(started, dice.randint(1, processes))
            for victim in victims:
                victim.send(number)
            saving = " (in a save)" if is_saving(run) else ""
            struck = "+".join(str(started.index(victim)) for victim in victims)
            wrong, seconds = endings(started, victims)
            log.append(f"{struck} {name}{saving} at {last_step(run)}, ended in {seconds:.1f} s")
            complaints |= wrong
            if number == signal.SIGTERM:
                made = [step for step in saved_steps(run / CHECKPOINTS) if step not in before]
                statuses = {process.status for process in started}
                complaints |= {stop_complaint(statuses, started[0].output(), made)} - {""}
        if isinstance(run, Path) and processes == MOST:
            log.append(self._continued_by_fewer(run, dice, whole.losses))
        self.starter.finish(run, processes, "--mesh.data", processes)
        self.starter.result(run, self.steps).check(whole, complaints)

    def _continued_by_fewer(self, run: Path, dice: random.Random, whole: list[tuple]) -> str:
        """Goes on in a copy with fewer processes: the same data, and losses within rounding."""
        copy = Path(shutil.copytree(run, run.with_name(f"{run.name}-fewer")))
        processes, *mesh = dice.choice(FEWER)
        self.starter.finish(copy, processes, *mesh)
        rows = losses_of(copy)
        if [row[:2] for row in rows] != [row[:2] for row in whole]:
            raise Silent("fewer processes measured at other steps")
        losses, expected = (np.array([row[2] for row in each]) for each in (rows, whole))
        apart = float(np.max(np.abs(losses / expected - 1)))
        if not apart < ROUNDING:
            raise Silent(f"losses with fewer processes are apart by {apart:.1e}")
        shutil.rmtree(copy)
        return f"by {processes} with {' '.join(map(str, mesh))}: within {apart:.0e}"

    def _undisturbed(self, processes: int) -> Result:
        """What a job comes to that nobody disturbs, on a disk."""
        if processes not in self._whole:
            run, mesh = self.folder / f"whole-{processes}", ("--mesh.data", processes)
            began = time.monotonic()
            started = self.starter.start(run, processes, *mesh)
            while not last_step(run) and all(process.runs for process in started):
                time.sleep(0.1)
            self._life[processes] = time.monotonic() - began
            found = {complaint_of(process, START_SECONDS) for process in started}
            assert found == {""}, [process.output() for process in started]
            self._whole[processes] = self.starter.result(run, self.steps)
        return self._whole[processes]

    @contextlib.contextmanager
    def _place(self, place: str, name: str) -> Iterator[AnyPath]:
        """The folder of a run on a disk, or in a bucket of a server that speaks S3's language."""
        if place == "disk":
            yield self.folder / name
            return
        server = Server("moto.server", "-H", "127.0.0.1", "-p", "PORT")
        try:
            with reached_by(ACCESS | {"AWS_ENDPOINT_URL": server.address}, "s3"):
                fsspec.filesystem("s3").mkdir("soak")
                yield any_path(f"s3://soak/{name}", "run_dir")
        finally:
            server.close()


class Kills(Jobs):
    """Kills runs of one process, and of two."""

    part = "kills"
    steps, goal = 300, 40
    kinds = tuple((processes, signal.SIGKILL, "disk") for processes in (1, 1, 2))
    options, optimized = (), True


def stop_complaint(statuses: set[int], words: str, made: list[int]) -> str:
    """What is wrong with how a job was told to stop.

    Args:
        statuses: Those of its processes.
        words: What the first of them said.
        made: The steps of the new checkpoints.
    """
    own = [step for step in made if step % INTERVAL]
    if statuses == {STOPPED}:
        said = re.search(r"^stopped after step (\d+)", words, re.MULTILINE)
        step = int(said.group(1)) if said else None
        if [step] != made[-1:] or not set(own) <= {step}:
            return f"stopped after step {step}, and saved {made}"
        return ""
    if statuses == {0}:  # it was told after the last step
        return "" if own == [] else f"complete, and saved {made}"
    if -signal.SIGTERM in statuses and not made:  # it was told before it had met the others
        return ""
    return f"statuses {sorted(statuses)} after SIGTERM, and saved {made}"


# Moments: while a run starts, after some steps, or while a checkpoint is written -----------------


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
