"""Shipped experiments that start from a checkpoint; one that is tuned in one go and in two."""

import json
from dataclasses import replace
from pathlib import Path

from saved_folders import assert_same_parameters

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import Config, load_config
from jaxformer.config.shipped import config_spec


def shipped(name: str, origin: str | Path, steps: int = 1, **data) -> Config:
    """A shipped experiment that starts from a checkpoint, cut short."""
    config = load_config(config_spec(name))
    small = {"batch_size": 8, "max_validation_batches": 1, "validation_fraction": 0.3}
    return replace(
        config,
        init_from=str(origin),
        data=replace(config.data, **small | data),
        train=replace(config.train, steps=steps, epochs=None, log_interval=1),
    )


def tune(command: list[str], folder: Path) -> dict[str, float]:
    """Trains for four steps into `a`, and evaluates and exports it into `hf`; returns the metrics.

    A run `b` that stops after two steps ends with the same parameters, bit for bit.
    """
    for name, steps in (("a", "4"), ("b", "2"), ("b", "4")):
        assert main([*command, "--train.steps", steps, "--run-dir", str(folder / name)]) == 0
    assert_same_parameters(*(jaxformer.load(folder / name, dtype=None) for name in "ab"))
    results = folder / "a" / "evaluation.json"
    measured = json.loads(results.read_text())["metrics"]
    assert main(["evaluate", str(folder / "a")]) == 0
    assert json.loads(results.read_text())["metrics"] == measured
    assert main(["export", str(folder / "a"), str(folder / "hf")]) == 0
    return measured
