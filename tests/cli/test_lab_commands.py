"""`jaxformer lab`: the list of its commands, and the commands about positions and diagrams."""

import csv
import re

import pytest
from typed_commands import command, printed, refused

from jaxformer.cli import main as cli

pytestmark = pytest.mark.more

SMALL = ["--length", "6", "--model-dim", "8", "--num-heads", "2", "--limit", "500"]


@pytest.mark.parametrize("words", [["lab"], ["lab", "--help"], ["lab", "-h"]])
def test_the_commands_of_the_laboratory_are_listed(words, capsys):
    listed = re.findall(r"^  lab ([\w-]+) ", printed(capsys, *words), flags=re.MULTILINE)
    assert {"positions", "diagram"} <= set(listed)
    assert len(listed) == sum(name.startswith("lab ") for name in cli.COMMANDS)


def test_an_unknown_command_of_the_laboratory_has_a_suggestion(capsys):
    assert "did you mean 'lab positions'?" in refused(capsys, "lab", "postions")


def test_positions_of_some_schemes(tmp_path, capsys):
    folder = tmp_path / "new" / "report"
    words = ["--schemes", "binary", "alibi", "--out", folder, *SMALL]
    output = printed(capsys, "lab", "positions", *words)
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures == {"binary", "alibi", "scores-by-scheme"}
    page = (folder / "positions.html").read_text()
    assert page.count('src="data:image/png;base64,') == 3
    with (folder / "numbers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["scheme"] for row in rows} == {"binary", "alibi"}
    (shares,) = [row["value"] for row in rows if "share" in row["quantity"]][:1]
    assert float(shares) < 1
    assert "digits that change, most" in output
    assert len([line for line in output.splitlines() if line.startswith("binary")]) == 5


@pytest.mark.slow
def test_positions_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("lab", "positions")
    folder = tmp_path / "runs" / "lab-positions"
    assert len(list(folder.glob("*.png"))) == 14
    assert (folder / "positions.html").stat().st_size < 10_000_000


@pytest.mark.parametrize(
    ("out", "message"),
    [("file/report", r"out = '.*report': must be a writable folder"), ("file", "File exists")],
)
def test_a_folder_that_cannot_be_written_is_named(out, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    said = refused(capsys, "lab", "positions", "--out", tmp_path / out, *SMALL)
    assert re.search(message, said)


def test_the_diagram_of_a_shipped_config_with_options(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["tiny_decoder", "--model.num-layers", "3", "--model.residual", "SandwichNorm"]
    assert printed(capsys, "lab", "diagram", *words) == "written to tiny_decoder.svg\n"
    drawing = (tmp_path / "tiny_decoder.svg").read_text()
    assert drawing.startswith("<?xml")
    assert "Masked self-attention" in drawing


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bert:base", "t5", "vit", "transformer_2017:base", "llama3_8b", "gptj", "albert"]
)
def test_the_diagram_of_each_family(name, tmp_path):
    command("lab", "diagram", name, "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("positions --schemes rop", "did you mean 'rope'?"),
        ("positions --model-dim 10", "must be a multiple of num_heads = 8"),
        ("positions --lenght 10", "length"),
        ("diagram", "name an experiment first"),
        ("diagram tiny_decodr", "did you mean 'tiny_decoder'?"),
        ("diagram finetune_qa", "model = None: set a model"),
        ("diagram tiny_decoder --out a.jpg", "must end in one of .svg, .png, .pdf"),
        ("diagram tiny_decoder --out nowhere/a.svg", "must be in an existing folder"),
        ("diagram tiny_decoder --model.num-heads 5", "is not divisible by model.num_heads = 5"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "lab", *words.split())
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
