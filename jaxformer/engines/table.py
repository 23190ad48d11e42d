"""The table of docs/engines.md: which engine runs which system, measured on small models."""

import datetime
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from jaxformer.engines.base import Engine, Format
from jaxformer.engines.export import ENGINE_FORMATS, HF_ENGINES, export_model, verify_export
from jaxformer.engines.receipts import Receipt
from jaxformer.engines.tiny import PLAIN, save_plain
from jaxformer.errors import ConfigError, DataError, first_line
from jaxformer.extras import EXTRAS
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

HEADING = "## Systems and engines"
"""The heading of the table in docs/engines.md, which has text before it."""
_LEGEND = """
Each cell is the largest difference of an output in float32, and how many of 256 greedy tokens are
equal; bodies write none. The models are small and random, with the features of the published ones.
"-": the format is not offered for this system. "refused": the format or its converter refuses the
model. "differs": the engine computes something else, so that `verify` fails.
"""


@dataclass(frozen=True)
class Row:
    """The measured formats of a model type."""

    model_type: str
    architecture: str
    cells: dict[str, str]
    """What to print for each column."""
    notes: dict[str, str]
    """Why a column has no number."""


def columns() -> list[tuple[Format | None, Engine]]:
    """Returns a format and its first engine for each column; None is the Hugging Face folder."""
    exact = [each for each in ENGINE_FORMATS.values() if not each.is_quantised]
    return [(None, HF_ENGINES[0]), *((each, each.engines[0]) for each in exact)]


def measure_all(show: Callable[[Row], None] = lambda row: None) -> Iterator[Row]:
    """Measures every system in every engine, which must be installed.

    Args:
        show: Called with each row.

    Yields:
        The rows.
    """
    for _, engine in columns():
        engine.require()
    for model_type in PLAIN:
        with tempfile.TemporaryDirectory() as scratch:
            row = _measured(model_type, Path(scratch))
        show(row)
        yield row


def _measured(model_type: str, scratch: Path) -> Row:
    save_plain(model_type, source := scratch / "source")
    model, cells, notes = load(source, dtype=None), {}, {}
    for target, engine in columns():
        out = scratch / (name := engine.name)
        try:
            if target is None:
                save(model, out)
            else:
                export_model(model, out, format=target.name, source=str(source))
            (receipt,) = verify_export(out, [engine], str(source))
            cells[name] = _cell(receipt)
            if receipt.problems:
                notes[name] = "; ".join(receipt.problems)
        except (ConfigError, DataError) as error:
            reason = first_line(error)
            cells[name] = "-" if "must be a model of" in reason else "refused"
            if cells[name] == "refused":
                notes[name] = reason
    return Row(model_type, model.checkpoint.architecture.name, cells, notes)


def _cell(receipt: Receipt) -> str:
    written = f", {receipt.equal_greedy_tokens}" if receipt.greedy_tokens else ""
    differs = "differs: " if receipt.problems else ""
    return f"{differs}{receipt.max_difference:.1e} of {receipt.largest:.1f}{written}"


def engines_page(rows: list[Row], before: str) -> str:
    """Returns the text of docs/engines.md: what is there before the table, and the table."""
    titles = [engine.name for _, engine in columns()]
    lines = [
        f"| `model_type` | class | {' | '.join(titles)} |",
        f"| --- | --- | {' | '.join('---' for _ in titles)} |",
    ]
    lines += [
        f"| `{row.model_type}` | {row.architecture} | "
        f"{' | '.join(row.cells[title] for title in titles)} |"
        for row in rows
    ]
    notes = [
        f"- `{row.model_type}` in {title}: {note}"
        for row in rows
        for title, note in row.notes.items()
    ]
    named = [f"{engine.name} {engine.version}" for _, engine in columns()]
    packages = [EXTRAS[name][0] for name in ("torch", "gguf")]
    named += [f"{name} {version(name)}" for name in packages]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    made = f"Measured on {date} with {', '.join(named)}, by `jaxformer engines`.\n"
    kept, _, _ = before.partition(HEADING)
    return "\n".join(
        [f"{kept}{HEADING}\n", *lines, _LEGEND, *(f"{note}\n" for note in notes), made]
    )
