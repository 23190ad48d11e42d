"""The cost of a compiled call through `jaxformer.flax`, compared with `jaxformer.forward`.

Both read the same random checkpoint of a BERT, a T5 encoder or a GPT-2 and compute the same array.
The old class is called as in an old script: under `jax.jit`, with its tree of parameters as an
argument. The calls take turns in one process. Its processor time is measured, which depends less on
other programs than wall time.

    python benchmarks/flax_door.py --output benchmarks/results/NAME.json
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from harness import machine, write

import jaxformer
import jaxformer.flax

BERT = {"vocab_size": 8192, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
T5 = {"vocab_size": 8192, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 4}
GPT2 = {"vocab_size": 8192, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256}
MODELS = {
    "BERT": ("FlaxBertModel", BERT | {"intermediate_size": 1024}),
    "T5 encoder": ("FlaxT5EncoderModel", T5),
    "GPT-2": ("FlaxGPT2Model", GPT2),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batch", type=int, default=4, help="rows")
    options.add_argument("--length", type=int, default=64, help="tokens per row")
    options.add_argument("--rounds", type=int, default=60, help="calls of each")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    ids = np.random.default_rng(0).integers(3, 8000, size=(arguments.batch, arguments.length))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    report = {"machine": machine(), "load": os.getloadavg()[0], "rows": {}}
    print(f"{'':12s} forward      door   door / forward (quartiles); load {report['load']:.1f}")
    for name, (own, config) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            getattr(jaxformer.flax, own)(config).save_pretrained(folder)
            calls = {"forward": forward(folder, inputs), "door": door(own, folder, inputs)}
            seconds = in_turn(calls, arguments.rounds)
        # Neighbouring calls are compared, which a busy machine slows alike.
        ratios = [d / f for f, d in zip(*seconds.values(), strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        shown = "   ".join(f"{1000 * statistics.median(each):4.1f} ms" for each in seconds.values())
        print(f"{name:12s} {shown}   {middle:.3f} ({low:.3f}, {high:.3f})", flush=True)
        report["rows"][name] = {"seconds": seconds, "ratio": middle}
    write(arguments.output, report)


def door(own: str, folder: str, inputs: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    """A call of the old class."""
    model, params = getattr(jaxformer.flax, own).from_pretrained(folder, _do_init=False)
    call = jax.jit(lambda params, x: model(**x, params=params).last_hidden_state)
    return lambda: np.asarray(call(params, inputs))


def forward(folder: str, inputs: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    """The same array by `jaxformer.forward`."""
    model = jaxformer.load(folder)
    return lambda: jaxformer.forward(model, inputs)["last_hidden_state"]


def in_turn(calls: dict[str, Callable[[], np.ndarray]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of processor time of each call, after three warm-up calls."""
    first, second = (call() for call in calls.values())
    np.testing.assert_allclose(first, second, rtol=2e-5, atol=2e-5)
    found = {name: [] for name in calls}
    for round_ in range(-3, rounds):
        # Each goes first as often as the other.
        for name, call in list(calls.items())[:: 1 if round_ % 2 else -1]:
            start = time.process_time()
            call()
            if round_ >= 0:
                found[name].append(time.process_time() - start)
    return found


if __name__ == "__main__":
    main()
