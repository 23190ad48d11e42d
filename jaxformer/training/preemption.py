"""Stopping in time: SIGTERM (preemption) and Ctrl-C end a run after the step in progress."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class StopSignal:
    """A context that turns SIGTERM and SIGINT into a question the loop asks after each step.

    The first signal asks for a clean end; the second one acts at once, as without this context.
    In a job of several processes JAX's preemption service listens for SIGTERM and makes all of
    them stop after the same step, whichever of them was told; SIGINT is passed on to it.
    """

    def __enter__(self):
        self._received = False
        self._previous = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
        if jax.process_count() > 1:
            signal.signal(signal.SIGINT, self._pass_on)
        else:
            self._previous[signal.SIGTERM] = signal.getsignal(signal.SIGTERM)
            for number in self._previous:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        self._restore()

    def requested(self, step: int) -> bool:
        """Whether to stop after this step; to be asked once for every step, by every process."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._received

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        self._restore()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
