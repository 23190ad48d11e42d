"""Seconds of a training step on a CPU whose products are YNNPACK's, next to XLA's own.

Two layers of decoders of several widths, AdamW and clipping, each contender in its own process, in
turn. `distributed/compiler_options.py` chooses by these figures.

    python benchmarks/cpu_products.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
from pathlib import Path

from harness import alternate, machine, speed_ratio, write

OPTION = "xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL"
CONTENDERS = {"YNNPACK": f"{OPTION}_DOT", "XLA": f"{OPTION}_CONVOLUTION"}
"""What multiplies -> the option that chooses it, by what YNNPACK may compute."""
SHAPES = {
    # width, width of the feed-forward layer, heads, vocabulary, sequences, tokens of each
    "tiny": (192, 512, 6, 512, 16, 128),
    "GPT-2": (768, 3072, 12, 50257, 2, 512),
    "BERT large": (1024, 4096, 16, 32000, 2, 512),
    "Llama 3.2 1B": (2048, 8192, 32, 8000, 1, 512),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    results = []
    for dtype in arguments.dtypes:
        for name in arguments.shapes:
            rows = alternate(contenders(name, dtype), arguments.rounds)
            ratio = speed_ratio(rows["XLA"]["seconds"], rows["YNNPACK"]["seconds"])
            medians = [statistics.median(row["seconds"]) for row in rows.values()]
            print(f"{dtype} {name:14s} {medians[0]:6.2f} s {medians[1]:6.2f} s  {ratio:.2f}x")
            results.append({"dtype": dtype, "shape": name, "ratio": ratio, "rows": rows})
            # A long run that is interrupted keeps its results.
            report = {"machine": machine(), "shapes": SHAPES, "results": results}
            write(arguments.output, report)


def contenders(name: str, dtype: str) -> dict[str, tuple]:
    """Name -> the arguments of `harness.Contender`."""
    width, mlp, heads, vocabulary, batch, length = SHAPES[name]
    shape = {
        "vocab_size": vocabulary,
        "num_layers": 2,
        "model_dim": width,
        "num_heads": heads,
        "num_kv_heads": heads,
        "mlp_dim": mlp,
        "tie_embeddings": True,
    }
    fields = {"scan_layers": False, "compute_dtype": dtype}
    return {
        contender: ("our_step:step", shape, batch, length, fields | {"compiler_options": (option,)})
        for contender, option in CONTENDERS.items()
    }


if __name__ == "__main__":
    main()
