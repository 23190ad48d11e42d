"""The table at the start of a run: model, data and cost."""

import math
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from textwrap import wrap
from typing import Any

import jax
from rich.table import Table

from jaxformer.data import Datasets
from jaxformer.data.dataset import Batch
from jaxformer.data.shown_rows import RowReader, cut
from jaxformer.io.console import console
from jaxformer.io.paths import AnyPath, is_remote
from jaxformer.models.lora import is_factor
from jaxformer.training.logging.progress import LINE_WIDTH, short_number
from jaxformer.training.logging.throughput import RunWork

_MOST_PARTS = 8


def parameter_count(params: Any) -> int:
    """Returns the number of parameters of a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes per device of a tree of sharded arrays or shapes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def total_bytes(tree: Any) -> int:
    """Returns the total bytes of a tree of arrays or shapes, ignoring replication."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def short_bytes(size: float) -> str:
    """Formats a size in bytes: 512 B, 12.3 MiB, 1.50 GiB."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**exponent:
            return f"{size / 1024**exponent:.3g} {unit}"
    return f"{size:.0f} B"


def start_report(
    state: Any, trained: Sequence[str], work: RunWork, mesh: jax.sharding.Mesh, folder: AnyPath
) -> list[tuple]:
    """Collects the rows of the table."""
    devices = list(mesh.devices.flat)
    needed = total_bytes(state)
    parameters = short_number(parameter_count(state.params))
    learning = ""
    last = work.stages[-1]
    if len(trained) < len(state.params):
        count = parameter_count([state.params[name] for name in trained])
        learning = f", of which {short_number(count)} learn"
    return [
        ("parameters", parameters + learning),
        *_training_rows(trained, state.params),
        ("FLOPs per token", f"{short_number(last.flops / last.tokens)} (forward and backward)"),
        ("tokens per step", _tokens_per_step(work)),
        ("mesh", ", ".join(f"{name} {size}" for name, size in mesh.shape.items())),
        ("devices", f"{len(devices)} x {devices[0].device_kind} ({_processes()})"),
        ("parameters per device", short_bytes(bytes_per_device(state.params))),
        ("optimizer state per device", short_bytes(bytes_per_device(state.opt_state))),
        ("checkpoints", f"{short_bytes(needed)} each, {_room(folder, needed)}"),
        ("run folder", str(folder)),
    ]


def _tokens_per_step(work: RunWork) -> str:
    """Describes the tokens of a step; with a ramp, of each stage and where it begins."""
    lines = [f"{s.tokens:,} from step {s.start:,} ({s.batch_text})" for s in work.stages]
    if len(lines) == 1:
        return f"{work.stages[0].tokens:,}"
    return "\n".join([*lines[:3], "...", *lines[-2:]] if len(lines) > 6 else lines)


def _room(folder: AnyPath, needed: int) -> str:
    """Describes whether the disk has room for checkpoints of a size."""
    if is_remote(folder):
        return "in an object store"
    free = shutil.disk_usage(folder).free
    warning = "" if free > 2 * needed else "  <- NOT ENOUGH"
    return f"{short_bytes(free)} free on disk{warning}"


def _training_rows(trained: Sequence[str], names: Iterable[str]) -> list[tuple[str, str]]:
    """Describes which parameters are trained if some are frozen or low-rank factors are used."""
    kernels = {name.split(".")[-3] for name in trained if is_factor(name)}
    if not kernels:
        rest = set(names).difference(trained)
        parts = unique_prefixes(trained, rest)
        more = f" and {len(parts) - _MOST_PARTS} more" if len(parts) > _MOST_PARTS else ""
        return [("learning", ", ".join(parts[:_MOST_PARTS]) + more)] if rest else []
    others = {".".join(name.split(".")[:2]) for name in trained if not is_factor(name)}
    others_text = f"; also trained: {', '.join(sorted(others))}" if others else ""
    words = f"of {', '.join(sorted(kernels))}{others_text or '; nothing else is trained'}"
    return [("low-rank factors", words)]


def unique_prefixes(names: Iterable[str], others: Collection[str]) -> list[str]:
    """Returns the shortest prefixes of dotted names that match none of the others."""
    taken = {start for name in others for start in _starts(name)}
    found = (next((x for x in _starts(name) if x not in taken), name) for name in names)
    return list(dict.fromkeys(found))


def _starts(name: str) -> list[str]:
    """Yields the prefixes of a dotted name, shortest first: "a", "a.b", "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def describe_epochs(data: Datasets, steps: int, max_batches: int | None) -> str:
    """Describes how often a run reads its data."""
    learned = data.train.examples.epochs(data.train.rows_before(steps))
    checked = data.validation.num_rows
    size = data.validation.batch_size
    read = checked if max_batches is None else min(max_batches * size, checked)
    return (
        f"{', '.join(f'{number:.3g}' for number in learned)} of training, "
        f"{read / checked:.3g} of validation in each evaluation"
    )


def print_table(title: str, rows: list[tuple]) -> None:
    """Prints pairs as a two-column table, 80 characters wide unless a path is longer."""
    table = Table(show_header=False)
    frame = len("│ " + " │ " + " │")
    names = max((len(name) for name, _ in rows), default=0)
    room = max(LINE_WIDTH - frame - names, 20)
    for name, value in rows:
        table.add_row(name, "\n".join(wrapped(str(value), room)))
    print(title)
    console().print(table, markup=False)


def wrapped(text: str, width: int) -> list[str]:
    """Returns the lines of a text, wrapped at a width except within paths."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return [part for line in text.split("\n") for part in wrap(line, width, **options) or [""]]


def print_row(title: str, reader: RowReader, row: Batch, most: int) -> None:
    """Prints a row of a batch, with the training targets highlighted by color or brackets."""
    colours = sys.stdout.isatty()
    first, last = ("\033[32m", "\033[0m") if colours else ("[[", "]]")
    texts, lines = cut(reader.texts(row), most), []
    for text in texts:
        parts = (f"{first}{part}{last}" if learned else part for part, learned in text.parts)
        lines.append((text.name, "".join(parts)))
    for name, value in reader.others(row).items():
        if not name.endswith(("_weights", "_places")):
            lines.append((name, reader.format_value(name, value, row)))
    learns = any(part.learned for text in texts for part in text.parts)
    words = f"; training targets are {'green' if colours else 'in [[ ]]'}" if learns else ""
    print(f"{title}{words}:")
    alone = [name for name, _ in lines] == ["text"]
    width = 0 if alone else max((len(name) for name, _ in lines), default=0) + 2
    for name, value in lines:
        head = "" if alone else name
        for number, line in enumerate(value.splitlines() or [""]):
            print(f"  {'' if number else head:{width}}{line}".rstrip())
    print()


def print_pairs(rows: list[tuple]) -> None:
    """Prints pairs as machine-readable lines; further lines of a value are indented."""
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        print(f"{name:<{width}}" + str(value).replace("\n", "\n" + " " * width))


def _processes() -> str:
    count = jax.process_count()
    return "1 process" if count == 1 else f"{count} processes"
