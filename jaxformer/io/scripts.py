"""Runs scripts in separate processes, within limits of memory and processor time.

What they read was written by others, and may take for ever. This file is itself the script that
such a process begins with, so it imports nothing of this library.
"""

import os
import resource
import runpy
import subprocess
import sys
from collections.abc import Iterable
from types import ModuleType


def run_script(
    script: ModuleType,
    *arguments: str | os.PathLike,
    given: bytes = b"",
    patience: float,
    megabytes: int = 0,
    cpu_seconds: int = 0,
    paths: Iterable[str] | None = None,
) -> subprocess.CompletedProcess:
    """Runs a module as a script."""
    python = [sys.executable, "-I"] if paths is None else [sys.executable, "-I", "-S"]
    found = os.pathsep.join(filter(None, sys.path if paths is None else paths))
    limits = [str(megabytes), str(cpu_seconds), found]
    return subprocess.run(
        [*python, __file__, *limits, script.__file__, *arguments],
        input=given,
        capture_output=True,
        timeout=patience,
        check=False,
    )


def limit(kind: int, most: int) -> None:
    """Sets a limit of this process, unless it is 0 or there is a stricter one."""
    given = resource.getrlimit(kind)[1]
    if most:
        most = most if given == resource.RLIM_INFINITY else min(most, given)
        resource.setrlimit(kind, (most, given))


def main(megabytes: str, cpu_seconds: str, paths: str, *script: str) -> None:
    """Limits this process, and then runs the script in it."""
    limit(resource.RLIMIT_DATA, int(megabytes) << 20)
    limit(resource.RLIMIT_CPU, int(cpu_seconds))
    sys.path += paths.split(os.pathsep)
    sys.argv = list(script)
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
