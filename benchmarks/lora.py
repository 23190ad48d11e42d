"""Memory and speed of LoRA, compared with full fine-tuning and with transformers and PEFT.

All contenders train the same Llama shape on the same batch, with AdamW and clipping by the global
norm, each in its own process, in turn. Memory is the peak of the process less its memory before the
model was created; for jaxformer also the state and the allocations of the compiled step.
Needs requirements-more.txt.

    python benchmarks/lora.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
from pathlib import Path

from harness import DTYPES, alternate, chosen, columns, heading, machine, ratios_to_rivals, write
from shapes import SHAPES

RANK, ALPHA = 16, 32.0
RIVALS = {"PEFT": False, "PEFT, torch.compile": True}
PEFT = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "v_proj"]}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="32m")
    options.add_argument("--batch", type=int, default=4, help="sequences per step")
    options.add_argument("--length", type=int, default=256, help="tokens per sequence")
    options.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    options.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    options.add_argument("--only", nargs="+", default=[], help="contenders, by a part of the name")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    rows = alternate(chosen(contenders(arguments), arguments.only), arguments.rounds)
    write(arguments.output, summarise(rows, arguments))


def contenders(arguments: argparse.Namespace) -> dict[str, tuple]:
    """Name -> the arguments of `harness.Contender`."""
    problem = (SHAPES[arguments.shape], arguments.batch, arguments.length)
    found: dict[str, tuple] = {}
    for dtype in arguments.dtypes:
        lora = {"rank": RANK, "alpha": ALPHA, "base_dtype": dtype}
        found[f"jaxformer, all weights {dtype}"] = ("our_lora:step", *problem, dtype, None)
        found[f"jaxformer, LoRA {dtype}"] = ("our_lora:step", *problem, dtype, lora)
        found[f"jaxformer, LoRA, int8 base {dtype}"] = (
            "our_lora:step",
            *problem,
            dtype,
            lora | {"base_dtype": "int8"},
        )
        found[f"PyTorch, all weights {dtype}"] = ("torch_lora:step", *problem, dtype, None, False)
        for rival, compiled in RIVALS.items():
            found[f"{rival} {dtype}"] = ("torch_lora:step", *problem, dtype, PEFT, compiled)
    return found


def summarise(rows: dict[str, dict], arguments: argparse.Namespace) -> dict:
    """Prints the table and returns the report."""
    tokens = arguments.batch * arguments.length
    print(f"{'':38s} tokens/s  {heading(RIVALS)}     state  temporaries  peak memory")
    for name, row in rows.items():
        row["tokens_per_second"] = rate = tokens / statistics.median(row["seconds"])
        row["ratios"] = ratios_to_rivals(rows, name, RIVALS)
        before = row["resident_megabytes_before"]
        row["added_megabytes"] = added = row["peak_resident_megabytes"] - before
        state = row["parameter_megabytes"] + row["optimizer_megabytes"]
        temporaries = row.get("temporary_megabytes")
        shown = f"{temporaries:8.0f} MB" if temporaries else ""
        beside = columns(row["ratios"], RIVALS)
        print(f"{name:38s} {rate:8.0f}  {beside} {state:6.0f} MB {shown:>12s} {added:9.0f} MB")
    return {
        "machine": machine(),
        "shape": SHAPES[arguments.shape],
        "batch": arguments.batch,
        "length": arguments.length,
        "rank": RANK,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
