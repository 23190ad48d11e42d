"""A trace of chosen steps with JAX's profiler."""

from pathlib import Path
from typing import Any

import jax


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
