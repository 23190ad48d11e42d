"""Seconds to compile one training step against the number of layers, scanned and unrolled.

The 32M-parameter Llama shape of train_step.py with more or fewer layers, 1 x 128 tokens; each
measurement in a fresh process, without a compilation cache.

    python benchmarks/compile_time.py --output benchmarks/results/NAME.json
"""

import argparse
from pathlib import Path

from harness import Contender, machine, write
from shapes import SHAPES


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    rows = []
    print("layers  scanned  unrolled")
    for layers in arguments.layers:
        shape = SHAPES["32m"] | {"num_layers": layers}
        seconds = {name: first_step(shape, name == "scanned") for name in ("scanned", "unrolled")}
        rows.append({"layers": layers, **seconds})
        print(f"{layers:6d} {seconds['scanned']:6.1f} s {seconds['unrolled']:7.1f} s")
    write(arguments.output, {"machine": machine(), "rows": rows})


def first_step(shape: dict, scan: bool) -> float:
    """Seconds of tracing and compiling: those of the first step, less those of a later one."""
    contender = Contender("our_step:step", shape, 1, 128, {"scan_layers": scan})
    step = min(contender.steps(3))
    return contender.close()["first_step_seconds"] - step


if __name__ == "__main__":
    main()
