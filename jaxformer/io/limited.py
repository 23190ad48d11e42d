"""Runs another script within limits of memory and processor time; `scripts.py` runs this file.

It imports nothing of this library: MEGABYTES CPU_SECONDS PATHS SCRIPT [ARGUMENT ...], where 0 is no
limit, and PATHS is where modules are found besides the standard library.
"""

import os
import resource
import runpy
import sys


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
