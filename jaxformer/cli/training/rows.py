"""``jaxformer rows CONFIG``: the first rows of the data, as the model sees them."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import copytree
from typing import Annotated

import jax
import tyro
from rich.text import Text

from jaxformer.checkpoints.run_dir import CONFIG_FILE, KEPT, kept_files
from jaxformer.checks import at_least, check_fields
from jaxformer.cli.training.train import Launch, launched
from jaxformer.config.experiment import Config
from jaxformer.data.dataset import Batch
from jaxformer.data.shown_rows import Column, RowReader
from jaxformer.io.console import console, plain_table
from jaxformer.io.paths import AnyPath, run_path
from jaxformer.training.logging.report import print_row
from jaxformer.training.resolve import fill

_MOST_CHARACTERS = 10_000
_DESCRIPTION = """\
Shows the first rows of a config's training data as the model sees them: texts with the training
targets marked, each token with its target, weight and segment, and labels, spans and images.
CONFIG and its options are the same as for `jaxformer train`: replace `train` with `rows`. Nothing
is trained or written; if the run exists, its tokenizer and labels are used.

Rows are in the order of the data, which training shuffles; random choices (masks, crops) differ in
training.

Configs: {names}"""


@dataclass(frozen=True)
class Rows(Launch):
    """Shows the first rows of a config's data."""

    rows: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 2
    """Number of rows to show."""
    tokens: int = 24
    """Number of tokens to list per row."""
    json: bool = False
    """Print one JSON object per row, with all arrays."""

    def __post_init__(self):
        check_fields(self, "rows", rows=at_least(1), tokens=at_least(0))


def rows(arguments: Sequence[str], prog: str = "jaxformer rows") -> None:
    """Prints the first rows of the configured experiment."""
    jax.config.update("jax_platforms", "cpu")  # no accelerator is needed, and it may be busy
    arguments = ["--rows" if word == "-n" else word for word in arguments]
    options = launched(Rows, arguments, prog, _DESCRIPTION, lambda _: None)
    folder = run_path(options.run_dir, "run_dir")
    folder = None if options.fresh else folder
    config = fill(options.experiment, folder).config
    with _rows(config, folder) as (reader, found):
        for number, row in enumerate(islice(found, options.rows)):
            if options.json:
                shown = {"row": number, **reader.as_json(row)}
                print(json.dumps(shown, ensure_ascii=False))
                continue
            print_row(f"row {number}", reader, row, most=_MOST_CHARACTERS)
            for name, sequence in reader.sequences(row).items():
                for columns in reader.columns(sequence):
                    _print_tokens(name, columns, options.tokens)


@contextmanager
def _rows(config: Config, folder: AnyPath | None) -> Iterator[tuple[RowReader, Iterator[Batch]]]:
    """Yields the rows, prepared in a temporary folder."""
    with tempfile.TemporaryDirectory() as home:
        if folder is not None and (folder / CONFIG_FILE).is_file():
            kept = kept_files(folder)

            def ignored(inside: str, names: list[str]) -> list[str]:
                return [name for name in names if Path(inside) == kept and name not in KEPT]

            copytree(kept, home, ignore=ignored, dirs_exist_ok=True)
        data = config.data.prepare(home)
        yield RowReader(config.data.head, data.tokenizer, data.labels), data.train.rows()


def _print_tokens(name: str, columns: Sequence[Column], most: int) -> None:
    """Prints a line per token with its value in every array."""
    size = min(most, *(len(column.words) for column in columns)) if columns else 0
    if not size:
        return
    titles = [">"]
    for column in columns:
        titles += [column.name, "id >"] if column.is_named else [f"{column.name} >"]
    table = plain_table(*titles, title=name or None, title_justify="left")
    for place in range(size):
        cells = [str(place)]
        for column in columns:
            cells.append(column.words[place])
            cells += [str(column.values[place])] if column.is_named else []
        table.add_row(*map(Text, cells))
    console().print(table)
    left = len(columns[0].words) - size
    print(f"... and {left:,} more (--tokens)\n" if left else "")
