"""``jaxformer zoo``: the published systems."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from jaxformer.config.overrides import parse
from jaxformer.zoo import SYSTEMS


@dataclass(frozen=True)
class Zoo:
    """Lists the published systems.

    Shows the family, positions and norm of each, how many parameters its authors give and this
    library makes, and the config that trains it: `jaxformer train bert:base`.
    """


def zoo(arguments: Sequence[str], prog: str) -> None:
    """Prints the table of published systems."""
    parse(Zoo, arguments, prog)
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for title in ("system", "family", "positions", "norm"):
        table.add_column(title, no_wrap=True)
    for title in ("published", "computed"):
        table.add_column(title, justify="right", no_wrap=True)
    if has_room := console.width >= 126:
        table.add_column("jaxformer train ...", no_wrap=True)
    for system in SYSTEMS.values():
        config = [system.recipe.replace(".py", "")] if has_room else []
        table.add_row(
            system.name,
            system.family,
            type(system.config.position).__name__,
            f"{type(system.config.residual).__name__}, {type(system.config.norm).__name__}",
            system.published,
            f"{system.count_parameters():,}",
            *config,
        )
    console.print(table)
    print("\nWhere the two differ, the published number counts")
    for system in filter(lambda system: system.note, SYSTEMS.values()):
        print(f"  {system.name}: {system.note}")
