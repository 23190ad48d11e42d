"""Attention alone, forward and backward: blockwise, the reference, PyTorch's fused kernel.

Causal, batch 1, 8 query and 8 key/value heads of 64, bfloat16. Memory is XLA's own figure for the
temporaries of the gradient. Needs requirements-test.txt.

    python benchmarks/attention.py --lengths 512 1024 2048 4096 8192
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxformer.functional import attention, causal

HEADS, WIDTH = 8, 64


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--longest-reference", type=int, default=4096)
    options.add_argument("--output", type=Path)
    arguments = options.parse_args()
    rows = []
    header = f"{'T':>6s} {'contender':12s} {'ms':>9s} {'of PyTorch':>11s} {'temporaries MB':>15s}"
    print(header)
    for length in arguments.lengths:
        contenders = {"PyTorch": (torch_gradient(length), None)}
        names = ["blockwise"] + ["reference"] * (length <= arguments.longest_reference)
        for name in names:
            contenders[name] = jax_gradient(length, name)
        for name, row in measure(contenders, arguments.rounds).items():
            rows.append({"length": length, "contender": name, **row})
            memory = "" if row["megabytes"] is None else f"{row['megabytes']:15.1f}"
            print(f"{length:6d} {name:12s} {row['ms']:9.1f} {row['ratio']:10.2f}x {memory}")
    if arguments.output:
        arguments.output.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=2))


def measure(contenders: dict, rounds: int) -> dict[str, dict]:
    seconds = {name: [] for name in contenders}
    for step, _ in contenders.values():
        step()
    for _ in range(rounds):
        for name, (step, _) in contenders.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    reference = statistics.median(seconds["PyTorch"])
    return {
        name: {
            "ms": 1e3 * statistics.median(seconds[name]),
            "ratio": reference / statistics.median(seconds[name]),
            "megabytes": memory,
        }
        for name, (_, memory) in contenders.items()
    }


def jax_gradient(length: int, implementation: str) -> tuple[Callable[[], None], float]:
    shape = (1, length, HEADS, WIDTH)
    inputs = [jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in range(3)]

    def loss(query, key, value):
        output = attention(query, key, value, mask=causal(), implementation=implementation)
        return jnp.sum(output.astype(jnp.float32))

    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).lower(*inputs).compile()
    megabytes = compiled.memory_analysis().temp_size_in_bytes / 1e6
    return (lambda: jax.block_until_ready(compiled(*inputs)) and None), megabytes


def torch_gradient(length: int) -> Callable[[], None]:
    values = np.random.default_rng(0).standard_normal((3, 1, HEADS, length, WIDTH))
    inputs = [torch.tensor(x, dtype=torch.bfloat16, requires_grad=True) for x in values]

    def step():
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        output.float().sum().backward()

    return step


if __name__ == "__main__":
    main()
