"""A checkpoint that is fine-tuned by commands, in one go and in two."""

import json
from pathlib import Path

from saved_folders import assert_same_parameters

import jaxformer
from jaxformer.cli.main import main


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
