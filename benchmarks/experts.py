"""A training step with experts next to its dense twin, whose tokens use as many hidden units.

The twin has one feed-forward layer as wide as the experts of a token together, so both multiply
the same numbers of rows and columns. It has no router, and nothing to sort.

    python benchmarks/experts.py --output benchmarks/results/NAME.json
"""

import argparse
import os
import statistics
from pathlib import Path

import numpy as np
from harness import alternate, machine, speed_ratio, write
from our_step import training_step
from shapes import random_tokens

from jaxformer.config import TrainConfig
from jaxformer.models import DecoderConfig
from jaxformer.nn import Experts

SMALL = {"num_layers": 4, "model_dim": 192, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 512}
WIDE = {"num_layers": 4, "model_dim": 512, "num_heads": 8, "num_kv_heads": 4, "mlp_dim": 2048}
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
            kinds = {kind: ("experts:step", kind, shape, *size, dtype) for kind in KINDS}
            found = alternate(kinds, arguments.rounds)
            seconds = {kind: found[kind]["seconds"] for kind in KINDS}
            ratio = speed_ratio(seconds["dense"], seconds["experts"])
            shown = "   ".join(
                f"{1000 * statistics.median(each):4.0f} ms" for each in seconds.values()
            )
            print(f"{name + ', ' + dtype:34s} {shown}   {ratio:.2f}", flush=True)
            report["rows"][f"{name}, {dtype}"] = {"contenders": found, "ratio": ratio}
            write(arguments.output, report)


def step(kind: str, shape: dict, batch: int, length: int, dtype: str):
    """Prepares a training step of one of the twins."""
    shape = {"vocab_size": 2048, "scan_layers": False, "compute_dtype": dtype} | shape
    tokens = random_tokens(shape, batch, length)
    arrays = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones((batch, length), np.float32),
    }
    return training_step(DecoderConfig(**shape, **KINDS[kind](shape)), TrainConfig(), arrays, 1e-3)


def _experts(shape: dict) -> dict:
    dim = shape["mlp_dim"] // PER_TOKEN
    return {"feed_forward": Experts(num=NUM, per_token=PER_TOKEN, dim=dim)}


KINDS = {"experts": _experts, "dense": lambda shape: {}}


if __name__ == "__main__":
    main()
