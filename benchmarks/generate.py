"""Tokens per second of generation, against transformers + PyTorch, and the share of bandwidth.

A Llama of random weights (1.1 billion, the shape of TinyLlama) reads a prompt and adds tokens,
greedily. "PyTorch static" has a static cache, which transformers compiles on a GPU. Each contender
runs in its own process, in turn. Needs requirements-more.txt.

    python benchmarks/generate.py --output benchmarks/results/NAME.json            # two CPU cores
    python benchmarks/generate.py --new 128 --int8 --only jaxformer static         # one GPU
    python benchmarks/generate.py --shape 8b --only jaxformer --int8 --batches 1   # one GPU
"""

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from harness import alternate, chosen, machine, seconds, speed_ratio, write
from shapes import SHAPES


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="rows")
    options.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    options.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    options.add_argument("--new", type=int, default=32, help="tokens to add")
    options.add_argument("--shape", choices=SHAPES, default="tinyllama")
    options.add_argument("--layers", type=int, help="of the model; all of the shape's by default")
    options.add_argument("--int8", action="store_true", help="also jaxformer with int8 weights")
    options.add_argument("--only", nargs="+", default=[], help="contenders, by a part of the name")
    options.add_argument("--rounds", type=int, default=2, help="turns of each contender")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    shape = SHAPES[arguments.shape]
    if arguments.layers is not None:
        shape = shape | {"num_layers": arguments.layers}
    bandwidth = copy_bandwidth()
    print(f"copying moves {bandwidth / 1e9:.1f} GB/s")
    results = []
    for dtype in arguments.dtypes:
        for batch in arguments.batches:
            sizes = (shape, batch, arguments.prompt, arguments.new)
            contenders = {
                "jaxformer": ("our_generate:decode", *sizes, dtype),
                "PyTorch": ("torch_generate:decode", *sizes, dtype, False),
                "PyTorch static": ("torch_generate:decode", *sizes, dtype, True),
            }
            if arguments.int8:
                contenders["jaxformer int8"] = ("our_generate:decode", *sizes, dtype, "int8")
            contenders = chosen(contenders, arguments.only)
            rows = alternate(contenders, arguments.rounds)
            prefills = alternate(
                {
                    name: (target.replace("decode", "prefill"), *rest)
                    for name, (target, *rest) in contenders.items()
                },
                arguments.rounds,
            )
            results.append(summarise(dtype, sizes, rows, prefills, bandwidth))
            # A long run that is interrupted keeps its results.
            report = {
                "machine": machine(),
                "copy_bytes_per_second": bandwidth,
                "results": results,
            }
            write(arguments.output, report)


def summarise(dtype: str, sizes: tuple, rows: dict, prefills: dict, bandwidth: float) -> dict:
    """Prints the table and returns the report."""
    shape, batch, prompt, new = sizes
    reference = next((name for name in ("PyTorch", "PyTorch static") if name in rows), "jaxformer")
    print(f"{dtype}, {batch} x {prompt} + {new}   first token   prefill   decode      bandwidth")
    decodes = {
        name: [
            both - first
            for both, first in zip(row["seconds"], prefills[name]["seconds"], strict=True)
        ]
        for name, row in rows.items()
    }
    for name, row in rows.items():
        first, decode = prefills[name]["seconds"], decodes[name]
        row["first_token_seconds"] = statistics.median(first)
        row["prefill_tokens_per_second"] = batch * prompt / row["first_token_seconds"]
        row["decode_tokens_per_second"] = batch * (new - 1) / statistics.median(decode)
        row["decode_ratio"] = speed_ratio(decode, decodes[reference])
        row["prefill_ratio"] = speed_ratio(first, prefills[reference]["seconds"])
        read = row["bytes_per_step"] * (new - 1) / statistics.median(decode)
        row["share_of_bandwidth"] = read / bandwidth
        print(
            f"{name:24s} {row['first_token_seconds']:9.2f} s "
            f"{row['prefill_tokens_per_second']:7.0f}/s {row['decode_tokens_per_second']:7.1f}/s "
            f"({row['decode_ratio']:.2f}x) {row['share_of_bandwidth']:6.0%}"
        )
    return {
        "dtype": dtype,
        "shape": shape,
        "batch": batch,
        "prompt": prompt,
        "new": new,
        "rows": rows,
    }


def copy_bandwidth() -> float:
    """Bytes read and written per second, by all cores or the accelerator."""
    if jax.default_backend() == "cpu":
        return _cpu_bandwidth()
    x, count = jnp.ones(2**29, jnp.float32), 50
    # One program, so that the time to start it does not count.
    copies = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, x: x + 1, x))
    jax.block_until_ready(copies(x))
    best = min(seconds(lambda: jax.block_until_ready(copies(x))) for _ in range(5))
    return 2 * x.nbytes * count / best


def _cpu_bandwidth() -> float:
    size, threads = 2**28, jax.device_count() * 2
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    parts = list(zip(np.split(target, threads), np.split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        best = min(
            seconds(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts))) for _ in range(9)
        )
    return 2 * size / best


if __name__ == "__main__":
    main()
