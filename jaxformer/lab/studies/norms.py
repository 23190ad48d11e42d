"""Compares pre-norm and post-norm, each with and without learning-rate warm-up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_fields
from jaxformer.config import Config
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.studies.curves import Curve, draw
from jaxformer.lab.studies.extrapolation import short_training, text_experiment
from jaxformer.lab.studies.report import Section, Spread, seeds_text, spread, write_report
from jaxformer.lab.studies.study import Cell, Result
from jaxformer.nn.residual import PostNorm, PreNorm
from jaxformer.optim import AdamW, Constant
from jaxformer.training.result import TrainResult

RESIDUALS = {"pre-norm": PreNorm(), "post-norm": PostNorm()}
_POINTS = 100


@dataclass(frozen=True)
class Norms:
    """Trains pre-norm and post-norm decoders with and without learning-rate warm-up.

    The output folder contains a page (index.html), its table (report.md), a figure and all numbers
    (results.csv, results.json). Rerun the same command to continue an interrupted study.
    """

    out: Path = Path("runs/lab-norms")
    """The output folder."""
    seeds: int = 3
    """Number of models per setting."""
    steps: int = 200
    """Number of updates of a model."""
    layers: int = 8
    """Number of blocks; deeper post-norm models are harder to train."""
    learning_rate: float = 1e-2
    """The learning rate after the warm-up."""
    warmup: int = 50
    """Warm-up steps of the models with warm-up."""
    keep_runs: bool = False
    """Keep every run's folder, with its checkpoint."""

    def __post_init__(self):
        counts = ("seeds", "steps", "layers", "warmup")
        rules = dict.fromkeys(counts, at_least(1))
        check_fields(self, "lab", **rules, learning_rate=POSITIVE)

    def cells(self) -> list[Cell]:
        """Returns the runs of the study, seed by seed."""
        warmups = (self.warmup, 0)
        settings = product(range(self.seeds), RESIDUALS, warmups)
        return [
            Cell(cell_name(norm, warmup, seed), "norm", self._config(norm, warmup, seed), {}, curve)
            for seed, norm, warmup in settings
        ]

    def _config(self, norm: str, warmup: int, seed: int) -> Config:
        base = text_experiment(self.out)
        model = replace(
            base.model,
            num_layers=self.layers,
            model_dim=64,
            mlp_dim=176,
            residual=RESIDUALS[norm],
            depth_scaled_init=False,
        )
        data = replace(base.data, sequence_length=64, batch_size=16, seed=seed)
        schedule = Constant(learning_rate=self.learning_rate, warmup_steps=warmup)
        train = replace(
            short_training(self.steps, seed),
            clip_norm=None,
            log_interval=max(1, self.steps // _POINTS),
        )
        return replace(
            base, model=model, data=data, optimizer=AdamW(schedule=schedule), train=train
        )


def cell_name(norm: str, warmup: int, seed: int) -> str:
    """Returns the name of a run."""
    return f"{norm}-{f'warmup{warmup}' if warmup else 'no-warmup'}-seed{seed}"


def curve(result: TrainResult) -> dict[str, Any]:
    """Returns the training loss by step and the final validation loss."""
    measured = result.history["train"]
    return {
        "steps": measured["step"],
        "losses": measured["loss"],
        "gradient_norms": measured["gradient_norm"],
        "validation_loss": result.metrics["loss"],
    }


def write_norms(plan: Norms, results: Mapping[str, Result]) -> list[Path]:
    """Writes the report of a finished study."""
    rows, curves, records = [], [], []
    final: dict[tuple[str, int], Spread] = {}
    for (norm, warmup), colour in zip(product(RESIDUALS, (plan.warmup, 0)), COLOURS, strict=False):
        runs = [results[cell_name(norm, warmup, seed)] for seed in range(plan.seeds)]
        whole = [run.measured for run in runs if not run.diverged]
        words = f"{warmup} steps" if warmup else "none"
        for seed, run in enumerate(runs):
            loss = run.measured.get("validation_loss")
            labels = {"norm": norm, "warmup": warmup, "seed": seed}
            records.append(labels | {"validation_loss": loss, "diverged": run.diverged})
        if whole:
            name = f"{norm}, {'warm-up' if warmup else 'no warm-up'}"
            values = np.array([run["losses"] for run in whole])
            dash = "-" if warmup else "--"
            curves.append(Curve(name, whole[0]["steps"], values, colour, dash))
            final[norm, warmup] = spread(run["validation_loss"] for run in whole)
        cell = final[norm, warmup].as_text() if whole else "–"
        rows.append([norm, words, cell, f"{len(runs) - len(whole)} of {len(runs)}"])
    header = ["norm", "warm-up", "validation loss", "diverged"]
    title = f"{plan.layers} blocks, Adam at {plan.learning_rate:g}, gradients not clipped"
    figure, ((axes,),) = canvas(title, (7.0, 4.6))
    draw(axes, curves)
    frame(axes, "", "step", "training loss (nats per token)")
    axes.legend(frameon=False, fontsize=9)
    caption = "Training loss; bands span the seeds."
    text = [
        f"Decoders of {plan.layers} blocks are trained on text for {plan.steps} steps with "
        f"{seeds_text(plan.seeds)}; they differ in where the norm is and whether the learning "
        f"rate of {plan.learning_rate:g} is reached over {plan.warmup} steps or at once. The loss "
        "is in nats per token: the mean over the seeds, and in brackets the minimum and the "
        "maximum.",
        *_sentence(plan, final),
    ]
    section = Section("Norms and warm-up", text, header, rows, figure, caption, "norms")
    return write_report(plan.out, "Pre-norm and post-norm", [section], records)


def _sentence(plan: Norms, final: Mapping[tuple[str, int], Spread]) -> list[str]:
    """Describes how much the final loss of each norm depends on the warm-up."""
    changes = []
    for norm in RESIDUALS:
        sides = [final.get((norm, warmup)) for warmup in (plan.warmup, 0)]
        if None not in sides:
            changes.append(f"that of {norm} by {sides[1].mean - sides[0].mean:+.2f}")
    if not changes:
        return []
    return [f"Without the warm-up the final loss changes: {', '.join(changes)} nats."]
