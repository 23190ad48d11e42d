"""``jaxformer lab softmax``, ``mask``, ``two-dogs``, ``cost``, ``recall``: small experiments."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import ModelChoice
from jaxformer.io.console import console, plain_table
from jaxformer.lab.experiments.cost import CostConfig, cost_report
from jaxformer.lab.experiments.mask_order import mask_order_report
from jaxformer.lab.experiments.recall import RecallConfig, recall_report
from jaxformer.lab.experiments.report import Report
from jaxformer.lab.experiments.softmax_scale import softmax_scale_report
from jaxformer.lab.experiments.two_dogs import two_dogs_report
from jaxformer.lab.page import shown
from jaxformer.pretrained.auto import load


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """Measures the effect of dividing scores by sqrt(d_k) on their variance and on the softmax."""

    head_dims: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    """The widths of a head (d_k) to measure."""
    num_keys: int = 64
    """Number of keys per query."""
    seed: int = 0
    """Seed of the random queries and keys."""
    out: Path = Path("runs/lab-softmax")
    """The output folder for softmax.html and softmax.png."""


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Compares adding -inf before the softmax with multiplying by the mask after it."""

    length: int = 12
    """Number of queries and keys."""
    seed: int = 0
    """Seed of the random scores."""
    out: Path = Path("runs/lab-mask")
    """The output folder for mask.html and mask.png."""


@dataclass(frozen=True, kw_only=True)
class TwoDogs(ModelChoice):
    """Shows that without positions, identical tokens have identical outputs."""

    text: str = "the dog and the other dog"
    """A text in which some token occurs twice."""
    out: Path = Path("runs/lab-two-dogs")
    """The output folder for two-dogs.html and two-dogs.png."""


@dataclass(frozen=True, kw_only=True)
class Cost(CostConfig):
    """Measures how time and memory of attention, a GRU and a convolution grow with the length."""

    out: Path = Path("runs/lab-cost")
    """The output folder for cost.html and cost.png."""


@dataclass(frozen=True, kw_only=True)
class Recall(RecallConfig):
    """Trains attention, a GRU and a convolution to recall earlier tokens.

    Takes about a minute. `jaxformer lab cost` measures the same layers against the length.
    """

    out: Path = Path("runs/lab-recall")
    """The output folder for recall.html and recall.png."""


def softmax(options: Softmax) -> None:
    """Runs the experiment on the scale of scores."""
    finish(softmax_scale_report(options.head_dims, options.num_keys, options.seed), options.out)


def mask(options: Mask) -> None:
    """Runs the experiment on the order of mask and softmax."""
    finish(mask_order_report(options.length, options.seed), options.out)


def two_dogs(options: TwoDogs) -> None:
    """Runs the experiment on identical tokens."""
    model = load(options.folder, **options.how)
    finish(two_dogs_report(model, options.text), options.out)


def cost(options: Cost) -> None:
    """Runs the experiment on time and memory."""
    finish(cost_report(options), options.out)


def recall(options: Recall) -> None:
    """Runs the experiment on recall."""
    finish(recall_report(options), options.out)


def finish(report: Report, out: Path) -> None:
    """Writes the files of an experiment, and prints its table and its finding."""
    page = report.write(out)
    titles = []
    for number, title in enumerate(report.header):
        has_words = any(isinstance(row[number], str) for row in report.rows)
        titles.append(title if has_words else f"{title} >")
    rows = (map(shown, row) for row in report.rows)
    console().print(plain_table(*titles, rows=rows), markup=False)
    print(f"\n{report.finding}\nwritten: {page}, and {page.with_suffix('.png').name} next to it")
