"""The table of Flax classes in docs/from-flax.md says what the registry says."""

from pathlib import Path

import pytest

from jaxformer.cli.hub.flax import FlaxClasses
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.parity.flax_table import BEGIN, END, flax_table, missing, with_table

PAGE = Path(__file__).parents[2] / "docs" / "from-flax.md"


def test_the_page_is_up_to_date():
    # jaxformer flax-classes --page docs/from-flax.md
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text) == text


def test_every_class_has_a_row_and_says_what_it_is():
    rows = {
        row.split("`")[1]: [cell.strip() for cell in row.split("|")] for row in flax_table()[2:]
    }
    assert list(rows) == [f"Flax{name}" for names in FLAX_CLASSES.values() for name in names]
    assert rows["FlaxCLIPTextModel"][3] == "`CLIPTextModel`"
    assert rows["FlaxGPT2LMHeadModel"][3:6] == [
        "`GPT2LMHeadModel`", "next-token prediction", "`jaxformer generate`",
    ]  # fmt: skip
    assert rows["FlaxWav2Vec2ForCTC"][3] == "`Wav2Vec2ForCTC`"
    assert rows["FlaxResNetModel"][4] == "a convolutional network, not a transformer"
    empty = [name for name, row in rows.items() if not row[4]]
    assert empty == missing() == []


def test_the_command_prints_the_table_and_writes_the_page(tmp_path, capsys):
    assert FlaxClasses().page is None
    assert main(["flax-classes"]) == 0
    assert capsys.readouterr().out.splitlines() == flax_table()
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nend\n")
    assert main(["flax-classes", "--page", str(page)]) == 0
    assert page.read_text().startswith(f"# Title\n\n{BEGIN}\n\n| Flax class |")
    assert page.read_text().endswith(f" |\n\n{END}\n\nend\n")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"# No table\n", "must have the lines <!-- flax"),
        (b"\xff\xfe", "must be a UTF-8 text file"),
    ],
)
def test_a_page_without_a_table_is_one_sentence(data, words, tmp_path, capsys):
    (tmp_path / "page.md").write_bytes(data)
    assert main(["flax-classes", "--page", str(tmp_path / "page.md")]) != 0
    assert words in capsys.readouterr().err


def test_marks_out_of_order_are_an_error():
    with pytest.raises(ConfigError, match="around its table"):
        with_table(f"{END}\n{BEGIN}\n")
