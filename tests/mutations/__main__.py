"""Seeds the faults one at a time into a copy of the repository and runs the tests that catch them.

python -m mutations [NAME ...]: the faults whose names begin with one of these; by default all. A
run that was interrupted continues: what was found for the same code is read from build/mutations.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mutations.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("jaxformer", "tests", "configs", "docs", "pyproject.toml", "train.py")
RESULTS = ROOT / "build" / "mutations"


def copy_repository(folder: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)


def digest_of(folder: Path, fault: Fault) -> str:
    """Identifies a fault in this code and with these tests."""
    digest = hashlib.sha256(repr(fault).encode())
    for path in sorted(path for name in COPIED for path in (folder / name).rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def check_applies(folder: Path, faults: Sequence[Fault]) -> None:
    """Checks that each fault's text occurs once and that its tests exist.

    Raises:
        SystemExit: It does not; names each such fault.
    """
    problems = []
    for fault in faults:
        path = folder / "jaxformer" / fault.file
        count = path.read_text().count(fault.old) if path.is_file() else 0
        if count != 1:
            problems.append(f"{fault.name}: jaxformer/{fault.file} has {count} of {fault.old!r}")
        file, _, test = fault.test.partition("::")
        path = folder / "tests" / file
        if not path.is_file() or f"def {test}" not in path.read_text():
            problems.append(f"{fault.name}: there is no tests/{fault.test}")
    if problems:
        raise SystemExit("\n".join([*problems, "mend them in tests/mutations/faults.py"]))


@contextmanager
def seeded(folder: Path, fault: Fault) -> Iterator[None]:
    """The copy with a fault in it."""
    path = folder / "jaxformer" / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(text)


def environment(folder: Path) -> dict[str, str]:
    """Imports the copy, and shares what is compiled with `make test`; nothing else is cached."""
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / "build" / "compiled")}
    own = {"PYTHONPATH": str(folder), "JAXFORMER_CACHE": str(folder / "cache")}
    return compiled | os.environ | own | {"PYTHONDONTWRITEBYTECODE": "1"}


def caught_by(folder: Path, fault: Fault) -> str | None:
    """The test that fails, or None: the fault survived.

    Raises:
        SystemExit: The tests could not run.
    """
    arguments = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "--durations=0"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, f"tests/{fault.test}"],
        cwd=folder,
        env=environment(folder),
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


def found_for(folder: Path, fault: Fault) -> str | None:
    """What catches a fault, from an earlier run of the same code if there was one."""
    record = RESULTS / f"{digest_of(folder, fault)}.json"
    if record.exists():
        return json.loads(record.read_text())
    with seeded(folder, fault):
        found = caught_by(folder, fault)
    RESULTS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of the faults' names")
    names = tuple(parser.parse_args().names) or ("",)
    chosen = [fault for fault in FAULTS if fault.name.startswith(names)]
    rows, survived = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_repository(folder)
        check_applies(folder, chosen)
        for number, fault in enumerate(chosen, start=1):
            started = time.monotonic()
            found = found_for(folder, fault)
            seconds = time.monotonic() - started
            caught = f"`{found}`" if found else "SURVIVED"
            survived += found is None
            rows.append(f"| {fault.name} | {caught} |")
            progress = f"[{number}/{len(chosen)}] {fault.name}: {caught} ({seconds:.0f} s)"
            print(progress, file=sys.stderr, flush=True)
    print("\n".join(["| fault | caught by |", "| --- | --- |", *rows]))
    print(f"\n{len(chosen) - survived} of {len(chosen)} caught")
    sys.exit(bool(survived or not chosen))


if __name__ == "__main__":
    main()
