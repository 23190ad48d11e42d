"""``jaxformer verify``, ``parity`` and ``engines``: comparisons with transformers and engines."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.checkpoints.files import write_json
from jaxformer.cli.options import ClassChoice, ModelDir
from jaxformer.engines import table as engines_table
from jaxformer.engines.export import ALL, engines_for, is_for_engine, verify_export
from jaxformer.errors import DataError
from jaxformer.io.console import console, plain_table
from jaxformer.io.model_files import read_object
from jaxformer.io.paths import any_path, local_path
from jaxformer.parity import table as parity_table
from jaxformer.parity import verify as verification
from jaxformer.pretrained.auto import model_folder


@dataclass(frozen=True)
class Verify(ClassChoice):
    """Verifies that transformers, or another engine, computes the same outputs from an export.

    Runs transformers and jaxformer on the same inputs in float32 and writes their differences to
    receipt.json. Requires torch and transformers. An export for an engine (--format) is run in this
    engine; compared are outputs, 256 greedy tokens and, for quantised weights, the perplexity of
    validation data.
    """

    folder: ModelDir
    """A folder written by `jaxformer export`, or a Hugging Face checkpoint or its hub name
    (org/name or org/name@revision), for which no receipt is written.
    """
    engines: tuple[str, ...] = ()
    """The engines to run it in, or all: the installed engines for its format."""
    reference: str | None = None
    """The run or checkpoint to compare with (default: the exported one)."""


def verify(options: Verify) -> None:
    """Writes and shows a receipt; fails if the two differ."""
    folder = options.folder
    if options.engines or is_for_engine(folder):
        _verify_in_engines(options)
        return
    receipt = verification.verify(folder, options.architecture)
    beside_float64 = ("jaxformer from float64", "transformers from float64")
    table = plain_table("padding", "output", "relative difference", *beside_float64)
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


def _verify_in_engines(options: Verify) -> None:
    """Writes and shows the receipts of engines; fails if one differs."""
    folder = model_folder(options.folder, "folder")
    engines = engines_for(folder, options.engines or (ALL,))
    receipts = verify_export(folder, engines, options.reference)
    titles = ("engine", "difference", "greedy tokens", "same tokenizer", "perplexity", "seconds")
    table = plain_table(*titles)
    for each in receipts:
        pair = each.perplexity
        table.add_row(
            f"{each.engine} {each.version}",
            f"{each.max_difference:.1e} of {each.largest:.1f}",
            f"{each.equal_greedy_tokens} of {each.greedy_tokens}",
            {None: "-", True: "yes", False: "no"}[each.equal_tokens_of_text],
            f"{pair['jaxformer']:.2f} -> {pair['engine']:.2f}" if pair else "-",
            f"{each.seconds:.1f}",
        )
    console().print(table)
    file = any_path(folder, "DIR") / verification.RECEIPT
    kept = read_object(folder, verification.RECEIPT) or {}
    write_json(file, kept | {"engines": [each.as_json() for each in receipts]})
    print(f"receipt: {file}")
    wrong = [f"{each.engine}: {problem}" for each in receipts for problem in each.problems]
    if wrong:
        raise DataError(f"{folder}: an engine computes different outputs: {'; '.join(wrong)}")
    if equal := [each.engine for each in receipts if each.judged]:
        print(f"equal in {', '.join(equal)}")
    if unknown := [each.engine for each in receipts if not each.judged]:
        print(
            f"not judged in {', '.join(unknown)}: weights of fewer bits are judged by the "
            "perplexity of a decoder on the validation data of its run"
        )


@dataclass(frozen=True)
class Parity:
    """Compares every known system with transformers.

    Creates a small random model of every class of every system in transformers and compares
    outputs, gradients and export. Requires torch and transformers, and takes several minutes.
    """

    output: Path = Path("docs/parity.md")
    """The page to write."""


def parity(options: Parity) -> None:
    """Writes the table of all systems, and shows each row as it is measured."""
    output = local_path(options.output, "--output")
    rows = parity_table.measure_all(lambda row: print("  ".join(row.cells()), flush=True))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(parity_table.parity_page(rows), encoding="utf-8")
    print(f"written to {output}")
    if wrong := [f"{row.architecture} ({', '.join(row.wrong)})" for row in rows if row.wrong]:
        raise DataError(f"transformers computes different outputs: {'; '.join(wrong)}")


@dataclass(frozen=True)
class Engines:
    """Measures every known system in every engine, on small random models.

    Requires torch, transformers and all engines, and takes several minutes.
    """

    output: Path = Path("docs/engines.md")
    """The page to write; text before the table is kept."""
    only: tuple[str, ...] = ()
    """Measure only these model types, and keep the rows of others."""
    engines: tuple[str, ...] = ()
    """Measure only in these engines, and keep the columns of others."""


def engines(options: Engines) -> None:
    """Writes the page about engines, and shows each row as it is measured."""
    output = local_path(options.output, "--output")
    output.parent.mkdir(parents=True, exist_ok=True)
    before = output.read_text(encoding="utf-8") if output.exists() else "# Engines\n\n"
    rows = []
    for row in engines_table.measure_all(options.only, options.engines):
        rows.append(row)
        output.write_text(engines_table.engines_page(rows, before), encoding="utf-8")
        print("  ".join((row.model_type, *row.cells.values())), flush=True)
    print(f"written to {output}")
