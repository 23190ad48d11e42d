"""Kills at random moments, one process or two; the run that goes on ends with the same bits."""

import random
import shutil
import signal
from pathlib import Path

from soak.moments import is_saving, last_step, wait_for_moment
from soak.processes import Result, Starter, endings
from soak.runs import write_experiments
from soak.trial import Outcome, Trial, chance, judge

PART = "kills"
STEPS, INTERVAL = 300, 5
KILLS_IN_A_ROW = 5
"""Kills of one run before it may end and is compared."""
LIFE_SECONDS, GOAL = 8, 40
"""A run is started, has compiled and trains after about half of this; the most steps until then."""


class Kills:
    """Kills runs and compares what they end with."""

    def __init__(self, folder: Path, seed: int, processes: tuple[int, ...] = (1, 1, 2)):
        self.folder, self.seed, self.processes = folder, seed, processes
        experiment = write_experiments(folder.parent)["text"]
        options = ("--train.steps", STEPS, "--train.checkpoint-interval", INTERVAL)
        self.starter = Starter(folder, experiment, *options, "--train.eval-interval", 100)
        self._whole: dict[int, Result] = {}

    def trial(self, index: int) -> Trial:
        """Kills one run a few times, lets it end, and compares."""
        dice = chance(self.seed, PART, index)
        processes = self.processes[index % len(self.processes)]
        run, log = self.folder / f"run-{index}", []
        outcome, detail = judge(lambda: self._killed_and_compared(run, processes, dice, log), (), 0)
        attack = f"{processes} process{'es' if processes > 1 else ''}: {', '.join(log)}"
        if outcome is Outcome.SURVIVED:
            shutil.rmtree(run)
        else:
            attack += f" (kept in {run})"
        return Trial(PART, index, attack, outcome, detail, KILLS_IN_A_ROW)

    def _killed_and_compared(
        self, run: Path, processes: int, dice: random.Random, log: list[str]
    ) -> None:
        whole, complaints = self._undisturbed(processes), set()
        mesh = ("--mesh.data", processes)
        for _ in range(KILLS_IN_A_ROW):
            started = self.starter.start(run, processes, *mesh)
            name = wait_for_moment(run, started, dice, LIFE_SECONDS, GOAL)
            victims = dice.sample(started, dice.randint(1, processes))
            for victim in victims:
                victim.send(signal.SIGKILL)
            log.append(f"{name}{' (in a save)' if is_saving(run) else ''} at {last_step(run)}")
            complaints |= endings(started, victims)[0]
        self.starter.finish(run, processes, *mesh)
        self.starter.result(run, STEPS).check(whole, complaints)

    def _undisturbed(self, processes: int) -> Result:
        """What a run comes to that nobody kills."""
        if processes not in self._whole:
            run = self.folder / f"whole-{processes}"
            self.starter.finish(run, processes, "--mesh.data", processes)
            self._whole[processes] = self.starter.result(run, STEPS)
        return self._whole[processes]
