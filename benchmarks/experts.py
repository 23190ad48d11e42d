"""A training step with experts, compared with a dense twin of as many hidden units per token.

The twin has one feed-forward layer as wide as the experts of a token together, so both multiply
the same numbers of rows and columns. It has no router, and does not sort tokens.

    python benchmarks/experts.py --output benchmarks/results/NAME.json
"""

import argparse
import os
import statistics
from pathlib import Path

from harness import alternate, machine, speed_ratio, write

from jaxformer.nn import Experts

COMMON = {"vocab_size": 2048, "num_layers": 4}
SMALL = COMMON | {"model_dim": 192, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 512}
WIDE = COMMON | {"model_dim": 512, "num_heads": 8, "num_kv_heads": 4, "mlp_dim": 2048}
SHAPES = {"configs/tiny_experts.py": SMALL, "512 wide": WIDE}
NUM, PER_TOKEN = 8, 2


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batch", type=int, default=8, help="rows")
    options.add_argument("--length", type=int, default=256, help="tokens per row")
    options.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    size = arguments.batch, arguments.length
    report = {"machine": machine(), "load": os.getloadavg()[0], "batch": size, "rows": {}}
    print(f"{'':34s} experts     dense   experts / dense; load {report['load']:.1f}")
    for name, shape in SHAPES.items():
        for dtype in arguments.dtypes:
            common = {"scan_layers": False, "compute_dtype": dtype}
            contenders = {
                kind: ("our_step:step", shape, *size, common | own)
                for kind, own in twins(shape["mlp_dim"]).items()
            }
            found = alternate(contenders, arguments.rounds)
            seconds = {kind: found[kind]["seconds"] for kind in contenders}
            ratio = speed_ratio(seconds["dense"], seconds["experts"])
            shown = "   ".join(
                f"{1000 * statistics.median(each):4.0f} ms" for each in seconds.values()
            )
            print(f"{name + ', ' + dtype:34s} {shown}   {ratio:.2f}", flush=True)
            report["rows"][f"{name}, {dtype}"] = {"contenders": found, "ratio": ratio}
            write(arguments.output, report)


def twins(mlp_dim: int) -> dict[str, dict]:
    """The fields of the model in which the two differ."""
    experts = Experts(num=NUM, per_token=PER_TOKEN, dim=mlp_dim // PER_TOKEN)
    return {"experts": {"feed_forward": experts}, "dense": {}}


if __name__ == "__main__":
    main()
