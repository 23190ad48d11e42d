"""``jaxformer lab extrapolate``, ``norms``, ``families``: studies that train small models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxformer.config.overrides import parse
from jaxformer.errors import ArgumentError
from jaxformer.lab.studies.extrapolation import TASKS, Extrapolation, prepare_text
from jaxformer.lab.studies.extrapolation_report import write_extrapolation
from jaxformer.lab.studies.families import Families, write_families
from jaxformer.lab.studies.norms import Norms, write_norms
from jaxformer.lab.studies.schemes import SCHEMES, chosen
from jaxformer.lab.studies.study import Cell, Result, Study


@dataclass(frozen=True)
class Extrapolate:
    """Trains small decoders at one length and tests them at longer ones.

    Every positional scheme is trained on text and on algorithmic tasks, with several seeds. The
    output folder contains a page (index.html), its tables (report.md), figures, and all numbers
    (results.csv, results.json). The default takes about an hour on two cores. Rerun the same
    command to continue an interrupted study.
    """

    out: Path = Path("runs/lab-extrapolate")
    """The output folder."""
    schemes: str = "all"
    """Comma-separated schemes: none,integer,binary,sinusoidal,learned,t5,alibi,rope,
    rope-linear,rope-yarn. The last two stretch the frequencies of a trained RoPE at test time.
    """
    tasks: str = "all"
    """Comma-separated tasks: text,copy,reverse,parity,addition,sorting, missing_duplicate."""
    seeds: int = 3
    """Number of models per scheme and task."""
    steps: int = 250
    """Updates of a text model."""
    task_steps: int = 600
    """Updates of a model for an algorithmic task."""
    text_length: int = 128
    """Tokens per training row of text."""
    task_length: int = 16
    """Maximum number of symbols of a task's training input."""
    factors: str = "1,2,4,8,16"
    """Comma-separated test lengths, as multiples of the training length."""
    keep_runs: bool = False
    """Keep every run's folder with its checkpoint, which takes gigabytes."""

    @property
    def plan(self) -> Extrapolation:
        """The study that the options describe."""
        return Extrapolation(
            folder=self.out,
            schemes=chosen(self.schemes, SCHEMES, "--schemes"),
            tasks=chosen(self.tasks, TASKS, "--tasks"),
            seeds=self.seeds,
            steps=self.steps,
            task_steps=self.task_steps,
            text_length=self.text_length,
            task_length=self.task_length,
            factors=_factors(self.factors),
        )


def extrapolate(arguments: Sequence[str], prog: str) -> None:
    """Runs the study of positional schemes, and writes its report."""
    options = parse(Extrapolate, arguments, prog)
    plan = options.plan
    plan.prepare()
    _finish(Study(plan.folder, options.keep_runs), plan.cells(), partial(write_extrapolation, plan))


def norms(arguments: Sequence[str], prog: str) -> None:
    """Runs the study of norms, and writes its report."""
    plan = parse(Norms, arguments, prog)
    prepare_text(plan.out)
    _finish(Study(plan.out, plan.keep_runs), plan.cells(), partial(write_norms, plan))


def families(arguments: Sequence[str], prog: str) -> None:
    """Runs the study of families, and writes its report."""
    plan = parse(Families, arguments, prog)
    _finish(Study(plan.out, plan.keep_runs), plan.cells(), partial(write_families, plan))


def _finish(
    study: Study, cells: Sequence[Cell], write: Callable[[dict[str, Result]], list[Path]]
) -> None:
    """Trains the unfinished models, then writes the report and prints its file names."""
    results = study.run(cells)
    if results is not None:
        for file in write(results):
            print(f"written to {file}")


def _factors(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise ArgumentError(
            f"--factors {text!r}: must be comma-separated integers of at least 1: 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))
