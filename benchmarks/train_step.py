"""Tokens per second of one training step, next to transformers + PyTorch and a plain JAX step.

All contenders train the 32M-parameter Llama shape of `--help` on the same batch, with AdamW and
clipping by the global norm, in turn within one run; the result of each round is a ratio, so a busy
machine slows all of them. Needs requirements-test.txt.

    python benchmarks/train_step.py --rounds 5 --output benchmarks/results/NAME.json
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from contenders import jaxformer_step, matmul_peak, plain_jax_step, torch_step

SHAPE = {
    "vocab_size": 8192,
    "num_layers": 8,
    "model_dim": 512,
    "num_heads": 8,
    "num_kv_heads": 4,
    "mlp_dim": 1408,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, epilog=f"The shape: {SHAPE}")
    options.add_argument("--batch", type=int, default=8, help="sequences per step")
    options.add_argument("--length", type=int, default=512, help="tokens per sequence")
    options.add_argument("--rounds", type=int, default=5, help="timed steps of each contender")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    tokens = np.random.default_rng(0).integers(
        0, SHAPE["vocab_size"], (arguments.batch, arguments.length + 1), dtype=np.int32
    )
    contenders = {
        "jaxformer bfloat16": jaxformer_step(SHAPE, tokens, "bfloat16"),
        "jaxformer float32": jaxformer_step(SHAPE, tokens, "float32"),
        "plain JAX bfloat16": plain_jax_step(SHAPE, tokens),
        "PyTorch bfloat16": torch_step(SHAPE, tokens, "bfloat16"),
        "PyTorch float32": torch_step(SHAPE, tokens, "float32"),
    }
    seconds = alternate(contenders, arguments.rounds)
    report = summarise(seconds, arguments.batch * arguments.length)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")


def alternate(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    for step in contenders.values():
        step()
        step()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summarise(seconds: dict[str, list[float]], tokens: int) -> dict:
    from jaxformer.models.config import DecoderConfig
    from jaxformer.models.flops import decoder_flops

    flops = decoder_flops(DecoderConfig(**SHAPE, tie_embeddings=False), 512).training(causal=True)
    reference = seconds["PyTorch bfloat16"]
    peak = {dtype: matmul_peak(dtype) for dtype in ("bfloat16", "float32")}
    rows = {}
    print(f"{'':20s} {'tokens/s':>9s} {'of PyTorch bf16':>16s} {'of matmul peak':>15s}")
    for name, times in seconds.items():
        rate = tokens / statistics.median(times)
        ratio = statistics.median(r / t for r, t in zip(reference, times, strict=True))
        share = rate * flops / peak[name.split()[-1]]
        rows[name] = {"tokens_per_second": rate, "ratio": ratio, "peak_share": share}
        print(f"{name:20s} {rate:9.0f} {ratio:15.2f}x {share:15.1%}")
    return {
        "shape": SHAPE,
        "rows": rows,
        "matmul_peak_flops": peak,
        "device": f"{jax.devices()[0].device_kind} {platform.processor()}",
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    main()
