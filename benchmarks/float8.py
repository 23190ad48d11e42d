"""The losses of training with products in float8 and in bfloat16, over several seeds.

A small decoder learns the text of Python's standard library: `jaxformer train tiny_decoder` with
two layers, once with each seed and each kind of product. Speed on a CPU is not that of a GPU.

    python benchmarks/float8.py --output benchmarks/results/NAME.json
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import machine, write

SMALLER = (
    "--model.num-layers 2 --model.model-dim 128 --model.mlp-dim 384 --data.sequence-length 128 "
    "--train.sample-tokens 0"
)
KINDS = {"bfloat16": [], "float8": ["--train.float8", "Float8"]}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seeds", type=int, default=3, help="runs of each kind")
    options.add_argument("--steps", type=int, default=300, help="of a run")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()
    report = {"machine": machine(), "steps": arguments.steps, "losses": {}}
    for kind, own in KINDS.items():
        found = [losses(seed, arguments.steps, own) for seed in range(arguments.seeds)]
        report["losses"][kind] = found
        ends = [curve[str(arguments.steps)] for curve in found]
        spread = statistics.stdev(ends) if len(ends) > 1 else float("nan")
        shown = ", ".join(f"{end:.4f}" for end in ends)
        print(f"{kind:9s} {shown}   mean {statistics.mean(ends):.4f} +- {spread:.4f}", flush=True)
        write(arguments.output, report)


def losses(seed: int, steps: int, own: list[str]) -> dict[str, float]:
    """Step -> validation loss of one run."""
    with tempfile.TemporaryDirectory() as folder:
        length = ["--train.steps", str(steps), "--train.eval-interval", str(max(steps // 6, 1))]
        command = [sys.executable, "-m", "jaxformer", "train", "tiny_decoder", *SMALLER.split()]
        command += [*length, *own, "--train.seed", str(seed), "--run-dir", f"{folder}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {str(row["step"]): row["loss"] for row in rows if row["split"] == "validation"}


if __name__ == "__main__":
    main()
