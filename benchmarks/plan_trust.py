"""The accuracy of `plan`: times against published ones, memory against the compiler's.

Step times are predicted here; most of the published ones are held out. Peaks of memory are those of
`plan_receipts.py`.

python benchmarks/plan_trust.py            # the table
python benchmarks/plan_trust.py --fit      # the constants that fit the rows that are not held out
python benchmarks/plan_trust.py --json benchmarks/results/plan_trust.json
"""

import argparse
import json
import math
from itertools import product
from pathlib import Path

import plan_receipt as receipts
from plan_published import ROWS, Row, work_of_row

from jaxformer.distributed.slices import parse_chips
from jaxformer.plan.closed_form import Work
from jaxformer.plan.roofline import Shares, time_of

LIMIT = 0.25
"""How far a step time may be from what was measured, as a part of it."""
PEAK_LIMIT = 0.15
"""How far a peak may be from the compiler's."""
RECEIPTS = Path(__file__).parent / "results" / "plan_receipts.json"


def chip_of(row: Row) -> str:
    """The name of a row's chip."""
    return parse_chips(row.chips).chip.name


def misses(rows: list[tuple[Row, Work]], shares: Shares) -> float:
    """The sum of the squares of the logarithm of predicted over measured."""
    total = 0.0
    for row, work in rows:
        seconds = time_of(work, parse_chips(row.chips), row.mesh, shares).seconds
        total += math.log(seconds / row.seconds) ** 2
    return total


def fit() -> None:
    """Prints the constants that fit the rows that are not held out."""
    rows = [(row, work_of_row(row)) for row in ROWS if not row.held_out]
    chips = sorted({chip_of(row) for row, _ in rows})
    groups = [[pair for pair in rows if chip_of(pair[0]) == chip] for chip in chips]
    grid = [share / 100 for share in range(40, 96)]
    best = None
    for overlap, attention in product((0.0, 0.5, 0.8, 0.9, 1.0), (0.2, 0.25, 0.3, 0.4, 0.5)):
        found, total = {}, 0.0
        for chip, group in zip(chips, groups, strict=True):
            scored = [(misses(group, Shares(s, attention, overlap)), s) for s in grid]
            miss, found[chip] = min(scored)
            total += miss
        if best is None or total < best[0]:
            best = total, overlap, attention, found
    print(f"overlap {best[1]}, attention {best[2]}, products {best[3]}")


def table() -> list[dict]:
    """One line per row."""
    lines = []
    for row in ROWS:
        step = row.predicted()
        line = {
            "model": row.model,
            "chips": row.chips,
            "rows": row.rows,
            "length": row.length,
            "held_out": row.held_out,
            "measured_seconds": round(row.seconds, 3),
            "predicted_seconds": round(step.seconds, 3),
            "ratio": round(step.seconds / row.seconds, 3),
            "binding": step.binding,
            "source": row.source,
            "date": row.date,
        }
        lines.append(line)
    return lines


def memory() -> dict:
    """The number of predicted peaks near the compiler's, and a list of the others."""
    ratios = {name: round(each.ratio, 3) for name, each in receipts.read(RECEIPTS).items()}
    far = {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > PEAK_LIMIT}
    mean = sum(abs(ratio - 1) for ratio in ratios.values()) / len(ratios)
    return {"recipes": len(ratios), "mean_error": round(mean, 3), "far": far}


def main() -> None:
    """Prints the table, or fits the constants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit the constants")
    parser.add_argument("--json", help="where to write the table")
    options = parser.parse_args()
    if options.fit:
        fit()
        return
    lines = table()
    for line in lines:
        kind = "held out" if line["held_out"] else "fitted"
        print(
            f"{line['model']:14s} {line['chips']:12s} {kind:8s} measured "
            f"{line['measured_seconds']:8.3f} s, predicted {line['predicted_seconds']:8.3f} s "
            f"({line['ratio']:.2f}), {line['binding']} binds"
        )
    for held_out in (False, True):
        ratios = [line["ratio"] for line in lines if line["held_out"] == held_out]
        far = max(abs(ratio - 1) for ratio in ratios)
        within = sum(abs(ratio - 1) <= LIMIT for ratio in ratios)
        kind = "held out" if held_out else "fitted"
        print(f"{kind}: {within} of {len(ratios)} within {LIMIT:.0%}, the farthest {far:.0%} off")
    peaks = memory()
    near = peaks["recipes"] - len(peaks["far"])
    print(
        f"memory: {near} of {peaks['recipes']} within {PEAK_LIMIT:.0%} of the compiler, "
        f"{peaks['mean_error']:.1%} on average; farther off: "
        + (", ".join(f"{name} ({ratio:.2f})" for name, ratio in peaks["far"].items()) or "none")
    )
    if options.json:
        found = {"command": "python benchmarks/plan_trust.py", "rows": lines, "memory": peaks}
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
