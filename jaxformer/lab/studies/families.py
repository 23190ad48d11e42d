"""Compares an encoder-decoder, a prefix decoder and a plain decoder at equal FLOPs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.checks import at_least, check_fields
from jaxformer.config import Config
from jaxformer.data.tasks.algorithmic import RULES, VOCAB_SIZE, Algorithmic, check_task
from jaxformer.functional import RoPE
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.studies.curves import Curve, draw
from jaxformer.lab.studies.extrapolation import short_training
from jaxformer.lab.studies.lengths import score
from jaxformer.lab.studies.report import Section, seeds_text, spread, write_report
from jaxformer.lab.studies.study import Cell, Result
from jaxformer.models import DecoderConfig, EncoderDecoderConfig, ModelConfig
from jaxformer.optim import Cosine, Muon
from jaxformer.training.result import TrainResult

FAMILIES = {"encoder_decoder": "encoder-decoder", "prefix": "prefix decoder", "decoder": "decoder"}
"""The data layouts and the names of the corresponding models."""

_EVALUATIONS = 10
_ROWS = 256


@dataclass(frozen=True)
class Families:
    """Trains an encoder-decoder, a prefix decoder and a decoder on one task, at equal FLOPs.

    The output folder contains a page (index.html), its table (report.md), a figure and all numbers
    (results.csv, results.json). Rerun the same command to continue an interrupted study.
    """

    out: Path = Path("runs/lab-families")
    """The output folder."""
    task: str = "reverse"
    """copy, reverse, parity, addition, sorting or missing_duplicate."""
    seeds: int = 3
    """Number of models per family."""
    steps: int = 800
    """Updates of the plain decoder; the others use the same total FLOPs."""
    length: int = 16
    """Maximum number of symbols of an input."""
    keep_runs: bool = False
    """Keep every run's folder, with its checkpoint."""

    def __post_init__(self):
        check_task(self.task, "lab.task")
        check_fields(self, "lab", seeds=at_least(1), steps=at_least(_EVALUATIONS))

    def steps_of(self, family: str) -> int:
        """Returns how many updates of a family cost as many FLOPs as `steps` of the decoder."""
        share = self.flops_per_step("decoder") / self.flops_per_step(family)
        return max(_EVALUATIONS, math.floor(self.steps * share))

    def flops_per_step(self, family: str) -> float:
        """Returns the FLOPs of a forward and backward pass, counting the allowed keys."""
        config = self.experiment(family, 0, 1)
        tokens = config.data.batch_size * config.row_lengths["inputs"]
        return config.model.flops(config.row_lengths).training(causal=True) * tokens

    def cells(self) -> list[Cell]:
        """Returns the runs of the study, seed by seed."""
        return [
            Cell(
                name=f"{self.task}-{family}-seed{seed}",
                kind=family,
                config=self.experiment(family, seed, self.steps_of(family)),
                settings={},
                measure=partial(measure, self.length),
            )
            for seed, family in product(range(self.seeds), FAMILIES)
        ]

    def experiment(self, family: str, seed: int, steps: int) -> Config:
        """Returns the experiment of a family."""
        data = Algorithmic(
            task=self.task, length=self.length, layout=family, batch_size=64, seed=seed
        )
        train = replace(short_training(steps, seed), eval_interval=max(1, steps // _EVALUATIONS))
        optimizer = Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=50))
        return Config(model=_model(family), data=data, optimizer=optimizer, train=train)


def _model(family: str) -> ModelConfig:
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "num_layers": 2,
        "model_dim": 64,
        "num_heads": 4,
        "mlp_dim": 192,
        "scan_layers": False,
        "position": RoPE(theta=10_000.0),
    }
    if family == "encoder_decoder":
        return EncoderDecoderConfig(**sizes, decoder_position=RoPE(theta=10_000.0))
    return DecoderConfig(**sizes)


def measure(length: int, result: TrainResult) -> dict[str, Any]:
    """Returns the validation accuracy by step, and the scores on the longest inputs."""
    saved = SavedRun(result.folder)
    measured = result.history["validation"]
    longest = saved.config.data.of_length(length, _ROWS).prepare(result.folder).validation
    parameters = saved.read(saved.shapes)
    found = score(saved.model, parameters, longest.epoch(64))
    return {"steps": measured["step"], "accuracies": measured["accuracy"], **found._asdict()}


def write_families(plan: Families, results: Mapping[str, Result]) -> list[Path]:
    """Writes the report of a finished study."""
    rows, curves, records, reached = [], [], [], {}
    for (family, title), colour in zip(FAMILIES.items(), COLOURS, strict=False):
        runs = [results[f"{plan.task}-{family}-seed{seed}"] for seed in range(plan.seeds)]
        for seed, run in enumerate(runs):
            scores = {name: run.measured.get(name) for name in ("loss", "accuracy", "exact_match")}
            records.append({"family": family, "seed": seed, **scores, "diverged": run.diverged})
        whole = [run.measured for run in runs if not run.diverged]
        if not whole:
            rows.append([title, str(plan.steps_of(family)), "–", "–"])
            continue
        flops = plan.flops_per_step(family)
        accuracies = np.array([run["accuracies"] for run in whole])
        curves.append(Curve(title, np.array(whole[0]["steps"]) * flops, accuracies, colour))
        spreads = [spread(run[m] for run in whole) for m in ("accuracy", "exact_match")]
        rows.append([title, str(plan.steps_of(family)), *(each.as_text() for each in spreads)])
        reached[title] = spreads[0].mean
    title = f"{plan.task.replace('_', ' ').capitalize()}: the families at equal FLOPs"
    figure, ((axes,),) = canvas(title, (7.0, 4.6))
    draw(axes, curves, marker="o")
    frame(axes, "", "FLOPs of training (dashed: a guess)", "accuracy of output tokens")
    axes.axhline(RULES[plan.task].chance, color="#888888", linewidth=0.8, linestyle="--")
    axes.legend(frameon=False, fontsize=9)
    budget = plan.steps * plan.flops_per_step("decoder")
    text = [
        f"Each model learns the task with {budget:.2g} FLOPs of training, with "
        f"{seeds_text(plan.seeds)}. A decoder has two blocks, an encoder-decoder two on each "
        "side, of the same width. Accuracy and exact matches are those on new inputs of "
        f"{plan.length} symbols: the mean over the seeds, and in brackets the minimum and the "
        "maximum.",
        "At equal FLOPs, by decreasing accuracy: "
        f"{', '.join(sorted(reached, key=reached.get, reverse=True))}.",
    ]
    header = ["family", "steps", "accuracy", "exact matches"]
    caption = "Validation accuracy against the FLOPs of training; bands span the seeds."
    section = Section("Three families", text, header, rows, figure, caption, "families")
    return write_report(plan.out, "Three families at equal FLOPs", [section], records)
