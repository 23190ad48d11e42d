"""Scripts that run in a process of their own, since what they read may take for ever."""

import os
import subprocess
import sys
from types import ModuleType


def run_script(
    script: ModuleType, *arguments: str | os.PathLike, given: bytes = b"", patience: float
) -> subprocess.CompletedProcess:
    """Runs a module as a script that finds the libraries of this process.

    Args:
        script: The module; it imports nothing of this library.
        *arguments: Its arguments.
        given: Its standard input.
        patience: Seconds after which it is stopped.

    Returns:
        Its status and what it printed.

    Raises:
        subprocess.TimeoutExpired: It was stopped.
    """
    return subprocess.run(
        [sys.executable, "-P", script.__file__, *arguments],
        input=given,
        capture_output=True,
        timeout=patience,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
