"""``jaxformer goodput RUN_DIR``: shows how the wall time of a run was spent."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import RunDir
from jaxformer.io.console import console, plain_table
from jaxformer.training.logging.goodput import LOST, Goodput, Start, in_rows
from jaxformer.training.logging.goodput import goodput as find_goodput
from jaxformer.training.logging.goodput_plot import plot_goodput
from jaxformer.training.logging.progress import duration


@dataclass(frozen=True)
class GoodputOptions:
    """Shows how the wall time of a run was spent, including restarts.

    Prints a table and draws a plot of the time for start-up, compilation, data, steps, evaluation
    and saving, of work that was lost and repeated after a restart, and of downtime between starts.
    """

    run_dir: RunDir
    """The run's folder."""
    out: Path = Path("goodput.png")
    """The picture."""
    json: bool = False
    """Print only JSON."""


def goodput(options: GoodputOptions) -> None:
    """Prints and draws how the wall time of a run was spent."""
    found = find_goodput(options.run_dir)
    picture = plot_goodput(found, options.out, str(options.run_dir))
    if options.json:
        print(json.dumps(found.as_json(), indent=1))
        return
    _print(found, str(options.run_dir))
    print(picture)


def _print(found: Goodput, name: str) -> None:
    out = console()
    out.print(
        f"{name}: goodput {found.share:.1%}, of {duration(found.wall)} from the first start to the "
        "last row",
        highlight=False,
    )
    parts = in_rows(found.parts, found.wall)
    rows = [(duration(took), f"{share:.1%}", part, meaning) for part, took, share, meaning in parts]
    options = {"no_wrap": True, "pad_edge": True, "show_header": False}
    out.print(plain_table(">", ">", "", "", rows=rows, **options))
    titles = ("start >", "began", "took >", "steps >", "lost >", "")
    rows = [(str(number), *_row(start)) for number, start in enumerate(found.starts, 1)]
    out.print(plain_table(*titles, rows=rows, pad_edge=True))


def _row(start: Start) -> tuple[str, ...]:
    first = start.rows[0].step
    last = start.rows[-1].step
    kept = start.kept.step
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.began))
    lost = f"{last - kept} steps, {duration(start.seconds[LOST])}" if last > kept else ""
    took = duration(start.end - start.began)
    steps = f"{first} to {last}"
    return began, took, steps, lost, "" if start.rows[-1].ended else "no last row"
