"""Bytes per second of products of a few rows with a large kernel: XLA's and PyTorch's.

A decode step is a chain of such products, and a prefill one of more rows. The kernels are bfloat16,
eight of 2048 x 11264, which exceed all caches; each contender runs in its own process, in turn.
Needs requirements-more.txt.

    python benchmarks/row_products.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from harness import alternate, machine, speed_ratio, write

KERNELS, WIDTH, OUT = 8, 2048, 11264


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 128, 1024])
    options.add_argument("--rounds", type=int, default=9, help="turns of each contender")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    results = []
    for rows in arguments.rows:
        contenders = {"XLA": ("row_products:xla", rows), "PyTorch": ("row_products:pytorch", rows)}
        measured = alternate(contenders, arguments.rounds)
        ratio = speed_ratio(measured["XLA"]["seconds"], measured["PyTorch"]["seconds"])
        print(f"{rows} rows: XLA is {ratio:.2f} times as fast as PyTorch")
        for name, row in measured.items():
            taken = statistics.median(row["seconds"])
            # Two bytes of each parameter, and two operations with it for each row.
            row["bytes_per_second"] = read = KERNELS * WIDTH * OUT * 2 / taken
            row["flops_per_second"] = flops = read * rows
            print(f"  {name:8s} {read / 1e9:6.1f} GB/s {flops / 1e9:6.0f} GFLOP/s")
        results.append({"rows": rows, "ratio": ratio, "contenders": measured})
    write(arguments.output, {"machine": machine(), "results": results})


def xla(rows: int) -> Callable[[], None]:
    """XLA's products, with the kernels in the layout of a decode step."""
    import jax
    import jax.numpy as jnp

    from jaxformer.functional.linear import linear, transposed

    fulls = (jnp.full((WIDTH, OUT), n, jnp.bfloat16) for n in range(KERNELS))
    kernels = [transposed(full, (OUT,)) for full in fulls]
    x = jnp.ones((rows, WIDTH), jnp.bfloat16)

    @jax.jit
    def products(x, kernels):
        return [linear(x, kernel) for kernel in kernels]

    return lambda: jax.block_until_ready(products(x, kernels))


def pytorch(rows: int) -> Callable[[], None]:
    """PyTorch's products."""
    import torch

    kernels = [torch.full((OUT, WIDTH), n, dtype=torch.bfloat16) for n in range(KERNELS)]
    x = torch.ones(rows, WIDTH, dtype=torch.bfloat16)
    return lambda: [torch.nn.functional.linear(x, kernel) for kernel in kernels]


if __name__ == "__main__":
    main()
