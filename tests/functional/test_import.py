"""What an import brings in: pure functions and modules need none of the libraries of training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.extras import EXTRAS

FLAX = {"optax", "yaml"}  # which Flax imports itself
HEAVY = {*EXTRAS, "pandas", "tyro"} - FLAX


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("jaxformer.cli.main", {*HEAVY, "jax", "numpy", "rich"}),
        ("jaxformer.functional", {*HEAVY, "flax", "optax", "rich", "jax.experimental.pallas"}),
        ("jaxformer.nn", HEAVY),
        ("jaxformer.models", HEAVY),
    ],
)
def test_an_import_brings_in_nothing_heavy(module, unwanted):
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not unwanted & set(found)
