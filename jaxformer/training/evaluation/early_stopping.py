"""Early stopping: tracks the best evaluation and decides when to stop."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxformer.config.metric import cost
from jaxformer.errors import ConfigError, did_you_mean


def check_metric(metric: str, measured: Mapping[str, Any]) -> None:
    """Raises ConfigError, which lists the measured metrics, unless a metric is measured."""
    if metric not in measured:
        raise ConfigError(
            f"train.metric = {metric!r} is not measured by this run's evaluation; available "
            f"metrics are {', '.join(measured)}{did_you_mean(metric, measured)}"
        )


class Evaluation(NamedTuple):
    """One evaluation of the metric."""

    step: int
    value: float | None
    """The value, or None if it was not finite."""


class EarlyStopping:
    """Tracks the validation metric of a run.

    The decision depends only on the evaluations, so an interrupted run stops at the same step as an
    uninterrupted one.

    Args:
        metric: The metric's name.
        patience: Number of consecutive evaluations without improvement that end the run; None
            disables it.
        rows: The metrics recorded so far.
    """

    def __init__(self, metric: str, patience: int | None, rows: Iterable[Mapping[str, Any]] = ()):
        self._metric, self._patience = metric, patience
        self._worse = 0
        self.best: Evaluation | None = None
        """The first best evaluation, or None if no value was finite."""
        for row in rows:
            if row["split"] == "validation" and metric in row:
                self._take(Evaluation(row["step"], row[metric]))

    @property
    def ended(self) -> bool:
        """Whether patience is exhausted."""
        return self._patience is not None and self._worse >= self._patience

    @property
    def reason(self) -> str:
        """Why a run has ended, as a sentence without the full stop."""
        count = f"{self._worse} evaluation{'s' if self._worse > 1 else ''}"
        words = f"validation {self._metric.replace('_', ' ')}"
        if self.best is None:
            return f"{words} was not finite in {count}"
        step, value = self.best
        return f"{words} has not improved on {value:.4g} of step {step} in {count}"

    def add(self, step: int, values: Mapping[str, float]) -> bool:
        """Records the evaluation of a step."""
        check_metric(self._metric, values)
        value = values[self._metric]
        return self._take(Evaluation(step, value if math.isfinite(value) else None))

    def _take(self, evaluation: Evaluation) -> bool:
        value, best = cost(self._metric, evaluation.value), self.best
        better = value is not None and (best is None or value < cost(self._metric, best.value))
        self._worse = 0 if better else self._worse + 1
        self.best = evaluation if better else best
        return better
