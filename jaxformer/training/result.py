"""The result of a finished or stopped run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.training.evaluation.conclusion import EarlyStopping
from jaxformer.training.logging.metrics_writer import read_metrics

if TYPE_CHECKING:
    from jaxformer.pretrained.model import Pretrained


@dataclass(frozen=True, eq=False)
class TrainResult:
    """The results of a run; everything else is read from its folder on demand.

    The training state is not kept in memory: `model` reads the parameters of the last checkpoint,
    averaged if the run keeps an average, with LoRA factors merged.
    """

    folder: Path
    """The run's folder."""
    step: int
    """Number of updates done."""
    finished: bool
    """Whether the run is complete; if it was stopped, the same call continues it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The final validation metrics; for a stopped run, the last ones measured."""
    best_step: int | None = None
    """The step of the best evaluation by `train.metric`, or None."""

    @classmethod
    def of(
        cls,
        folder: Path,
        step: int,
        finished: bool,
        stopping: EarlyStopping,
        metrics: Mapping[str, float] | None = None,
    ) -> "TrainResult":
        """Returns the result of a run at a step."""
        if metrics is None:
            metrics = next(reversed(_validation_rows(folder).values()), {})
        best = None if stopping.best is None else stopping.best.step
        return cls(folder, step, finished, dict(metrics), best)

    @property
    def history(self) -> dict[str, dict[str, list[float]]]:
        """The recorded metrics as columns: "train" and "validation", each with "step" and metrics.

        All columns of a split have the same length, with NaN where a step lacks a metric::

            plt.plot(result.history["train"]["step"], result.history["train"]["loss"])
        """
        rows = read_metrics(self.folder)
        return {
            split: _columns([row for row in rows if row["split"] == split])
            for split in ("train", "validation")
        }

    @property
    def best_metrics(self) -> dict[str, float]:
        """The metrics at `best_step`; empty if there was no evaluation."""
        return _validation_rows(self.folder).get(self.best_step, {})

    @cached_property
    def model(self) -> "Pretrained":
        """The trained model, as `jaxformer.load` returns it."""
        from jaxformer.pretrained.auto import load

        return load(self.folder, step=self.step)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "split"))
    values = {name: [row.get(name) for row in rows] for name in names}
    filled = {n: [math.nan if x is None else x for x in column] for n, column in values.items()}
    return {"step": [row["step"] for row in rows], **filled}


def _validation_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Returns the validation metrics by step."""
    return {
        row["step"]: {k: v for k, v in row.items() if k not in ("step", "split")}
        for row in read_metrics(folder, "validation")
    }
