"""Runs transformers' own tests of its Flax classes on `jaxformer.flax`, and writes a table.

    python -m flax_suite REPOSITORY --transformers SITE --out docs/flax-tests.md [MODEL ...]

REPOSITORY is a checkout of transformers with these tests, in tests/models/bert and the others;
nothing in it is changed. SITE is a folder with transformers 4.55 and the versions of
huggingface_hub and tokenizers that it needs (docs/testing.md). Each file of tests runs in a process
of its own. The page is written after each: the rows of its model are replaced, others stay.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Convolutional networks, which are not models of this library.
LEFT_OUT = ("regnet", "resnet")
# What a failure says that only looked for weights on the hub, and a test that is skipped for them.
_HUB = re.compile(r"huggingface_hub|HF_HUB_OFFLINE|hub cannot be reached|test is (too )?slow")
_COUNTS = re.compile(r"\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")
_TEST = re.compile(r"\| `(\w+)\.py")
KINDS = ("passed", "failed", "hub", "skipped")
BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"


def files_of(repository, models):
    """The files of tests by model, in the order of the names."""
    found = sorted(repository.glob("tests/models/*/test_modeling_flax_*.py"))
    wanted = {path.parent.name: path for path in found if path.parent.name not in LEFT_OUT}
    return {name: wanted[name] for name in models or wanted if name in wanted}


def run(path, repository, site):
    """The results of a file of tests: the last one of each test, with a reason."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.jsonl")
        paths = [site, ROOT, ROOT / "tests"]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "FLAX_SUITE_RESULTS": str(results),
            "HF_HUB_OFFLINE": "1",
            "JAX_PLATFORMS": "cpu",
            # Most of the time goes into compiling programs that run for a millisecond.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "flax_suite.plugin", path]
        command += ["-p", "no:cacheprovider"]
        status = subprocess.run(command, cwd=repository, env=environment).returncode
        found = merged(
            map(json.loads, results.read_text().splitlines() if results.exists() else ())
        )
        if status not in (0, 1):  # passed, or some failed
            reason = f"pytest ended with status {status}"
            found[str(path)] = {"test": str(path), "outcome": "failed", "reason": reason}
        return found


def merged(lines):
    """One result for each test: failed if a part of it failed."""
    found = {}
    for line in lines:
        known = found.get(line["test"])
        if known is None or known["outcome"] != "failed":
            found[line["test"]] = line
    return found


def kind_of(result):
    """Passed, failed, skipped, or "hub" for a test that needs weights of the hub."""
    unmet = result["outcome"] != "passed" and _HUB.search(result["reason"])
    return "hub" if unmet else result["outcome"]


def rows_of(model, results):
    """The rows of a model: its counts, then each test that did not pass."""
    count = Counter(map(kind_of, results.values()))
    rows = [f"| {model} | {' | '.join(str(count[kind]) for kind in KINDS)} |"]
    for name, result in results.items():
        kind = kind_of(result)
        if kind != "passed":
            short = name.rpartition("/")[2].replace("test_modeling_flax_", "")
            rows.append(f"| `{short}` | {kind} | {reason(result)} |")
    return rows


def read_rows(lines):
    """The rows of each model in the lines of `page`."""
    rows = {}
    for line in lines:
        if counts := _COUNTS.fullmatch(line):
            rows[counts[1]] = [line]
        elif test := _TEST.match(line):
            rows[test[1]].append(line)
    return rows


def page(rows):
    """The lines of the tables: counts of all and of each model, and tests that did not pass."""
    counts = [_COUNTS.fullmatch(first).groups()[1:] for first, *_ in rows.values()]
    passed, failed, hub, skipped = (sum(map(int, column)) for column in zip(*counts, strict=True))
    ran = passed + failed
    return [
        f"{passed} of {ran} tests pass ({100 * passed / max(ran, 1):.1f} %). "
        f"{hub} more need weights from the hub, and {skipped} are skipped.",
        "",
        "| model | passed | failed | need the hub | skipped |",
        "| --- | --- | --- | --- | --- |",
        *(rows[model][0] for model in sorted(rows)),
        "",
        "| test | result | reason |",
        "| --- | --- | --- |",
        *(line for model in sorted(rows) for line in rows[model][1:]),
    ]


def reason(result):
    """The first line of a reason, as a cell."""
    if result["outcome"] == "failed" and kind_of(result) == "hub":
        return "loads weights from the hub"
    text = (result["reason"].strip().splitlines() or [""])[0].removeprefix("Skipped: ")
    text = re.sub(r"/\S*/tmp\w*", "FOLDER", text)
    return text.replace("|", "\\|").replace("<", "&lt;")[:160]


def main(arguments=None):
    """Runs the files, and writes the tables between the markers of a page."""
    parser = argparse.ArgumentParser(prog="python -m flax_suite", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("models", nargs="*", help="bert, gpt2, ...; without any, all of them")
    parser.add_argument("--transformers", type=Path, required=True, dest="site")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    parser.add_argument("--missing", action="store_true", help="those without a row on the page")
    given = parser.parse_intermixed_args(arguments)
    files = files_of(given.repository.resolve(), given.models)
    if not files:
        parser.error(f"{given.repository}: has no tests/models/*/test_modeling_flax_*.py")
    for model, path in files.items():
        if given.missing and model in read_rows(given.out.read_text().splitlines()):
            continue
        results = run(path, given.repository.resolve(), given.site.resolve())
        before, _, rest = given.out.read_text().partition(BEGIN)
        inside, _, after = rest.partition(END)
        lines = page(read_rows(inside.splitlines()) | {model: rows_of(model, results)})
        given.out.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


if __name__ == "__main__":
    main()
