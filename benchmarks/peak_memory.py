"""The peak memory of a process while it runs an action."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

_MEGABYTE = 1024  # kilobytes, the unit of the system
_INTERVAL = 0.005


def measured(action: Callable[[], object]) -> dict[str, float]:
    """Runs an action and returns its seconds and the peaks of the process's memory, in megabytes.

    "peak" is the largest resident memory, including pages of mapped files, which the system can
    drop; "peak_anonymous" (sampled) is the part that it can only swap.
    """
    # Resets the peak that the system records to the current resident memory.
    Path("/proc/self/clear_refs").write_text("5")
    done, samples = threading.Event(), [resident()["anonymous"]]

    def sample():
        while not done.wait(_INTERVAL):
            samples.append(resident()["anonymous"])

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    done.set()
    sampler.join()
    after = resident()
    peak_anonymous = max(*samples, after["anonymous"])
    return {"seconds": seconds, "peak": after["peak"], "peak_anonymous": peak_anonymous}


def baseline() -> dict[str, float]:
    """The memory of the process before the action: mostly libraries."""
    now = resident()
    return {"baseline": now["now"], "baseline_anonymous": now["anonymous"]}


def resident() -> dict[str, float]:
    """Megabytes of this process: now, without mapped files, and at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    fields = {"now": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(values[field].split()[0]) / _MEGABYTE for name, field in fields.items()}
