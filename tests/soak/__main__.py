"""``make soak``: attacks the library for minutes, or as long as is asked for; prints one table."""

import argparse
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax

from soak.calls import Calls
from soak.commands import Commands
from soak.configs import Configs
from soak.damage import Damage
from soak.folders import Folders
from soak.jobs import KILLS_IN_A_ROW, Jobs, Kills
from soak.places import Places
from soak.trial import Outcome, Trial

PARTS = {
    "kills": (Kills, "times that a training process was killed"),
    "jobs": (Jobs, "times that processes of a job of 2 or 4 were killed or told to stop"),
    "damage": (Damage, "damaged runs"),
    "places": (Places, "strange paths, links and lost locks of runs"),
    "folders": (Folders, "hostile folders in the layout of Hugging Face"),
    "configs": (Configs, "spoiled configurations"),
    "commands": (Commands, "fuzzed command lines"),
    "calls": (Calls, "calls of functions with a wrong argument"),
}
COUNTS = (10, 10, 60, 60, 300, 1000, 200, 400)
DEFAULTS = dict(zip(PARTS, COUNTS, strict=True))
"""A few minutes on two cores."""
IN_A_ROW = ("kills", "jobs")
"""The parts whose trials are several kills of one run, which is kept if it fails."""
MAPPINGS = 100
"""Trials after which compiled programs are dropped: each maps memory, and Linux limits that."""


def main() -> int:
    """Runs the parts; returns 1 if anything was silent or showed a traceback."""
    options = _options()
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    print(f"seed {options.seed}; repeat one trial with {_repeat(options.seed, 'PART', 'INDEX')}")
    start, trials = time.time(), []
    for trial in _trials(options, folder):
        trials.append(trial)
        if options.verbose:
            print(f"{trial.part}:{trial.index}  {trial.attack}", flush=True)
        if trial.outcome.failed:
            print(f"{trial.outcome.value}: {trial.part}:{trial.index}  {trial.attack}")
            print(f"    {trial.detail}", flush=True)
    failed = [trial for trial in trials if trial.outcome.failed]
    options.output.write_text(json.dumps([_record(t, options.seed) for t in failed], indent=1))
    if not any(trial.part in IN_A_ROW for trial in failed):
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{table(trials)}\n\n{time.time() - start:.0f} s, {_machine()}, seed {options.seed}")
    if failed:
        print(f"{len(failed)} failed: {options.output}")
    return 1 if failed else 0


def table(trials: list[Trial]) -> str:
    """What came of the attacks, in Markdown."""
    lines = [
        f"| attack | tried | {' | '.join(outcome.value for outcome in Outcome)} |",
        f"| --- |{' ---: |' * (1 + len(Outcome))}",
    ]
    for part, (_, words) in PARTS.items():
        ours = [trial for trial in trials if trial.part == part]
        counts = [sum(t.count for t in ours if t.outcome is outcome) for outcome in Outcome]
        if ours:
            cells = " | ".join(f"{count:,}" for count in (sum(counts), *counts))
            lines.append(f"| {words} | {cells} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="other attacks of the same kinds")
    parser.add_argument("--seconds", type=float, help="the longest that all parts may take")
    for part, (_, words) in PARTS.items():
        parser.add_argument(f"--{part}", type=int, metavar="N", help=f"how many {words}")
    parser.add_argument("--only", metavar="PART[:INDEX]", help="one part, or one trial of it")
    parser.add_argument("--verbose", action="store_true", help="say what each trial did")
    parser.add_argument("--output", type=Path, default=Path("soak-failures.json"))
    options = parser.parse_args()
    part, _, index = (options.only or "").partition(":")
    if part and part not in PARTS:
        parser.error(f"--only {part}: one of {', '.join(PARTS)}")
    options.part, options.index = part, int(index) if index else None
    return options


def _trials(options: argparse.Namespace, folder: Path) -> Iterator[Trial]:
    chosen = [options.part] if options.part else list(PARTS)
    for number, part in enumerate(chosen):
        count = getattr(options, part)
        count = DEFAULTS[part] if count is None else count
        if part in IN_A_ROW:
            count = -(-count // KILLS_IN_A_ROW)
        indices = range(count) if options.index is None else [options.index]
        if not indices:
            continue
        start = time.time()
        share = (options.seconds or float("inf")) / len(chosen)
        attacker = PARTS[part][0](folder / f"{number}-{part}", options.seed)
        for index in indices:
            if time.time() - start > share:
                print(f"{part}: {index} of {count} trials in {share:.0f} s")
                break
            yield attacker.trial(index)
            if index % MAPPINGS == MAPPINGS - 1:
                jax.clear_caches()


def _record(trial: Trial, seed: int) -> dict[str, object]:
    return {
        "trial": f"{trial.part}:{trial.index}",
        "attack": trial.attack,
        "outcome": trial.outcome.value,
        "detail": trial.detail,
        "repeat": _repeat(seed, trial.part, trial.index),
    }


def _repeat(seed: int, part: str, index: object) -> str:
    return f"make soak SOAK='--seed {seed} --only {part}:{index}'"


def _machine() -> str:
    return f"{os.cpu_count()} cores, jax {jax.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what an attack has left running must not hold the end
