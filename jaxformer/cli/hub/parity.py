"""``jaxformer verify`` and ``parity``: comparisons with transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from jaxformer.cli.options import ClassChoice, ModelDir
from jaxformer.config.overrides import parse
from jaxformer.errors import DataError
from jaxformer.io.console import console
from jaxformer.io.paths import any_path, local_path
from jaxformer.parity import table as parity_table
from jaxformer.parity import verify as verification


@dataclass(frozen=True)
class Verify(ClassChoice):
    """Verifies that transformers computes the same outputs from an exported checkpoint.

    Runs transformers and jaxformer on the same inputs in float32 and writes their differences to
    receipt.json. Needs torch and transformers.
    """

    folder: ModelDir
    """A Hugging Face checkpoint that `jaxformer export` wrote, or its hub name, org/name or
    org/name@revision, without a receipt.
    """


def verify(arguments: Sequence[str], prog: str) -> None:
    """Writes and shows a receipt; fails if the two differ."""
    wanted = parse(Verify, arguments, prog)
    folder = wanted.folder
    receipt = verification.verify(folder, wanted.architecture)
    table = Table(box=None, pad_edge=False)
    beside_float64 = ("jaxformer from float64", "transformers from float64")
    for title in ("padding", "output", "relative difference", *beside_float64):
        table.add_column(title)
    for padding, case in receipt["cases"].items():
        for name, difference in case["relative"].items():
            pair = case["from_float64"][name]
            numbers = (difference, pair["jaxformer"], pair["transformers"])
            table.add_row(padding, name, *(f"{number:.1e}" for number in numbers))
    console().print(table)
    file = any_path(folder, "DIR") / verification.RECEIPT
    print(f"receipt: {file}" if file.exists() else "receipt: none for a model in the hub's cache")
    wrong = [
        (case["from_float64"][name]["jaxformer"], name, padding, case["limit_of_rounding"])
        for padding, case in receipt["cases"].items()
        for name in case["beyond_rounding"]
    ]
    if wrong:
        error, name, padding, limit = max(wrong)
        raise DataError(
            f"{folder}: transformers computes different outputs: {name} with padding {padding} is "
            f"off by {error:.1e} from float64, while rounding explains at most {limit:.1e}"
        )
    print(f"{receipt['architecture']}: equal in transformers {receipt['versions']['transformers']}")


@dataclass(frozen=True)
class Parity:
    """Compares every known system with transformers.

    Creates a small random model of every class of every system in transformers and compares
    outputs, gradients and export. Needs torch and transformers, and takes several minutes.
    """

    output: Path = Path("docs/parity.md")
    """The page to write."""


def parity(arguments: Sequence[str], prog: str) -> None:
    """Writes the table of all systems, and shows each row once it is measured."""
    output = local_path(parse(Parity, arguments, prog).output, "--output")
    rows = parity_table.measure_all(lambda row: print("  ".join(row.cells()), flush=True))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(parity_table.parity_page(rows), encoding="utf-8")
    print(f"written to {output}")
    if wrong := [f"{row.architecture} ({', '.join(row.wrong)})" for row in rows if row.wrong]:
        raise DataError(f"transformers computes different outputs: {'; '.join(wrong)}")
