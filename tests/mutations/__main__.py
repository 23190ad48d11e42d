"""Seeds the faults one at a time into a copy of the repository and runs the tests on it.

python -m mutations [NAME ...]: the faults whose names begin with one of these; by default all.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutations.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("jaxformer", "tests", "configs", "docs", "pyproject.toml", "train.py")


def copy_repository(folder: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)


@contextmanager
def seeded(folder: Path, fault: Fault) -> Iterator[None]:
    """The copy with a fault in it."""
    path = folder / "jaxformer" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.name}: {fault.file} has {text.count(fault.old)} of {fault.old!r}")
    path.write_text(text.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(text)


def caught_by(folder: Path, fault: Fault) -> str | None:
    """The first test that fails, or None: the fault survived.

    Raises:
        SystemExit: The tests could not run.
    """
    arguments = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "--durations=0"]
    files = [f"tests/{name}" for name in fault.tests]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *files],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+\.py::\w+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or not failed:
        raise SystemExit(f"{fault.name}: the tests did not run:\n{run.stdout}{run.stderr}")
    return failed[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of the faults' names")
    names = tuple(parser.parse_args().names) or ("",)
    chosen = [fault for fault in FAULTS if fault.name.startswith(names)]
    survived = 0
    print("| fault | caught by |\n| --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy_repository(Path(folder))
        for fault in chosen:
            with seeded(Path(folder), fault):
                found = caught_by(Path(folder), fault)
            survived += found is None
            print(f"| {fault.name} | {f'`{found}`' if found else 'SURVIVED'} |", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} caught")
    sys.exit(bool(survived or not chosen))


if __name__ == "__main__":
    main()
