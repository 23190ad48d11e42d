"""The table of docs/engines.md: systems and engines, measured on small models."""

import datetime
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax

from jaxformer.engines.base import Engine, Format
from jaxformer.engines.export import (
    ENGINE_FORMATS,
    HF_ENGINES,
    description_of,
    export_model,
)
from jaxformer.engines.receipts import Receipt, answers_of, measure
from jaxformer.engines.speech import reference_of
from jaxformer.engines.tiny import PLAIN, save_plain
from jaxformer.errors import ConfigError, DataError, did_you_mean, first_line
from jaxformer.extras import EXTRAS
from jaxformer.io.console import markdown_table
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

HEADING = "## Systems and engines"
"""The heading of the table in docs/engines.md, after other text."""
_TYPE, _CLASS, _NEVER = "`model_type`", "class", "not measured"
_NOTE = re.compile(r"- `(.+?)` in (\S+): (.*)")
_LEGEND = """
Each cell is the largest difference of an output in float32, and how many of 256 greedy tokens are
equal; bodies write none. The models are small and random, with the features of the published ones.
"-": the format is not offered for this system. "refused": the format, its converter or the engine
refuses the model. "differs": the engine computes something else, so that `verify` fails.
"""


@dataclass(frozen=True)
class Row:
    """The measured columns of a model type."""

    model_type: str
    architecture: str
    cells: dict[str, str]
    """The cells by engine."""
    notes: dict[str, str]
    """Explanations of columns without a number."""


def columns() -> list[tuple[Format | None, Engine]]:
    """Returns the format and engine of each column; None is the Hugging Face folder.

    MLX-LM, which also reads this folder, has its own format.
    """
    exact = [each for each in ENGINE_FORMATS.values() if not each.is_quantised]
    return [(None, HF_ENGINES[0]), *((each, engine) for each in exact for engine in each.engines)]


def measure_all(only: Sequence[str] = (), engines: Sequence[str] = ()) -> Iterator[Row]:
    """Measures model types in installed engines, by default all.

    Raises:
        ConfigError: A model type or an engine is not in the table.
    """
    titles = [engine.name for _, engine in columns()]
    for option, names, known in (("only", only, list(PLAIN)), ("engines", engines, titles)):
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"--{option} {name}: must be among {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
    chosen = [each for each in columns() if each[1].name in (engines or titles)]
    for _, engine in chosen:
        engine.require()
    for model_type in only or PLAIN:
        with tempfile.TemporaryDirectory() as scratch:
            row = _measured(model_type, chosen, Path(scratch))
        yield row


def _measured(
    model_type: str, chosen: Sequence[tuple[Format | None, Engine]], scratch: Path
) -> Row:
    save_plain(model_type, source := scratch / "source")
    model, cells, notes = load(source, dtype=None), {}, {}
    reference = reference_of(load(source))
    answers = answers_of(reference)
    for target, engine in chosen:
        name = engine.name
        out = scratch / ("hf" if target is None else target.name)
        try:
            if target is None:
                save(model, out)
            elif not out.exists():  # engines of the same format read the same files
                export_model(model, out, format=target.name, source=str(source))
            receipt = measure(engine, out, description_of(out), reference, answers)
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
    """Returns docs/engines.md with newly measured rows, all in the same engines.

    The text above the table in `before` is kept, and so are rows of other systems and columns of
    other engines.
    """
    kept, _, table = before.partition(HEADING)
    older = table.splitlines()
    titles = [engine.name for _, engine in columns()]
    measured = [title for title in titles if title in rows[0].cells]
    lines = {name: cells for name, cells in _older_rows(older).items() if name in PLAIN}
    systems = [row.model_type for row in rows]
    some_rows = systems if lines.keys() - systems else []
    some_columns = measured if len(measured) < len(titles) else []
    for row in rows:
        cells = {**lines.get(row.model_type, {}), **row.cells, _CLASS: row.architecture}
        lines[row.model_type] = cells
    notes = {(row.model_type, title): note for row in rows for title, note in row.notes.items()}
    for line in older:
        if note := _NOTE.match(line):
            name, title, reason = note.groups()
            if name in PLAIN and not (name in systems and title in measured):
                notes[name, title] = reason
    made = [line for line in older if "easured on" in line] if some_rows or some_columns else []
    made.append(_measured_with(some_rows, some_columns))
    shown = [
        (f"`{name}`", *(lines[name].get(title, _NEVER) for title in (_CLASS, *titles)))
        for name in PLAIN
        if name in lines
    ]
    return "\n".join(
        [
            f"{kept}{HEADING}\n",
            *markdown_table((_TYPE, _CLASS, *titles), shown),
            _LEGEND,
            *(f"- `{name}` in {title}: {note}\n" for (name, title), note in notes.items()),
            *(f"{line}\n" for line in made),
        ]
    )


def _older_rows(lines: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the cells of a table by row and column name."""
    found = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {
        name.strip("`"): dict(zip(found[0][1:], cells, strict=True)) for name, *cells in found[1:]
    }


def _measured_with(only: Sequence[str], engines: Sequence[str]) -> str:
    """Describes when and with which versions the table, or a part of it, was measured."""
    measured = [engine for _, engine in columns() if not engines or engine.name in engines]
    versions = {engine.name: engine.version for engine in measured}
    versions |= {"jax": jax.__version__}
    versions |= {name: version(EXTRAS[name][0]) for name in ("torch", "gguf")}
    named = [f"{name} {number}" for name, number in versions.items()]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows, places = ", ".join(f"`{name}`" for name in only), ", ".join(engines)
    subject = " in ".join(part for part in (rows, places) if part)
    options = f" --only {' '.join(only)}" if only else ""
    options += f" --engines {' '.join(engines)}" if engines else ""
    return (
        f"{f'{subject}: measured' if subject else 'Measured'} on {date} with {', '.join(named)}, "
        f"by `jaxformer engines{options}`."
    )
