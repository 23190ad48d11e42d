"""How much memory a process takes while it does something."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

_MEGABYTE = 1024  # in the kilobytes that the system counts
_INTERVAL = 0.005


def measured(action: Callable[[], object]) -> dict[str, float]:
    """Runs an action and returns its seconds and the peaks of the process's memory, in megabytes.

    "peak" is the largest resident memory, pages of mapped files included, which the system drops
    when it needs them; "peak_anonymous" (sampled) is what it could only swap.
    """
    # The system's own mark of the peak starts again from what is resident now.
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
    """What the process has before it starts: libraries, mostly."""
    now = resident()
    return {"baseline": now["now"], "baseline_anonymous": now["anonymous"]}


def resident() -> dict[str, float]:
    """Megabytes of this process: now, without mapped files, and at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    fields = {"now": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(values[field].split()[0]) / _MEGABYTE for name, field in fields.items()}
