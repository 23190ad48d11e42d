"""The report on positions: a page, pictures and a table of numbers in one folder."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxformer.errors import ConfigError
from jaxformer.io.tables import write_table
from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page
from jaxformer.lab.positions.biases import alibi_section, t5_section
from jaxformer.lab.positions.codes import (
    binary_section,
    integer_section,
    learned_section,
    sinusoidal_section,
)
from jaxformer.lab.positions.rope import rope_section, scaling_section
from jaxformer.lab.positions.scores import scores_section
from jaxformer.lab.positions.section import Number, PositionsConfig, Section

SECTIONS: dict[str, tuple[Callable[[PositionsConfig], Section], ...]] = {
    "integer": (integer_section,),
    "binary": (binary_section,),
    "sinusoidal": (sinusoidal_section,),
    "learned": (learned_section,),
    "rope": (rope_section, scaling_section),
    "alibi": (alibi_section,),
    "t5": (t5_section,),
}
"""The sections of each scheme; the scores of all schemes follow them."""
_INTRODUCTION = (
    "Attention by itself does not know the order of its tokens. These are the ways to tell it: "
    "codes that are added to the embeddings (integer, binary, sinusoidal, learned), rotations of "
    "queries and keys (RoPE), and biases on the scores (ALiBi, T5)."
)


def write_report(
    config: PositionsConfig, folder: Path, more: Sequence[Section] = ()
) -> list[Number]:
    """Draws and computes everything, and writes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"out = {str(folder)!r}: must be a folder that can be written to ({error.strerror})"
        ) from error
    page = Page("Positional schemes")
    page.text(_INTRODUCTION)
    builders = [each for name in config.schemes for each in SECTIONS.get(name, ())]
    numbers: list[Number] = []
    sections = itertools.chain((build(config) for build in (*builders, scores_section)), more)
    for section in sections:
        _add(page, section, folder)
        numbers += section.numbers
    page.write(folder / "positions.html")
    write_table(folder / "numbers.csv", lambda: (number._asdict() for number in numbers))
    return numbers


def _add(page: Page, section: Section, folder: Path) -> None:
    page.section(section.title)
    page.text(*section.text)
    for picture in section.pictures:
        page.figure(save(picture.figure, folder / f"{picture.name}.png"), picture.caption)
    if section.numbers:
        rows = [number[1:] for number in section.numbers]
        page.table(rows, ("quantity", "setting", "value"), f"{section.title} in numbers")
