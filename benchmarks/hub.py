"""Seconds and peak memory of importing and exporting a Llama of 1.1B parameters in bfloat16.

Compared with `from_pretrained` and `save_pretrained` of transformers; each measurement runs in
its own process, in turn. The folder is written to a temporary directory first, so that the system
has its files in the cache. Needs requirements-more.txt, Linux and 5 GB of disk.

    python benchmarks/hub.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from harness import Contender, machine, write

CONTENDERS = {"jaxformer": "our_hub", "transformers": "torch_hub"}
# "use" reads every weight once after "load", in which transformers only maps the files.
KINDS = ("load", "use", "load float32", "use float32", "save")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=5, help="measurements of each")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch, "llama"))
        Contender("our_hub:make", folder).close()
        size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 2**20
        measured = [round_of(folder) for _ in range(arguments.rounds)]
    rows = [
        summarise(kind, name, [each[name][kind] for each in measured], size)
        for kind in KINDS
        for name in CONTENDERS
    ]
    write(
        arguments.output,
        {"machine": machine(), "megabytes_on_disk": size, "rounds": measured, "rows": rows},
    )


def round_of(folder: str) -> dict[str, dict]:
    """Contender -> action -> seconds, and the increase of the process's memory."""
    found: dict[str, dict] = {name: {} for name in CONTENDERS}
    targets = (
        ("", "load", folder, None),
        (" float32", "load", folder, "float32"),
        ("", "save", folder, f"{folder}-saved"),
    )
    for suffix, function, *arguments in targets:
        for name, module in CONTENDERS.items():
            facts = Contender(f"{module}:{function}", *arguments).close()
            for kind in {"load", "use", "save"} & set(facts):
                found[name][kind + suffix] = _beyond(facts, kind)
    return found


def _beyond(facts: dict, kind: str) -> dict[str, float]:
    return {
        "seconds": facts[kind]["seconds"],
        "peak": facts[kind]["peak"] - facts["baseline"],
        "peak_anonymous": facts[kind]["peak_anonymous"] - facts["baseline_anonymous"],
    }


def summarise(kind: str, name: str, rounds: list[dict], size: float) -> dict:
    """Prints and returns the medians, with memory relative to the size of the weights."""
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    weights = 2 * size if "float32" in kind else size
    ratios = {f"{key}_ratio": medians[key] / weights for key in ("peak", "peak_anonymous")}
    print(
        f"{kind:12s} {name:12s} {medians['seconds']:6.2f} s   peak {medians['peak']:6.0f} MB "
        f"({ratios['peak_ratio']:.2f} x the weights), without mapped files "
        f"{medians['peak_anonymous']:6.0f} MB ({ratios['peak_anonymous_ratio']:.2f} x)"
    )
    return {"what": kind, "contender": name, **medians, **ratios}


if __name__ == "__main__":
    main()
