"""Training speed: tokens and FLOPs per second, MFU, and profiles."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from jaxformer.config.experiment import Config
from jaxformer.distributed.chips import CHIPS

# Dense bfloat16 FLOP/s of one device (without sparsity) from vendor data sheets, by a substring of
# jax.Device.device_kind, for devices that the planner does not know. The longest match wins.
_OTHER_PEAKS = {
    "TPU v2": 22.5e12,  # per core, since a core is a device on v2 and v3
    "TPU v3": 61.5e12,
    "TPU v5e": 197e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,  # float16: it has no bfloat16 units
    "T4": 65e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI300X": 1307e12,
}
PEAK_FLOPS = _OTHER_PEAKS | {chip.device_kind: chip.peak_flops.value for chip in CHIPS.values()}


def peak_flops(device_kind: str) -> float | None:
    """Returns a device's peak dense bfloat16 FLOP/s, or None if the device is unknown."""
    names = [name for name in PEAK_FLOPS if name in device_kind]
    return PEAK_FLOPS[max(names, key=len)] if names else None


def device_memory(devices: Sequence[jax.Device]) -> dict[str, float]:
    """Returns the memory use of the fullest device; empty if the backend does not report it."""
    told = [stats for device in devices if (stats := device.memory_stats())]
    peaks = [stats for stats in told if "peak_bytes_in_use" in stats]
    if not peaks:
        return {}
    fullest = max(peaks, key=lambda stats: stats["peak_bytes_in_use"])
    found = {"memory_peak_bytes": fullest["peak_bytes_in_use"]}
    if "bytes_limit" in fullest:
        found["memory_limit_bytes"] = fullest["bytes_limit"]
    return found


@dataclass(frozen=True)
class WorkStage:
    """A stage of a run, whose steps all do the same work."""

    start: int
    """The first step, counted from 0."""
    rows: int
    """The rows of each step."""
    tokens: int
    """Tokens per step, over all devices."""
    flops: float
    """Model FLOPs of a step, forward and backward, with attention counted as if every token
    attended to every token (the convention of PaLM's and nanoGPT's MFU)."""
    causal_flops: float
    """Model FLOPs without the half of attention that a causal mask excludes."""
    peak: float | None
    """Peak FLOP/s of all devices together, or None if unknown."""

    @property
    def batch_text(self) -> str:
        """The shape of a batch: "1,024 rows of 4,096"."""
        return f"{self.rows:,} rows of {self.tokens // self.rows:,}"


@dataclass(frozen=True)
class RunWork:
    """The work of a run: of each step, and of all steps before one."""

    stages: tuple[WorkStage, ...]
    """The stages in order, from step 0."""

    @classmethod
    def of(cls, config: Config, mesh: jax.sharding.Mesh | None = None) -> "RunWork":
        """Computes the work of a run on a mesh."""
        peak = None if mesh is None else peak_flops(mesh.devices.flat[0].device_kind)
        peak = None if peak is None else peak * mesh.size
        stages = []
        for phase in config.data.phases:
            lengths = config.model.row_lengths(phase.data.lengths)
            rows = phase.data.num_sequences
            tokens = rows * lengths["inputs"]
            flops = config.model.flops(lengths)
            full, causal = (tokens * flops.training(causal=only) for only in (False, True))
            stages.append(WorkStage(phase.start, rows, tokens, full, causal, peak))
        return cls(tuple(stages))

    def stage(self, step: int) -> WorkStage:
        """Returns the stage of a step, counted from 0."""
        return [stage for stage in self.stages if stage.start <= step][-1]

    def tokens(self, steps: int) -> int:
        """Returns the tokens of the first `steps` steps, over all devices."""
        return sum(count * stage.tokens for stage, count in self._counts(steps))

    def flops(self, steps: int) -> float:
        """Returns the model FLOPs of the first `steps` steps, counted as in `WorkStage.flops`."""
        return sum(count * stage.flops for stage, count in self._counts(steps))

    def _counts(self, steps: int) -> list[tuple[WorkStage, int]]:
        """Returns how many of the steps belong to each stage."""
        begun = [stage for stage in self.stages if stage.start < steps]
        ends = pairwise([*(stage.start for stage in begun), steps])
        return [(stage, end - start) for stage, (start, end) in zip(begun, ends, strict=True)]


class Stopwatch:
    """Measures rates between two readings."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        """Restarts the measurement, excluding earlier time (compilation, evaluation)."""
        self._steps: list[WorkStage] = []
        self._seconds = self._waiting = 0.0
        self._next_step()

    def waited(self, seconds: float) -> None:
        """Adds time that a step waited for its data."""
        self._waited += seconds

    def pause(self, seconds: float) -> None:
        """Excludes time that was not spent on training steps."""
        self._paused += seconds

    def step_done(self, work: WorkStage, counts: bool = True) -> float:
        """Adds a finished step."""
        seconds = time.perf_counter() - self._start - self._paused
        if counts:
            self._steps.append(work)
            self._seconds += seconds
            self._waiting += self._waited
        self._next_step()
        return seconds

    def read(self) -> dict[str, float]:
        """Returns the rates since the last reading and restarts; empty if no step was done."""
        steps, elapsed, waited = self._steps, self._seconds, self._waiting
        self.restart()
        if not steps:
            return {}
        rates = {
            "step_seconds": elapsed / len(steps),
            "data_wait_seconds": waited / len(steps),
            "tokens_per_second": sum(work.tokens for work in steps) / elapsed,
            "model_flops_per_second": sum(work.flops for work in steps) / elapsed,
        }
        if (peak := steps[0].peak) is not None:
            rates["mfu"] = rates["model_flops_per_second"] / peak
            rates["mfu_causal"] = sum(work.causal_flops for work in steps) / elapsed / peak
        return rates

    def _next_step(self) -> None:
        self._start = time.perf_counter()
        self._waited = self._paused = 0.0


class StepProfiler:
    """Traces the steps of a window into ``folder/profile``; does nothing without a window.

    The window is its first and its last step, counted from 1.
    """

    def __init__(self, window: tuple[int, int] | None, folder: Path):
        self._window = window
        self._folder = folder / "profile"
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace before the first step of the window."""
        if self._window and self._window[0] <= step <= self._window[1] and not self._tracing:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, result: Any) -> None:
        """Ends the trace once the last step of the window is finished."""
        if self._tracing and step >= self._window[1]:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
            self._tracing, self._window = False, None
