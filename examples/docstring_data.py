"""Makes small fine-tuning datasets out of the docstrings of Python's standard library.

    python examples/docstring_data.py DATA_DIR

It needs no download and writes the same files for the same Python:

    text/MODULE.txt       the documentation of each module, to pre-train on
    chat.jsonl            {"messages": [...]}: what a function does, asked and answered
    preferences.jsonl     {"prompt", "chosen", "rejected"}: the answer, and one that says little
    train.csv, dev.csv    text, label: one line of documentation, and what it documents
    summaries.jsonl       {"document", "summary"}: a docstring, and its first line
"""

import ast
import csv
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Docstring(NamedTuple):
    """A documented class, function or method."""

    module: str
    name: str
    kind: str
    """class, function or method."""
    summary: str
    """The first paragraph, on one line."""
    body: str
    """The rest."""


def main(folder: Path) -> None:
    """Writes all files."""
    found = list(docstrings())
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for module in dict.fromkeys(item.module for item in found):
        entries = (item for item in found if item.module == module)
        text = "\n\n".join(f"{item.name}\n{item.summary}\n{item.body}".strip() for item in entries)
        (folder / "text" / f"{module}.txt").write_text(text + "\n", encoding="utf-8")

    functions = [item for item in found if item.kind == "function"]
    write_json_lines(
        folder / "chat.jsonl",
        ({"messages": [asked(item), answered(item.summary)]} for item in functions),
    )
    write_json_lines(
        folder / "preferences.jsonl",
        (
            {
                "prompt": [asked(item)],
                "chosen": [answered(item.summary)],
                "rejected": [answered(f"It is a function of the module {item.module}.")],
            }
            for item in functions
        ),
    )
    long = [item for item in found if len(item.body) > 200]
    write_json_lines(
        folder / "summaries.jsonl",
        ({"document": item.body[:1500], "summary": item.summary} for item in long),
    )
    sides = {"train.csv": [], "dev.csv": []}
    for item in {item.summary: item for item in found}.values():
        held_out = hashlib.sha256(item.summary.encode()).digest()[0] < 26
        sides["dev.csv" if held_out else "train.csv"].append((item.summary, item.kind))
    for name, rows in sides.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    for path in sorted(folder.iterdir()):
        size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
        print(f"{path}  {size:,} bytes")


def docstrings() -> Iterator[Docstring]:
    """Yields the documented classes, functions and methods of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue
        for name, kind, node in definitions(tree, path.stem):
            first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            summary = " ".join(first.split())
            if 15 <= len(summary) <= 120 and summary.isascii():
                yield Docstring(path.stem, name, kind, summary, rest.strip())


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, ast.AST]]:
    """Yields the names, kinds and nodes of what a module or a class defines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}.{child.name}", "class", child
            yield from definitions(child, f"{prefix}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "method" if isinstance(node, ast.ClassDef) else "function"
            yield f"{prefix}.{child.name}", kind, child


def asked(item: Docstring) -> dict[str, str]:
    """The question."""
    return {"role": "user", "content": f"What does {item.name} do?"}


def answered(text: str) -> dict[str, str]:
    """The answer."""
    return {"role": "assistant", "content": text}


def write_json_lines(path: Path, rows) -> None:
    """Writes one JSON object on each line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
