"""Reports the machine, JAX's environment variables, and whether jaxlib computes correctly."""

import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from jaxformer.distributed.processor import processor
from jaxformer.doctor import cases as doctor_cases
from jaxformer.doctor.cases import CASES, FULL_PRECISION, NO_YNN_REDUCTIONS, Case
from jaxformer.errors import closest

Status = Literal["PASS", "note", "FAIL"]

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "chex",
    "numpy",
    "transformers",
    "torch",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
)
STARTS = "JAX starts"
"""The name of the finding if JAX does not start and no case can run."""

CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")
"""CPU features that determine XLA's matrix multiplication kernel and its speed."""

_PREFIXES = ("XLA_", "JAX_", "LIBTPU_", "TPU_", "NCCL_", "TF_GPU_")
_SINGLE = ("GLIBC_TUNABLES", "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "NNX_GRAPH_MODE")
# Environment variables that JAX reads in addition to those of its configuration options.
_JAX_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_FORCE_TPU_INIT",
    "JAX_PARTITION_INDEX",
    "JAX_SLICE_INDEX",
)
_OFF = ("", "0", "false", "off", "no")

# Environment variables and XLA flags, their harmful values (None: all but "off"), and effects.
_HARMFUL: tuple[tuple[str, str | None, str], ...] = (
    ("JAX_ENABLE_X64", None, "integers and floats have 64 bits instead of 32"),
    ("JAX_DISABLE_JIT", None, "nothing is compiled: a hundred times slower"),
    ("JAX_DISABLE_MOST_OPTIMIZATIONS", None, "compiles fast and runs slowly"),
    ("JAX_DEBUG_NANS", None, "waits for every result: slow"),
    ("JAX_DEBUG_INFS", None, "stops at -inf, which attention masks contain"),
    ("JAX_ENABLE_CHECKS", None, "internal checks of JAX: slow"),
    ("JAX_DEFAULT_PRNG_IMPL", "rbg|unsafe_rbg", "dropout depends on how many devices there are"),
    ("JAX_THREEFRY_PARTITIONABLE", "0|false", "dropout depends on how many devices there are"),
    ("NVIDIA_TF32_OVERRIDE", "1", f"float32 products become TF32, even under {FULL_PRECISION}"),
    ("--xla_cpu_enable_fast_math", "true|1", "NaN and infinity may go unseen"),
    ("--xla_backend_optimization_level", "0|1", "compiles fast and runs slowly"),
    (
        "--xla_cpu_experimental_ynn_fusion_type",
        "",
        f"halves the speed of bfloat16 products; {NO_YNN_REDUCTIONS} does not",
    ),
    ("--xla_gpu_autotune_level", "0", "kernels are not chosen by their speed"),
    ("--xla_dump_to", None, "writes files for each compiled program"),
)


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    status: Status
    meaning: str = ""
    """What is wrong, and its consequence."""
    remedy: str = ""
    """The remedy: what to set or change."""
    issue: str = ""
    """The issue where it is reported."""


def machine() -> list[tuple[str, str]]:
    """Returns versions, processor and memory as name-value pairs, without initializing devices."""
    found = {name: _version(name) for name in PACKAGES}
    memory = " of ".join(f"{size / 2**30:.1f} GiB" for size in _memory())
    return [
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        *((name, version) for name, version in found.items() if version),
        ("processor", f"{len(os.sched_getaffinity(0))} cores, {', '.join(_cpu()) or 'unknown'}"),
        ("memory", f"{memory} free"),
    ]


def devices() -> list[tuple[str, str]]:
    """Initializes the devices; returns the platform and its devices with their memory."""
    rows = []
    for device in jax.local_devices():
        memory = device.memory_stats() or {}
        room = ""
        if "bytes_limit" in memory:
            free = memory["bytes_limit"] - memory.get("bytes_in_use", 0)
            room = f", {free / 2**30:.1f} of {memory['bytes_limit'] / 2**30:.1f} GiB free"
        rows.append((str(device), f"{device.device_kind}{room}"))
    return [("platform", jax.default_backend()), *rows]


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that affect JAX."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) or name in _SINGLE
    }


def check_variables(environment: Mapping[str, str]) -> list[Finding]:
    """Returns a finding for each unknown or harmful environment variable."""
    found = []
    known = {name.upper() for name in jax.config.values} | set(_JAX_VARIABLES)
    for name in environment:
        if name.startswith("JAX_") and name not in known:
            near = closest(name, known)
            guess = f"did you mean {near[0]}?" if near else "remove it"
            found.append(Finding(name, "note", "JAX does not know this variable", guess))
    settings = dict(environment) | _flags(environment.get("XLA_FLAGS", ""))
    for name, values, harm in _HARMFUL:
        if name in settings and _matches(settings[name], values):
            shown = f"{name}={settings[name]}"
            found.append(Finding(shown, "note", harm, "remove it, unless this is what you want"))
    return found


def run_cases(cases: Sequence[Case] = CASES) -> Iterator[Finding]:
    """Runs cases in a separate process; if a case crashes it, a new process runs the rest."""
    left = list(cases)
    while left:
        run = subprocess.run(
            [sys.executable, "-m", doctor_cases.__name__, *(case.name for case in left)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        ended = {line["ended"]: line for line in lines if "ended" in line}
        begun = [line["begins"] for line in lines if "begins" in line]
        if not begun:
            remedy = "correct XLA_FLAGS or JAX_PLATFORMS"
            yield Finding(STARTS, "FAIL", _failure_message(run), remedy)
            return
        for case in left[: len(begun)]:
            yield finding(case, ended.get(case.name, {"message": _how_it_ended(run)}))
        left = left[len(begun) :]


def finding(case: Case, outcome: Mapping[str, object]) -> Finding:
    """Converts the outcome of a case, an ``error`` or a ``message``, to a finding."""
    error = outcome.get("error", float("inf"))
    if error <= case.tolerance:
        return Finding(case.name, "PASS")
    status = "FAIL" if case.in_transformers else "note"
    what = outcome.get("message") or f"relative error {error:.1e}"
    return Finding(case.name, status, f"{what}: {case.meaning}", case.remedy, case.issue)


def all_correct(findings: Iterable[Finding]) -> bool:
    """Whether all computations that transformers use are correct."""
    return all(found.status != "FAIL" for found in findings)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> list[str]:
    """Returns the processor's name and its CPU_FEATURES."""
    name, features = processor()
    return [name] * bool(name) + [feature for feature in CPU_FEATURES if feature in features]


def _memory() -> list[float]:
    """Returns the free bytes, if known, and the total bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        free = None
    return [int(free.group(1)) * 1024, total] if free else [total]


def _flags(text: str) -> dict[str, str]:
    """Parses ``--xla_a=1 --xla_b``; a flag without a value is true."""
    parts = (flag.partition("=") for flag in text.split() if flag.startswith("--"))
    return {name: value if equals else "true" for name, equals, value in parts}


def _matches(value: str, values: str | None) -> bool:
    return value.lower() not in _OFF if values is None else value.lower() in values.split("|")


def _how_it_ended(run: subprocess.CompletedProcess) -> str:
    if run.returncode < 0:
        return f"the process died of {signal.Signals(-run.returncode).name}"
    return f"no result in {doctor_cases.SECONDS} seconds"


def _failure_message(run: subprocess.CompletedProcess) -> str:
    """Returns why a process failed: XLA's message, or the last line of a traceback."""
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    fatal = [line.partition("] ")[2] for line in lines if re.match(r"F\d{4} ", line)]
    return (fatal or lines or [_how_it_ended(run)])[-1][:300]
