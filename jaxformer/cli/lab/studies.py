"""``jaxformer lab extrapolate``, ``norms``, ``families``: studies that train small models."""

from collections.abc import Callable
from pathlib import Path

from jaxformer.lab.studies.extrapolation import Extrapolation, prepare_text
from jaxformer.lab.studies.extrapolation_report import write_extrapolation
from jaxformer.lab.studies.families import Families, write_families
from jaxformer.lab.studies.norms import Norms, write_norms
from jaxformer.lab.studies.study import Study


def extrapolate(plan: Extrapolation) -> None:
    """Runs the study of positional schemes, and writes its report."""
    plan.prepare()
    _finish(plan, write_extrapolation)


def norms(plan: Norms) -> None:
    """Runs the study of norms, and writes its report."""
    prepare_text(plan.out)
    _finish(plan, write_norms)


def families(plan: Families) -> None:
    """Runs the study of families, and writes its report."""
    _finish(plan, write_families)


def _finish(plan: Extrapolation | Norms | Families, write: Callable[..., list[Path]]) -> None:
    """Trains the unfinished models, then writes the report and prints its file names."""
    results = Study(plan.out, plan.keep_runs).run(plan.cells())
    if results is not None:
        for file in write(plan, results):
            print(f"written to {file}")
