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
    folder then has one page (index.html), its tables (report.md), pictures, and all numbers
    (results.csv, results.json). The default takes about an hour on two cores. The same
    command, given again, continues where it was stopped.
    """

    out: Path = Path("runs/lab-extrapolate")
    """The folder of all files."""
    schemes: str = "all"
    """The schemes, between commas: none,integer,binary,sinusoidal,learned,t5,alibi,rope,
    rope-linear,rope-yarn. The last two stretch the frequencies of a trained RoPE in tests."""
    tasks: str = "all"
    """What is learned, between commas: text,copy,reverse,parity,addition,sorting,
    missing_duplicate."""
    seeds: int = 3
    """Models of each scheme and task."""
    steps: int = 250
    """Updates of a model of text."""
    task_steps: int = 600
    """Updates of a model of an algorithmic task."""
    text_length: int = 128
    """Tokens of a training row of text."""
    task_length: int = 16
    """The most symbols of a training input of a task."""
    factors: str = "1,2,4,8,16"
    """The lengths of the tests, as multiples of the training length, between commas."""
    keep_runs: bool = False
    """Keep every run's folder, with its checkpoint: gigabytes."""

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
    """Trains what is not trained yet, then writes the report and names its files."""
    results = study.run(cells)
    if results is not None:
        for file in write(results):
            print(f"written to {file}")


def _factors(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise ArgumentError(
            f"--factors {text!r}: must be whole numbers of at least 1 between commas: 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))
