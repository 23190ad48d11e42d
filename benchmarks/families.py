"""Tokens per second of an encoder's and an encoder-decoder's step, against transformers + PyTorch.

BERT base on masked tokens and T5 small on corrupted spans, AdamW and clipping by the global norm,
each contender in its own process, in turn; PyTorch runs eagerly and by `torch.compile`. Needs
requirements-more.txt.

    python benchmarks/families.py --output benchmarks/results/NAME.json              # two CPU cores
    python benchmarks/families.py --batch 64 --dtypes bfloat16                       # one GPU
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from harness import (
    DTYPES,
    RIVALS,
    alternate,
    chosen,
    columns,
    heading,
    machine,
    ratios_to_rivals,
    write,
)

FAMILIES = ("bert", "t5")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batch", type=int, default=8, help="sequences per step")
    options.add_argument("--lengths", type=int, nargs="+", default=[128, 512], help="of a sequence")
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    options.add_argument("--only", nargs="+", default=[], help="contenders, by a part of the name")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    results = []
    for family in FAMILIES:
        for length in arguments.lengths:
            problem = (arguments.batch, length)
            found = contenders(family, problem, arguments.dtypes)
            rows = alternate(chosen(found, arguments.only), arguments.rounds)
            results.append(summarise(family, problem, rows))
            # A long run that is interrupted keeps its results.
            write(arguments.output, {"machine": machine(), "results": results})


def contenders(family: str, problem: tuple[int, int], dtypes: Sequence[str]) -> dict[str, tuple]:
    """Name -> the arguments of `harness.Contender`."""
    found: dict[str, tuple] = {}
    for dtype in dtypes:
        options = {"compute_dtype": dtype, "scan_layers": False}
        found[f"jaxformer {dtype}"] = (f"our_family:{family}", *problem, options)
        for rival, compiled in RIVALS.items():
            found[f"{rival} {dtype}"] = (f"torch_family:{family}", *problem, dtype, compiled)
    return found


def summarise(family: str, problem: tuple[int, int], rows: dict[str, dict]) -> dict:
    """Prints the table and returns the report."""
    batch, length = problem
    problem_name = f"{family}, {batch} x {length}"
    print(f"{problem_name:22s}  tokens/s  {heading()}  first step")
    for name, row in rows.items():
        row["tokens_per_second"] = rate = batch * length / statistics.median(row["seconds"])
        row["ratios"] = ratios_to_rivals(rows, name)
        beside = columns(row["ratios"])
        print(f"{name:22s} {rate:9.0f}  {beside} {row['first_step_seconds']:9.1f} s")
    return {"family": family, "batch": batch, "length": length, "rows": rows}


if __name__ == "__main__":
    main()
