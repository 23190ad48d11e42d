"""Contenders in separate processes, timed in turn, so that their threads do not slow each other.

A contender is a function "module:name" whose arguments are plain data. It prepares its work and
returns a `step()` that blocks until it is done, or a pair of the step and a dictionary of facts.
"""

import importlib
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

RIVALS = {"PyTorch": False, "torch.compile": True}
"""What a user would pick instead -> whether it is compiled."""
DTYPES = ("bfloat16", "float32")


class Contender:
    """A process that holds one prepared contender."""

    def __init__(self, target: str, *arguments):
        """Starts the process and waits until its first step, compilation included, is done."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other_end = context.Pipe()
        process = context.Process(target=_serve, args=(other_end, target, arguments), daemon=True)
        process.start()
        other_end.close()
        self.facts = self._pipe.recv()

    def steps(self, count: int) -> list[float]:
        """Runs consecutive steps and returns the seconds of each."""
        taken = []
        for _ in range(count):
            self._pipe.send(True)
            taken.append(self._pipe.recv())
        return taken

    def close(self) -> dict:
        """Ends the process and returns its facts, including its peak resident memory."""
        self._pipe.send(False)
        return self.facts | self._pipe.recv()


def _serve(pipe, target: str, arguments: tuple) -> None:
    module, name = target.split(":")
    prepared = getattr(importlib.import_module(module), name)(*arguments)
    step, facts = prepared if isinstance(prepared, tuple) else (prepared, {})
    pipe.send(facts | {"first_step_seconds": seconds(step)})
    while pipe.recv():
        pipe.send(seconds(step))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send({"peak_resident_megabytes": round(peak / 1024)})


def seconds(step: Callable[[], object]) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def alternate(contenders: dict[str, tuple], rounds: int, apart: bool = False) -> dict[str, dict]:
    """Lets each contender take three steps per round, so that a busy machine slows all of them.

    The first step of a turn does not count: while a process waits, the system may reclaim its
    memory and its caches, which does not happen in a training loop.

    Args:
        contenders: Name -> (target, *arguments), see `Contender`.
        rounds: Turns of each, after one that does not count.
        apart: Let one contender take all its turns before the next one starts, for memory that
            fits only one.

    Returns:
        Name -> its facts and "seconds", the mean of the counted steps of each round.
    """
    if apart:
        each = (alternate({name: target}, rounds) for name, target in contenders.items())
        return {name: row for rows in each for name, row in rows.items()}
    # On a GPU the processes share the memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    started = {name: Contender(*target) for name, target in contenders.items()}
    turns = [
        {name: statistics.mean(contender.steps(3)[1:]) for name, contender in started.items()}
        for _ in range(1 + rounds)
    ]
    return {
        name: contender.close() | {"seconds": [turn[name] for turn in turns[1:]]}
        for name, contender in started.items()
    }


def chosen(contenders: dict[str, tuple], parts: Sequence[str]) -> dict[str, tuple]:
    """The contenders whose names contain one of the parts; all of them without parts."""
    return {
        name: target
        for name, target in contenders.items()
        if not parts or any(part in name for part in parts)
    }


def speed_ratio(seconds: list[float], reference: list[float]) -> float:
    """The speed relative to the reference: the median over rounds of the ratio of times."""
    return statistics.median(r / s for r, s in zip(reference, seconds, strict=True))


def ratios_to_rivals(
    rows: dict[str, dict], name: str, rivals: Iterable[str] = RIVALS
) -> dict[str, float]:
    """The speed of one contender relative to each rival that took part.

    A name ends with its dtype. The rival is the one with the same dtype, or else with the dtype
    that took part.
    """
    ratios = {}
    dtype = name.split()[-1]
    for rival in rivals:
        dtypes = [each for each in (dtype, *DTYPES) if f"{rival} {each}" in rows]
        if dtypes:
            reference = rows[f"{rival} {dtypes[0]}"]["seconds"]
            ratios[rival] = speed_ratio(rows[name]["seconds"], reference)
    return ratios


def heading(rivals: Iterable[str] = RIVALS) -> str:
    """The column titles of `ratios_to_rivals` in a printed table."""
    return "  ".join(f"of {rival}" for rival in rivals)


def columns(ratios: dict[str, float], rivals: Iterable[str] = RIVALS) -> str:
    """The ratios under `heading`, blank for a rival that did not take part."""
    cells = {rival: f"{ratios[rival]:.2f}x" if rival in ratios else "" for rival in rivals}
    return "  ".join(cell.rjust(len(f"of {rival}")) for rival, cell in cells.items())


def machine() -> dict:
    """The facts of every result: the processor, its cores, the accelerator, versions."""
    processor = _processor()  # imports jaxformer, which sets what XLA reads when it starts
    import jax

    device = jax.devices()[0]
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "device": f"{len(jax.devices())} x {device.device_kind}",
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "python": platform.python_version(),
    } | {name: version(name) for name in ("jax", "jaxlib", "flax", "torch", "transformers")}


def _processor() -> str:
    """The processor's name and matrix instructions."""
    from jaxformer.distributed.processor import processor

    name, features = processor()
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return f"{name} ({', '.join(each for each in known if each in features)})"


def write(path: Path | None, report: dict) -> None:
    """Writes a report as JSON, if a path is given."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(f"written: {path}")
