"""The speed of training: tokens and FLOPs per second, the share of the peak, and profiles."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxformer.distributed.chips import CHIPS
from jaxformer.models.model import ModelConfig

# Dense bfloat16 FLOP/s of one device, from the vendors' data sheets (without sparsity), by a part
# of jax.Device.device_kind: the devices that no job is planned for. The longest match counts.
_OTHER_PEAKS = {
    "TPU v2": 22.5e12,  # per core, as JAX sees v2 and v3
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
    """Returns a device's peak dense bfloat16 FLOP/s, or None for one that is not in the table."""
    names = [name for name in PEAK_FLOPS if name in device_kind]
    return PEAK_FLOPS[max(names, key=len)] if names else None


@dataclass(frozen=True)
class Workload:
    """The work of one step."""

    tokens: int
    """Tokens of a step, over all devices."""
    flops: float
    """Model FLOPs of a step, forward and backward, with attention counted as if every token
    attended to every token (the convention of PaLM's and nanoGPT's MFU)."""
    causal_flops: float
    """The same without the half of attention that the causal mask excludes."""
    peak: float | None
    """Peak FLOP/s of all devices together, or None where it is unknown."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        lengths: Mapping[str, int],
        batch_size: int,
        mesh: jax.sharding.Mesh,
    ) -> "Workload":
        """The work of a step on a mesh.

        Args:
            model: The model's configuration.
            lengths: Tokens of a row, see `ModelConfig.row_lengths`.
            batch_size: Rows of a step.
            mesh: The devices.

        Returns:
            The work of a step.
        """
        tokens, flops = batch_size * lengths["inputs"], model.flops(lengths)
        peak = peak_flops(mesh.devices.flat[0].device_kind)
        return cls(
            tokens=tokens,
            flops=tokens * flops.training(causal=False),
            causal_flops=tokens * flops.training(causal=True),
            peak=None if peak is None else peak * mesh.size,
        )


class Stopwatch:
    """Turns the time between two readings into rates."""

    def __init__(self, workload: Workload):
        self._workload = workload
        self.restart()

    def restart(self) -> None:
        """Starts anew: what came before (compilation, an evaluation) does not count."""
        self._start = time.perf_counter()
        self._waited = self._paused = 0.0
        self._steps = 0

    def waited(self, seconds: float) -> None:
        """Notes that a step waited for its data."""
        self._waited += seconds

    def pause(self, seconds: float) -> None:
        """Notes time that was not spent on training steps."""
        self._paused += seconds

    def step_done(self) -> None:
        """Notes that one more step is finished."""
        self._steps += 1

    def read(self) -> dict[str, float]:
        """Returns the rates since the last reading, and restarts; empty where no step was done."""
        elapsed = time.perf_counter() - self._start - self._paused
        steps, waited, work = self._steps, self._waited, self._workload
        self.restart()
        if steps == 0:
            return {}
        rates = {
            "step_seconds": elapsed / steps,
            "data_wait_seconds": waited / steps,
            "tokens_per_second": work.tokens * steps / elapsed,
            "model_flops_per_second": work.flops * steps / elapsed,
        }
        if work.peak is not None:
            rates["mfu"] = rates["model_flops_per_second"] / work.peak
            rates["mfu_causal"] = work.causal_flops * steps / elapsed / work.peak
        return rates


class StepProfiler:
    """Traces the steps of a window into ``folder/profile``; does nothing without a window.

    Args:
        window: First and last step, counted from 1, or None.
        folder: The run's folder.
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
