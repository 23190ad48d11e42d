"""``jaxformer lab positions``: draws and measures positional schemes."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.io.console import console, plain_table
from jaxformer.lab.page import shown
from jaxformer.lab.positions.report import write_report
from jaxformer.lab.positions.section import PositionsConfig
from jaxformer.lab.positions.trained import trained_section
from jaxformer.pretrained.auto import load


@dataclass(frozen=True)
class Positions(PositionsConfig):
    """Draws and measures positional schemes.

    Codes, inner products, wavelengths, equal codes, rotations, RoPE's decay and frequency scaling,
    ALiBi's slopes, T5's buckets, and absolute and relative scores. Writes a page, figures and a
    table of numbers; no model is trained.
    """

    trained: str | None = None
    """The folder of a run or of a Hugging Face checkpoint, or a hub name, whose trained table of
    positions or T5 biases are also drawn.
    """

    out: Path = Path("runs/lab-positions")
    """The output folder for positions.html, numbers.csv and the figures."""


def positions(options: Positions) -> None:
    """Writes the report on positions, and prints its numbers."""
    more = []
    if options.trained is not None:
        more.append(trained_section(load(options.trained), Path(options.trained).name))
    numbers = write_report(options, options.out, more)
    rows = [(*number[:-1], shown(number.value)) for number in numbers]
    titles = ("scheme", "quantity", "setting", "value >")
    console().print(plain_table(*titles, rows=rows, no_wrap=True))
    print(f"\nwritten to {options.out}: positions.html, numbers.csv and the figures")
