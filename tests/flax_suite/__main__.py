"""Runs transformers' own tests of its Flax classes on `jaxformer.flax`, and writes a table.

    python -m flax_suite REPOSITORY --transformers SITE --out docs/flax-tests.md [MODEL ...]

REPOSITORY is a checkout of transformers 4.55, with tests/models/bert and the others; nothing in it
is changed. SITE is a folder with transformers 4.55 and the versions of huggingface_hub and
tokenizers that it needs (docs/testing.md). Each file of tests runs in a process of its own.
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
# Speech and convolutional networks, which are not models of this library.
LEFT_OUT = ("regnet", "resnet", "speech_encoder_decoder", "wav2vec2", "whisper")
# What a failure says that only looked for weights on the hub, and a test that is skipped for them.
_HUB = re.compile(r"huggingface_hub|HF_HUB_OFFLINE|hub cannot be reached|test is (too )?slow")
BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"


def files_of(repository, models):
    """The files of tests by model."""
    found = sorted(repository.glob("tests/models/*/test_modeling_flax_*.py"))
    wanted = {path.parent.name: path for path in found if path.parent.name not in LEFT_OUT}
    return {name: path for name, path in wanted.items() if not models or name in models}


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
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "flax_suite.plugin", path]
        subprocess.run([*command, "-p", "no:cacheprovider"], cwd=repository, env=environment)
        if not results.exists():
            return {str(path): {"outcome": "failed", "reason": "pytest did not start"}}
        return merged(map(json.loads, results.read_text().splitlines()))


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


def page(results):
    """The lines of the table: the counts of each model, then each test that did not pass."""
    counts = {model: Counter(map(kind_of, found.values())) for model, found in results.items()}
    total = sum(counts.values(), Counter())
    ran = total["passed"] + total["failed"]
    lines = [
        f"{total['passed']} of {ran} tests pass ({100 * total['passed'] / max(ran, 1):.1f} %). "
        f"{total['hub']} more need weights from the hub, and {total['skipped']} are skipped.",
        "",
        "| model | passed | failed | need the hub | skipped |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {model} | {count['passed']} | {count['failed']} | {count['hub']} "
            f"| {count['skipped']} |"
            for model, count in counts.items()
        ),
        "",
        "| test | result | reason |",
        "| --- | --- | --- |",
    ]
    for found in results.values():
        for name, result in found.items():
            kind = kind_of(result)
            if kind != "passed":
                short = name.rpartition("/")[2].replace("test_modeling_flax_", "")
                lines.append(f"| `{short}` | {kind} | {reason(result)} |")
    return lines


def reason(result):
    """The first line of a reason, as a cell."""
    if result["outcome"] == "failed" and kind_of(result) == "hub":
        return "loads weights from the hub"
    text = (result["reason"].strip().splitlines() or [""])[0].removeprefix("Skipped: ")
    text = re.sub(r"/\S*/tmp\w*", "FOLDER", text)
    return text.replace("|", "\\|").replace("<", "&lt;")[:160]


def main(arguments=None):
    """Runs the files, and writes the table between the markers of a page."""
    parser = argparse.ArgumentParser(prog="python -m flax_suite", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("models", nargs="*", help="bert, gpt2, ...; without any, all of them")
    parser.add_argument("--transformers", type=Path, required=True, dest="site")
    parser.add_argument("--out", type=Path, help="the page; without it, the table is printed")
    given = parser.parse_intermixed_args(arguments)
    files = files_of(given.repository.resolve(), given.models)
    if not files:
        parser.error(f"{given.repository}: has no tests/models/*/test_modeling_flax_*.py")
    results = {
        model: run(path, given.repository.resolve(), given.site.resolve())
        for model, path in files.items()
    }
    lines = page(results)
    if given.out is None:
        print("\n".join(lines))
        return
    before, _, rest = given.out.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    given.out.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]))


if __name__ == "__main__":
    main()
