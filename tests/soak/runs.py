"""Runs small enough to be killed and damaged many times, made once and copied for each attack."""

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tiny_run import losses_of

from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.checkpoints.checkpointer import content_hash
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.cli import main as cli
from jaxformer.training.logging.metrics_writer import MetricsLog

TEXT = """
from dataclasses import replace

from tiny_run import tiny_config

from jaxformer.data import TextFiles

def get_config():
    config = tiny_config(eval_interval=4, keep=3, gradient_accumulation=1)
    corpus = {{"source": TextFiles({corpus!r}), "validation_fraction": 0.2}}
    return replace(config, data=replace(
        config.data, **corpus, sequence_length=32, max_validation_batches=1
    ))
"""
"""Packed bytes, with dropout."""

LABELS = """
from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.functional.positions.schemes import Learned
from jaxformer.models import Classification, EncoderConfig
from jaxformer.optim.optimizers import AdamW
from jaxformer.optim.schedules import Constant

def get_config():
    return Config(
        EncoderConfig(
            vocab_size=128, num_layers=1, model_dim=16, num_heads=2, mlp_dim=16,
            position=Learned(16), heads=(Classification(num_labels=2),), compute_dtype="float32",
            scan_layers=False,
        ),
        LabelledText(
            train={rows!r}, sequence_length=16, batch_size=4, validation_fraction=0.3,
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=100), truncate=True,
        ),
        AdamW(schedule=Constant(warmup_steps=0)),
        TrainConfig(steps=12, eval_interval=4, checkpoint_interval=4, sample_tokens=0, keep=3),
    )
"""
"""A trained tokenizer and labels."""

CAUGHT_UP = ("evaluation.json", "loss.png", "tensorboard")
"""What the end of a run writes, and no start reads."""


@functools.cache
def write_experiments(folder: Path) -> dict[str, Path]:
    """Writes the experiments and what they read; returns their files by name."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number in range(12):
        words = "The dog chased another dog, which ran. " * 8
        (corpus / f"{number}.txt").write_text(f"{number} {words}")
    rows = "".join(f"text {n} of some words\t{'ab'[n % 2]}\n" for n in range(40))
    (folder / "rows.tsv").write_text("sentence\tlabel\n" + rows)
    experiments = {
        "text": TEXT.format(corpus=str(corpus)),
        "labels": LABELS.format(rows=str(folder / "rows.tsv")),
    }
    for name, text in experiments.items():
        (folder / f"{name}.py").write_text(text)
    return {name: folder / f"{name}.py" for name in experiments}


def train(*arguments: object) -> int:
    """Runs `jaxformer train` in this process; returns the exit status."""
    return cli.main(["train", *map(str, arguments)])


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run that stopped after two of three checkpoints, and what is right about it."""

    experiment: Path
    folder: Path
    parameters: dict[str, int]
    """The step of each hash of the parameters at a checkpoint."""
    contents: dict[str, int]
    """The step of each content hash, that of the run when it has ended included."""
    losses: list[tuple]
    """What an undisturbed run measures."""

    def copy(self, target: Path) -> Path:
        """A copy to spoil."""
        return Path(shutil.copytree(self.folder, target))


@functools.cache
def whole_run(home: Path, name: str) -> Whole:
    """Trains an experiment to its end, once for all parts, then takes the end away.

    Args:
        home: The folder that the parts share.
        name: Of the experiment: "text" or "labels".
    """
    experiment, folder = write_experiments(home)[name], home / f"whole-{name}"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        status = train(experiment, "--run-dir", folder)
    assert status == 0, experiment
    checkpoints = folder / "checkpoints"
    steps = checkpoint_files.saved_steps(checkpoints)
    contents = {content_hash(read_arrays(checkpoints / str(step))): step for step in steps}
    last = steps.pop()
    shutil.rmtree(checkpoints / str(last))
    for item in (folder / written for written in CAUGHT_UP):
        shutil.rmtree(item) if item.is_dir() else item.unlink(missing_ok=True)
    rows = losses_of(folder)
    MetricsLog(folder, steps[-1]).close()  # drops those after the step
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    parameters = {
        content_hash(read_arrays(checkpoints / str(step), ("params/",))): step for step in steps
    }
    return Whole(experiment, folder, parameters, contents, rows)


def parameters_hash(parameters: Mapping[str, np.ndarray]) -> str:
    """The content hash of parameters alone."""
    return content_hash((f"params/{name}", array) for name, array in parameters.items())
