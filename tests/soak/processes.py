"""The processes of a training run: started as a user starts them, and judged by how they end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ports import free_address
from tiny_run import ROOT, losses_of

from jaxformer.io.paths import AnyPath
from soak.trial import Silent

ALONE_SECONDS, START_SECONDS = 60, 300
"""How long a process may outlive the others of its job, and how long a run may take."""
_NATIVE = re.compile(r"^([EF]\d{4} |\*\*\* |terminate called|Traceback)", re.MULTILINE)
"""What C++ and Python say of an error that nobody made a sentence of."""


@dataclass(frozen=True)
class Process:
    """A process of a run, and the file with what it says."""

    popen: subprocess.Popen
    said: Path

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    @property
    def status(self) -> int:
        """The exit status, or minus the signal that ended it."""
        return self.popen.returncode

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, which is lost if the process has ended."""
        self.popen.send_signal(number)

    def ended(self, seconds: float) -> bool:
        """Waits for the end; kills what still runs after that."""
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return False
        return True

    def output(self) -> str:
        """What it has said."""
        return self.said.read_text(errors="replace")


class Result(NamedTuple):
    """What a run has come to."""

    content_hash: str
    losses: list[tuple]

    def check(self, undisturbed: "Result", complaints: Collection[str]) -> None:
        """Raises an error if an undisturbed run came to something else, or a process complained."""
        if self.content_hash != undisturbed.content_hash:
            raise Silent("it ended with other parameters or optimizer state")
        if self.losses != undisturbed.losses:
            raise Silent("it measured other losses")
        if complaints:
            raise AssertionError("; ".join(sorted(complaints)))


class Starter:
    """Starts the processes of a run, which share what is compiled and nothing else.

    Args:
        folder: Where what they compile and say is kept.
        experiment: The file of the experiment.
        options: Those of every run.
        variables: Of the environment of every process.
    """

    def __init__(self, folder: Path, experiment: Path, *options: object, **variables: str):
        self._folder, self._command = folder, ("train.py", experiment, *options)
        self._variables = variables
        self._starts = 0
        folder.mkdir(parents=True)

    def start(self, run: AnyPath, processes: int, *options: object) -> list[Process]:
        """Starts so many processes; each start has machines of its own, without a cache."""
        command = (*self._command, *options, "--run-dir", run)
        if processes == 1:
            return [self._process(*command)]
        command += ("--job.coordinator", free_address(), "--job.num-processes", processes)
        command += ("--job.initialization-timeout", 20)  # who is killed before that is not missed
        return [self._process(*command, "--job.process-id", index) for index in range(processes)]

    def finish(self, run: AnyPath, processes: int, *options: object) -> None:
        """Trains to the end, which must come without an error."""
        for process in self.start(run, processes, *options):
            complaint = complaint_of(process, START_SECONDS)
            if complaint or process.status != 0:
                raise AssertionError(f"to the end: {complaint or process.output()[-500:]}")

    def result(self, run: AnyPath, step: int) -> Result:
        """What a run that has ended at a step came to: its hash is what `inspect` says."""
        process = self._process("-m", "jaxformer", "inspect", run)
        process.ended(START_SECONDS)
        found = re.search(rf"content hash +(\w{{64}}) \(step {step}\)", process.output())
        assert found, process.output()
        return Result(found.group(1), losses_of(run))

    def _process(self, *arguments: object) -> Process:
        self._starts += 1
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
        environment = inherited | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAXFORMER_CACHE": str(self._folder / f"cache-{self._starts}"),
            "PYTHONPATH": str(ROOT / "tests"),
            **self._variables,
        }
        said = self._folder / f"{self._starts}.txt"
        with said.open("w") as file:
            command = [sys.executable, *map(str, arguments)]
            popen = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
            )
        return Process(popen, said)


def endings(started: Collection[Process], victims: Collection[Process]) -> tuple[set[str], float]:
    """Waits for the end of a job that lost processes.

    Returns:
        What is wrong with how the others ended, and the seconds that they took.
    """
    began = time.monotonic()
    complaints = {complaint_of(process, ALONE_SECONDS, process in victims) for process in started}
    return complaints - {""}, time.monotonic() - began


def complaint_of(process: Process, seconds: float, was_killed: bool = False) -> str:
    """What is wrong with how a process ends: one that lost others says so, in a sentence, soon."""
    if not process.ended(seconds):
        return f"a process still runs after {seconds} s: {process.said}"
    if was_killed and process.status < 0:
        return ""
    output = process.output()
    last = (output.strip().splitlines() or [""])[-1][:200]
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    if process.status < 0 or _NATIVE.search(output):
        return f"status {process.status} of {process.said}: {last}"
    if process.status in (1, 2) and len(errors) != 1:
        return f"{len(errors)} sentences, status {process.status} of {process.said}: {last}"
    return ""
