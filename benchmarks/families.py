"""Tokens per second of an encoder's and an encoder-decoder's step, next to transformers + PyTorch.

BERT base on masked tokens and T5 small on corrupted spans, AdamW and clipping by the global norm,
each contender in its own process, in turn. Needs the test requirements.

    python benchmarks/families.py --output benchmarks/results/NAME.json              # two CPU cores
    python benchmarks/families.py --batch 64 --compile                               # one GPU
"""

import argparse
import statistics
from pathlib import Path

from harness import alternate, machine, speed_ratio, write

FAMILIES = ("bert", "t5")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batch", type=int, default=8, help="sequences per step")
    options.add_argument("--lengths", type=int, nargs="+", default=[128, 512], help="of a sequence")
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument("--compile", action="store_true", help="run PyTorch by torch.compile")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    results = []
    for family in FAMILIES:
        for length in arguments.lengths:
            problem = (arguments.batch, length)
            rows = alternate(contenders(family, problem, arguments.compile), arguments.rounds)
            results.append(summarise(family, problem, rows))
    write(arguments.output, {"machine": machine(), "results": results})


def contenders(family: str, problem: tuple[int, int], compiled: bool) -> dict[str, tuple]:
    """Name -> what `harness.Contender` takes."""
    ours = {
        f"jaxformer {dtype}": (
            f"our_family:{family}",
            *problem,
            {"compute_dtype": dtype, "scan_layers": False},
        )
        for dtype in ("bfloat16", "float32")
    }
    theirs = {
        f"PyTorch {dtype}": (f"torch_family:{family}", *problem, dtype, compiled)
        for dtype in ("bfloat16", "float32")
    }
    return ours | theirs


def summarise(family: str, problem: tuple[int, int], rows: dict[str, dict]) -> dict:
    """Prints the table and returns the report; each is beside PyTorch's in the same dtype."""
    batch, length = problem
    print(f"{family}, {batch} x {length}{'':6s}  tokens/s  of PyTorch  first step")
    for name, row in rows.items():
        reference = rows[f"PyTorch {name.split()[-1]}"]["seconds"]
        row["tokens_per_second"] = rate = batch * length / statistics.median(row["seconds"])
        row["ratio"] = ratio = speed_ratio(row["seconds"], reference)
        print(f"{name:20s} {rate:9.0f} {ratio:10.2f}x {row['first_step_seconds']:9.1f} s")
    return {"family": family, "batch": batch, "length": length, "rows": rows}


if __name__ == "__main__":
    main()
