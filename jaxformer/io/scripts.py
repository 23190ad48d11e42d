"""Runs scripts in separate processes, within limits: what they read may take for ever."""

import os
import subprocess
import sys
from collections.abc import Iterable
from types import ModuleType

from jaxformer.io import limited


def run_script(
    script: ModuleType,
    *arguments: str | os.PathLike,
    given: bytes = b"",
    patience: float,
    megabytes: int = 0,
    cpu_seconds: int = 0,
    paths: Iterable[str] | None = None,
) -> subprocess.CompletedProcess:
    """Runs a module as a script.

    Args:
        script: The module; it imports nothing of this library.
        *arguments: Its arguments.
        given: Its standard input.
        patience: Seconds after which it is stopped.
        megabytes: The maximum memory; 0: no limit.
        cpu_seconds: The maximum processor time; 0: no limit.
        paths: Where it finds modules besides the standard library; site-packages, whose start-up
            files take time, are then left out. None: where this process does.

    Returns:
        Its status and what it printed.

    Raises:
        subprocess.TimeoutExpired: It was stopped.
    """
    python = [sys.executable, "-I"] if paths is None else [sys.executable, "-I", "-S"]
    found = os.pathsep.join(filter(None, sys.path if paths is None else paths))
    limits = [str(megabytes), str(cpu_seconds), found]
    return subprocess.run(
        [*python, limited.__file__, *limits, script.__file__, *arguments],
        input=given,
        capture_output=True,
        timeout=patience,
        check=False,
    )
