"""Tokens per second of one training step, against transformers + PyTorch and a plain JAX step.

PyTorch runs eagerly and by `torch.compile`. All contenders train the same Llama shape on the same
batch, with AdamW and clipping by the global norm, each in its own process, in turn; every round
gives a ratio, so a busy machine slows all of them. Needs requirements-more.txt.

    python benchmarks/train_step.py --output benchmarks/results/NAME.json            # two CPU cores
    python benchmarks/train_step.py --shape 1b --batch 4 --length 4096 --apart --dtypes bfloat16 \
        --only jaxformer torch.compile --float8                                      # one GPU
"""

import argparse
import statistics
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
from shapes import SHAPES

PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""Device -> FLOP/s of bfloat16 products, without sparsity, by the vendor's data sheet."""


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--shape", choices=SHAPES, default="32m")
    options.add_argument("--batch", type=int, default=8, help="sequences per step")
    options.add_argument("--length", type=int, default=512, help="tokens per sequence")
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument("--documents", type=int, default=8, help="of a packed row")
    options.add_argument("--float8", action="store_true", help="also with products in float8")
    options.add_argument(
        "--apart", action="store_true", help="one contender after the other, each with all memory"
    )
    options.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    options.add_argument("--only", nargs="+", default=[], help="contenders, by a part of the name")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    rows = alternate(contenders(arguments), arguments.rounds, apart=arguments.apart)
    report = summarise(rows, arguments)
    write(arguments.output, report)


def contenders(arguments: argparse.Namespace) -> dict[str, tuple]:
    """Name -> the arguments of `harness.Contender`; the products measure the machine's peak."""
    problem = (SHAPES[arguments.shape], arguments.batch, arguments.length)
    # Large vocabularies do not compute all logits at once.
    ours = {"scan_layers": False, "loss_chunk": None if arguments.shape == "32m" else 512}
    packed = ours | {"documents": arguments.documents}
    found: dict[str, tuple] = {}
    for dtype in arguments.dtypes:
        computed = {"compute_dtype": dtype}
        found[f"jaxformer {dtype}"] = ("our_step:step", *problem, ours | computed)
        found[f"jaxformer documents {dtype}"] = ("our_step:step", *problem, packed | computed)
        found[f"plain JAX {dtype}"] = ("plain_jax:step", *problem, dtype)
        if arguments.float8:
            float8 = ours | computed | {"float8": True}
            found[f"jaxformer float8 {dtype}"] = ("our_step:step", *problem, float8)
        for rival, compiled in RIVALS.items():
            found[f"{rival} {dtype}"] = ("torch_step:step", *problem, dtype, compiled)
    products = {f"product {dtype}": ("our_step:product", dtype) for dtype in arguments.dtypes}
    return chosen(found, arguments.only) | products


def summarise(rows: dict[str, dict], arguments: argparse.Namespace) -> dict:
    """Prints the table and returns the report."""
    from jaxformer.models import DecoderConfig

    shape, tokens = SHAPES[arguments.shape], arguments.batch * arguments.length
    flops = DecoderConfig(**shape).flops({"inputs": arguments.length}).training(causal=True)
    products = {dtype: rows.pop(f"product {dtype}") for dtype in arguments.dtypes}
    peak = {dtype: row["flops"] / min(row["seconds"]) for dtype, row in products.items()}
    found = machine()
    sheet = PEAKS.get(found["device"].removeprefix("1 x "))
    print(f"{'':28s}  tokens/s  {heading()}  of matmul peak  first step")
    for name, row in rows.items():
        dtype = name.split()[-1]
        row["tokens_per_second"] = rate = tokens / statistics.median(row["seconds"])
        row["peak_share"] = share = rate * flops / peak[dtype]
        row["ratios"] = ratios_to_rivals(rows, name)
        if sheet:
            row["data_sheet_share"] = rate * flops / sheet
        first = row["first_step_seconds"]
        beside = columns(row["ratios"])
        print(f"{name:28s} {rate:9.0f}  {beside} {share:15.1%} {first:9.1f} s")
    return {
        "machine": found,
        "shape": shape,
        "batch": arguments.batch,
        "length": arguments.length,
        "documents": arguments.documents,
        "causal_flops_per_token": flops,
        "matmul_peak_flops": peak,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
