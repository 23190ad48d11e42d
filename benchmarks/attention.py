"""Causal attention, forward and backward: blockwise, the reference, PyTorch's fused kernel.

Batch 1, 8 query and 8 key/value heads of 64 channels; one process each, timed in turn.
Temporaries are XLA's figure for the compiled gradient. Needs requirements-more.txt.

    python benchmarks/attention.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from harness import DTYPES, alternate, chosen, columns, heading, machine, ratios_to_rivals, write

HEADS, WIDTH = 8, 64
RIVALS = ("PyTorch",)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    options.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"], help="inputs")
    options.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    options.add_argument(
        "--implementations", nargs="+", default=["blockwise", "reference"], help="of jaxformer"
    )
    options.add_argument(
        "--longest-reference", type=int, default=4096, help="longest T of the reference"
    )
    options.add_argument("--only", nargs="+", default=[], help="contenders, by a part of the name")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    rows = []
    print(f"{'T':>6s} {'':20s}        ms  {heading(RIVALS)}  temporaries")
    for length in arguments.lengths:
        found = chosen(contenders(length, arguments), arguments.only)
        measured = alternate(found, arguments.rounds)
        for name, row in measured.items():
            row["ratios"] = ratios_to_rivals(measured, name, RIVALS)
            rows.append({"length": length, "contender": name, **row})
            milliseconds = 1e3 * statistics.median(row["seconds"])
            megabytes = row.get("temporary_megabytes")
            memory = "" if megabytes is None else f"{megabytes:9.1f} MB"
            beside = columns(row["ratios"], RIVALS)
            print(f"{length:6d} {name:20s} {milliseconds:9.1f}  {beside} {memory}")
    write(arguments.output, {"machine": machine(), "rows": rows})


def contenders(length: int, arguments: argparse.Namespace) -> dict[str, tuple]:
    """Name -> the arguments of `harness.Contender`."""
    longest = {"reference": arguments.longest_reference}
    found: dict[str, tuple] = {}
    for dtype in arguments.dtypes:
        found[f"PyTorch {dtype}"] = ("attention:torch_gradient", length, dtype)
        for name in arguments.implementations:
            if length <= longest.get(name, length):
                found[f"{name} {dtype}"] = ("attention:jax_gradient", length, dtype, name)
    return found


def jax_gradient(length: int, dtype: str, name: str) -> tuple[Callable[[], None], dict]:
    """Our attention and its gradients, compiled as in a step, with the memory that XLA plans."""
    import jax
    import jax.numpy as jnp

    from jaxformer.distributed import MeshConfig, make_mesh
    from jaxformer.distributed.compiler_options import compiler_options
    from jaxformer.functional import attention, causal

    shape = (1, length, HEADS, WIDTH)
    inputs = [jax.random.normal(jax.random.key(i), shape, dtype) for i in range(3)]

    def loss(query, key, value):
        output = attention(query, key, value, mask=causal(), implementation=name)
        return jnp.sum(output.astype(jnp.float32))

    gradient = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1, 2)),
        compiler_options=compiler_options(make_mesh(MeshConfig()), 0, dtype),
    )
    compiled = gradient.lower(*inputs).compile()
    megabytes = compiled.memory_analysis().temp_size_in_bytes / 1e6
    return lambda: jax.block_until_ready(compiled(*inputs)), {"temporary_megabytes": megabytes}


def torch_gradient(length: int, dtype: str) -> Callable[[], None]:
    """PyTorch's fused kernel and its gradients, on the GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (1, HEADS, length, WIDTH)
    inputs = [
        torch.randn(shape, dtype=getattr(torch, dtype), device=device, requires_grad=True)
        for _ in range(3)
    ]

    def run():
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        output.float().sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


if __name__ == "__main__":
    main()
