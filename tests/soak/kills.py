"""Kills at random moments, one process or two; the run that goes on ends with the same bits."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak.runs import ROOT, measured, write_experiments
from soak.trial import Outcome, Silent, Trial, chance, judge

PART = "kills"
STEPS, INTERVAL = 300, 5
KILLS_IN_A_ROW = 5
"""Kills of one run before it may end and is compared."""
ALONE_SECONDS, START_SECONDS = 60, 300
"""How long a process may outlive the others of its job, and how long a run may take."""
LIFE_SECONDS = 8
"""A run is started, has compiled and trains after about half of this."""


class Kills:
    """Kills runs and compares what they end with."""

    def __init__(self, folder: Path, seed: int, processes: tuple[int, ...] = (1, 1, 2)):
        self.folder, self.seed, self.processes = folder, seed, processes
        folder.mkdir(parents=True)
        self.experiment = write_experiments(folder.parent)["text"]
        self._whole: dict[int, tuple[str, list[tuple]]] = {}

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
        whole, complaints = self._undisturbed(processes), []
        for _ in range(KILLS_IN_A_ROW):
            started = self._start(run, processes)
            name, moment = _moment(run, dice)
            while not moment() and all(process.poll() is None for process in started):
                time.sleep(0.001)
            victims = dice.sample(started, dice.randint(1, processes))
            for victim in victims:
                victim.send_signal(signal.SIGKILL)
            saving = any((run / "checkpoints").glob("*.orbax-checkpoint-tmp*"))
            log.append(f"{name}{' (in a save)' if saving else ''} at step {_last_step(run)}")
            complaints += [
                complaint
                for process in started
                if (complaint := _complaint(process, process in victims, ALONE_SECONDS))
            ]
        for process in self._start(run, processes):
            complaint = _complaint(process, False, START_SECONDS)
            if complaint or process.returncode != 0:
                raise AssertionError(f"started again: {complaint or process.returncode}")
        if self._content_hash(run) != whole[0]:
            raise Silent("the killed run ended with other parameters or optimizer state")
        if measured(run) != whole[1]:
            raise Silent("the killed run measured other losses")
        if complaints:
            raise AssertionError("; ".join(sorted(set(complaints))))

    def _undisturbed(self, processes: int) -> tuple[str, list[tuple]]:
        """The content hash and the losses of a run that nobody kills."""
        if processes not in self._whole:
            run = self.folder / f"whole-{processes}"
            for process in self._start(run, processes):
                output, _ = process.communicate(timeout=START_SECONDS)
                assert process.returncode == 0, output
            self._whole[processes] = self._content_hash(run), measured(run)
        return self._whole[processes]

    def _start(self, run: Path, processes: int) -> list[subprocess.Popen]:
        options = ("--train.steps", STEPS, "--train.checkpoint-interval", INTERVAL)
        options += ("--train.eval-interval", 100, "--run-dir", run)
        if processes == 1:
            return [self._process("train.py", self.experiment, *options)]
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        options += ("--mesh.data", processes, "--job.coordinator", address)
        options += ("--job.initialization-timeout", 20)  # who is killed before that is not missed
        options += ("--job.num-processes", processes, "--job.process-id")
        return [
            self._process("train.py", self.experiment, *options, index)
            for index in range(processes)
        ]

    def _process(self, *arguments: object) -> subprocess.Popen:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
        environment = inherited | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _content_hash(self, run: Path) -> str:
        output, _ = self._process("-m", "jaxformer", "inspect", run).communicate()
        found = re.search(rf"content hash +(\w{{64}}) \(step {STEPS}\)", output)
        assert found, output
        return found.group(1)


def _moment(run: Path, dice: random.Random) -> tuple[str, Callable[[], bool]]:
    """When to kill: while it starts, after some steps, or while a checkpoint is written."""
    name = dice.choice(("starting", "stepping", "saving", "saving"))
    end = time.time() + dice.random() * LIFE_SECONDS
    goal = _last_step(run) + dice.randint(1, 40)

    def saving() -> bool:
        checkpoints = (run / "checkpoints").glob("*.orbax-checkpoint-tmp*")
        return _last_step(run) >= goal and any(checkpoints)

    moments = {
        "starting": lambda: time.time() >= end,
        "stepping": lambda: _last_step(run) >= goal,
        "saving": saving,
    }
    return name, moments[name]


def _last_step(run: Path) -> int:
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b'"train"')
    return 0


def _complaint(process: subprocess.Popen, was_killed: bool, seconds: float) -> str:
    """What is wrong with how a process ends: one that lost others says so, briefly and soon."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"a process that lost the others still runs after {seconds} s"
    if was_killed or process.returncode == 0:
        return ""
    if "Traceback" in output or process.returncode < 0:
        last = (output.strip().splitlines() or [""])[-1][:200]
        return f"{len(output.splitlines())} lines and status {process.returncode}: {last}"
    return ""
