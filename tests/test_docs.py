"""The guides: every block runs as typed, and shows what the page says that it shows.

The blocks of a page run in their order in one folder, as a reader types them. A block of Python
whose first line is `# NAME.py` is saved under that name. In outputs, numbers and the width of rules
and columns may differ from the page's; words may not. A line of dots stands for any lines.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from captioners import photos, save_captioner
from chat_cases import QWEN
from hf_checkpoints import save_checkpoint
from sentence_models import save_transformer
from tiny_run import tiny_config

from jaxformer.cli import main as cli

pytestmark = pytest.mark.more

ROOT = Path(__file__).parent.parent
PAGES = {
    "finetuning.md": 10,
    "extending.md": 15,
    "quickstart.md": 4,
    "looking-inside.md": 9,
    "images-and-texts.md": 6,
    "from-flax.md": 12,
}
"""The pages whose blocks run, alone or as files that later ones name, with how many at least."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.]+\.py)\n")
_DURATION = re.compile(r"\b(\d+:)?\d+:\d\d\b|\b(\d+ ?h ?)?(\d+ ?m(in)? ?)?\d[\d.]* ?s\b")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?([kMBT]\b)?")


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
    ]


def shape(line: str) -> str:
    """A line of output without what differs between machines: numbers, rules and widths."""
    line = _DURATION.sub("# s", re.sub(r"[━─=_-]{3,}", "---", line))
    return " ".join(_NUMBER.sub("#", line).split())


def missing_line(expected: str, output: str) -> str | None:
    """The first line of an output on the page that the real one does not have, in order."""
    lines = iter([shape(line) for line in output.splitlines()])
    for line in filter(str.strip, expected.splitlines()):
        if line.strip() != "..." and shape(line) not in lines:
            return line
    return None


def test_a_missing_line_is_found():
    assert missing_line("loss 1.5\n...\nend 3 s", "loss 2.25\nmore\nend 12 s") is None
    assert missing_line("done in 16s", "done in 1m 04s") is None
    assert missing_line("loss 1.5\nend", "end\nloss 2.25") == "end"
    assert missing_line("accuracy 0.5", "loss 2.25") == "accuracy 0.5"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_page_runs(name, tmp_path):
    for link in ("train.py", "configs", "examples"):
        (tmp_path / link).symlink_to(ROOT / link)
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    commands = {"sh": ["bash", "-euc"], "python": [sys.executable, "-c"]}
    output, ran = "", 0
    for block in blocks((ROOT / "docs" / name).read_text(encoding="utf-8")):
        where = f"{name}:{block.line}"
        if saved := _FILE.match(block.text):
            (tmp_path / saved[1]).write_text(block.text, encoding="utf-8")
            ran += 1
        elif block.language in commands:
            command = [*commands[block.language], block.text]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            output, ran = done.stdout + done.stderr, ran + 1
            assert done.returncode == 0, f"{where}: {shlex.join(command)}\n{output[-4000:]}"
        else:
            assert block.language == "text", f"{where}: neither a command nor its output"
            line = missing_line(block.text, output)
            assert line is None, f"{where}: not in the output: {line}\n{output[-4000:]}"
    assert ran >= PAGES[name]


# Pages with blocks of their own, for which a reader has a checkpoint, ids or a config at hand.
EXCERPTS = [
    "README.md",
    *(f"docs/{n}.md" for n in ("embeddings", "families", "generation", "testing", "training")),
]
_COMMAND = re.compile(r"^(?:python -m )?jaxformer ([a-z][\w -]*)")


@pytest.fixture(scope="module")
def at_hand(tmp_path_factory):
    """A folder with the checkpoints that the excerpts name, and the names that they use."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("HF_DIR", "DIR"):
        save_checkpoint("gpt2", folder / name, n_layer=4, n_head=8, n_positions=1024)
        (folder / name / "chat_template.jinja").write_text(QWEN)
    save_captioner(folder / "CAPTIONER")
    save_transformer(folder / "CROSS_ENCODER", "BertForSequenceClassification", num_labels=1)
    photos(folder / "photos", 2)
    ids = np.arange(20, 34, dtype=np.int32).reshape(2, 7)
    names = {
        "ids": ids,
        "mask": np.ones_like(ids),
        "labels": ids,
        "continuations": ids[:, None, :3],
    }
    return folder, names | {"pytest": pytest, "SYSTEMS": ["llama"], "config": tiny_config(steps=4)}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("page", EXCERPTS)
def test_every_excerpt_in_python_runs(page, at_hand, monkeypatch):
    folder, names = at_hand
    monkeypatch.chdir(folder)
    excerpts = [b.text for b in blocks((ROOT / page).read_text()) if b.language == "python"]
    assert excerpts
    for number, text in enumerate(excerpts):
        script = folder / f"excerpt_{number}.py"
        script.write_text(text)
        with jax.numpy_rank_promotion("allow"):  # as a reader has it
            names = names | runpy.run_path(str(script), init_globals=names)
    if page == "README.md":
        assert names["loss"] < 3  # The training loop learns: it began at log(256).


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.stem
)
def test_every_command_of_a_page_exists(page):
    known = {*cli.COMMANDS, *(name.partition(" ")[0] for name in cli.COMMANDS)}
    for block in blocks(page.read_text()):
        for line in block.text.splitlines() if block.language != "python" else ():
            if found := _COMMAND.match(line.strip()):
                first, second, *_ = (*found[1].split(), "")
                wanted = f"{first} {second}" if first in cli.GROUPS else first
                assert wanted in known, f"{page.name}:{block.line}: {line}"
