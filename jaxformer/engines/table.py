"""The table of docs/engines.md: which engine runs which system, measured on small models."""

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from jaxformer.engines.base import Engine, Format
from jaxformer.engines.export import ENGINE_FORMATS, HF_ENGINES, export_model, verify_export
from jaxformer.engines.receipts import Receipt
from jaxformer.engines.tiny import PLAIN, save_plain
from jaxformer.errors import ConfigError, DataError, did_you_mean, first_line
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


def measure_all(
    show: Callable[[Row], None] = lambda row: None, only: Sequence[str] = ()
) -> Iterator[Row]:
    """Measures systems in every engine, which must be installed.

    Args:
        show: Called with each row.
        only: The model types to measure; none: all.

    Yields:
        The rows.

    Raises:
        ConfigError: A model type is none of those of the table.
    """
    for model_type in only:
        if model_type not in PLAIN:
            raise ConfigError(
                f"--only {model_type}: must be among {', '.join(PLAIN)}"
                f"{did_you_mean(model_type, PLAIN)}"
            )
    for _, engine in columns():
        engine.require()
    for model_type in only or PLAIN:
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
    """Returns the text of docs/engines.md.

    Args:
        rows: The rows that were measured.
        before: The page, whose text before the table stays, and so do the rows of other systems.

    Returns:
        The page.
    """
    kept, _, table = before.partition(HEADING)
    older = table.splitlines()
    names = [row.model_type for row in rows]
    others = {
        name: line
        for line in older
        if line.startswith("| `") and (name := line.split("`")[1]) in PLAIN and name not in names
    }
    titles = [engine.name for _, engine in columns()]
    lines = others | {
        row.model_type: f"| `{row.model_type}` | {row.architecture} | "
        f"{' | '.join(row.cells[title] for title in titles)} |"
        for row in rows
    }
    notes = [line for line in older if line.startswith("- `") and line.split("`")[1] in others]
    notes += [
        f"- `{row.model_type}` in {title}: {note}"
        for row in rows
        for title, note in row.notes.items()
    ]
    made = [line for line in older if "easured on" in line] if others else []
    made.append(_measured_with(names if others else []))
    return "\n".join(
        [
            f"{kept}{HEADING}\n",
            f"| `model_type` | class | {' | '.join(titles)} |",
            f"| --- | --- | {' | '.join('---' for _ in titles)} |",
            *(lines[name] for name in PLAIN if name in lines),
            _LEGEND,
            *(f"{line}\n" for line in (*notes, *made)),
        ]
    )


def _measured_with(only: Sequence[str]) -> str:
    """When and with what the table was measured, or the rows of some model types."""
    named = [f"{engine.name} {engine.version}" for _, engine in columns()]
    packages = [EXTRAS[name][0] for name in ("torch", "gguf")]
    named += [f"{name} {version(name)}" for name in packages]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = ", ".join(f"`{name}`" for name in only)
    options = f" --only {' '.join(only)}" if only else ""
    return (
        f"{f'{rows}: measured' if only else 'Measured'} on {date} with {', '.join(named)}, "
        f"by `jaxformer engines{options}`."
    )
