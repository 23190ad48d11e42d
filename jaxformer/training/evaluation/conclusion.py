"""Early stopping, and the final results of a run in files and on the screen."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.checkpoints.files import write_json
from jaxformer.checkpoints.run_dir import CHECKPOINTS
from jaxformer.config.experiment import Config
from jaxformer.config.loggers import TensorBoard
from jaxformer.config.train import cost
from jaxformer.data import Data
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.files import write_text
from jaxformer.io.paths import AnyPath
from jaxformer.io.serialization import to_json
from jaxformer.models.parameters import Parameters
from jaxformer.training.logging.plot import plot_loss
from jaxformer.training.logging.progress import short_number
from jaxformer.training.logging.report import parameter_count, wrapped
from jaxformer.training.logging.run_logger import format_metrics
from jaxformer.training.logging.throughput import RunWork

EVALUATION_FILE = "evaluation.json"


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
    """Tracks the validation metric of a run, and decides when the run ends early.

    It ends after `patience` consecutive evaluations without improvement; None disables this. The
    decision depends only on the evaluations, so an interrupted run stops at the same step as an
    uninterrupted one.
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
        """Why the run has ended, as a sentence without the full stop."""
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
        value = cost(self._metric, evaluation.value)
        best = self.best
        better = value is not None and (best is None or value < cost(self._metric, best.value))
        self._worse = 0 if better else self._worse + 1
        self.best = evaluation if better else best
        return better


class GeneratedText(NamedTuple):
    """A source, its reference and the text that the model generates for it."""

    source: str
    reference: str
    text: str
    references: tuple[str, ...] = ()
    """All correct texts, for data that may have several or none; empty if there is none."""


class Conclusion(NamedTuple):
    """The final results of a run."""

    step: int
    """Number of updates of the parameters."""
    rows: int
    """Number of validation rows read."""
    metrics: dict[str, float]
    """The metrics from `Evaluator.evaluate`, and the scores of generated texts."""
    trivial: dict[str, float]
    """The metrics of the best constant prediction, if training data is available."""
    texts: list[GeneratedText]
    """Generated texts for the validation sources, if the data has sources."""

    def save(self, file: AnyPath, folder: AnyPath, data: Data) -> list[Path]:
        """Writes a JSON file, and the generated texts next to it."""
        content = {
            "run": str(folder),
            "step": self.step,
            "rows": self.rows,
            "metrics": _finite(self.metrics),
            "trivial": _finite(self.trivial),
            "data": to_json(data),
        }
        write_json(file, content)
        if not self.texts:
            return [file]
        one, several = data.product
        prefix = "" if file.name == EVALUATION_FILE else f"{file.stem}-"
        beside = file.with_name(f"{prefix}{several}.txt")
        lines = [("source", "reference", one), *(text[:3] for text in self.texts)]
        rows = ("\t".join(" ".join(part.split()) for part in line) for line in lines)
        write_text(beside, "".join(f"{row}\n" for row in rows))
        return [file, beside]


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Returns the metrics with NaN and infinities, which JSON lacks, replaced by None."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def print_conclusion(
    conclusion: Conclusion,
    config: Config,
    folder: AnyPath,
    logs: Path,
    params: Parameters,
    stopping: EarlyStopping,
    sample: str,
) -> Path | None:
    """Writes the results and a plot into the run's folder, and prints a summary."""
    if sample:
        print(f"\n--- a sample of the model's text {'-' * 40}\n{sample}\n{'-' * 72}")
        write_text(logs / "sample.txt", sample)
    files = conclusion.save(logs / EVALUATION_FILE, folder, config.data)
    if conclusion.texts:
        one, several = config.data.product
        title = f"--- some {several} "
        print(f"\n{title:-<72}\n{shown(conclusion.texts, one)}\n{'-' * 72}")
    step = conclusion.step
    tokens = RunWork.of(config).tokens(step)
    subtitle = (
        f"{short_number(parameter_count(params))} parameters · {step:,} steps · "
        f"{short_number(tokens)} tokens"
    )
    curve = plot_loss(logs, folder.name, subtitle)
    trivial = format_metrics(conclusion.trivial)
    has_events = any(isinstance(logger, TensorBoard) for logger in config.train.loggers)
    rows = [
        ("validation", format_metrics(conclusion.metrics)),
        ("to beat", trivial and f"{trivial} (the best constant prediction)"),
        ("best", _best(stopping, config.train.metric, folder)),
        ("evaluation", "\n".join(str(folder / file.name) for file in files)),
        ("loss curve", str(curve and folder / curve.name)),
        ("metrics", f"{folder}/metrics.jsonl"),
        ("", f"tensorboard --logdir {folder}" if has_events else ""),
        ("checkpoint", str(folder / CHECKPOINTS / str(step))),
    ]
    print()
    for name, text in rows:
        if text:
            print(f"{name:<13}" + ("\n" + " " * 13).join(wrapped(text, 67)))
    print("Next:", *_next_commands(config, folder, step, stopping.ended), sep="\n  ")
    return curve


def _best(stopping: EarlyStopping, metric: str, folder: AnyPath) -> str:
    best = stopping.best
    if best is None:
        return ""
    saved = folder / CHECKPOINTS / str(best.step)
    kept = f", {saved}" if saved.exists() else ""
    return f"{metric.replace('_', ' ')} {best.value:.4g} at step {best.step}{kept}"


def _next_commands(config: Config, folder: AnyPath, step: int, ended: bool) -> list[str]:
    settings, model = config.train, config.model
    longer = f"--train.patience {2 * settings.patience}" if ended else f"--train.steps {2 * step}"
    commands = [f"python -m jaxformer inspect {folder}", f"train on: {longer}"]
    if settings.lora is not None:
        return [*commands, f"plain weights: python -m jaxformer merge {folder} {folder}-merged"]
    if config.init_from is not None:
        return [*commands, f"share it: python -m jaxformer export {folder} {folder}-hf"]
    if model.parts:
        return commands  # each part has a separate depth
    deeper = model.num_layers + 2 * len(model.windows)
    change = f"--model.num-layers {deeper} --run-dir {folder}-deeper"
    return [*commands, f"change the model: {change}"]


def shown(texts: Sequence[GeneratedText], kind: str, most: int = 5) -> str:
    """Formats a few evenly spaced texts for display."""
    chosen = [texts[n * len(texts) // most] for n in range(most)]
    names = ("source", "reference", kind)
    return "\n\n".join(
        "\n".join(f"{name:<13}{text}" for name, text in zip(names, item[:3], strict=True))
        for item in dict.fromkeys(chosen)
    )
