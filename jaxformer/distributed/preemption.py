"""Graceful stopping: a signal (preemption, Ctrl-C, hangup) ends a run after the current step."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """A context manager that turns SIGTERM, SIGINT, SIGHUP and SIGQUIT into a stop request.

    The first signal requests a clean stop; the second one has its usual effect. An ignored SIGHUP
    stays ignored, as under nohup. In a job of several processes, JAX's preemption service listens
    for SIGTERM and makes all processes stop after the same step; other signals are forwarded to it.
    """

    def __enter__(self):
        self._received = False
        numbers = [signal.SIGINT, signal.SIGQUIT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        several = jax.process_count() > 1
        if not several:
            numbers.append(signal.SIGTERM)
        self._previous = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, self._forward if several else self._request_stop)
        return self

    def __exit__(self, *_):
        self._restore()

    def requested(self, step: int) -> bool:
        """Whether to stop after this step; every process must call this once per step."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._received

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        self._restore()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
