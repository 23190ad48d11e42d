"""The page about engines: the text before its table stays, and each refusal is explained."""

from dataclasses import replace

import pytest

from jaxformer.engines.receipts import Receipt
from jaxformer.engines.table import HEADING, Row, columns, engines_page, measure_all
from jaxformer.engines.table import _cell as cell
from jaxformer.errors import ConfigError


def test_a_cell_has_both_figures():
    receipt = Receipt("fake", "1", 2e-6, 4.0, 256, 256, None, bytes=1, seconds=1.0, limit=1e-4)
    assert cell(receipt) == "2.0e-06 of 4.0, 256"
    body = replace(receipt, greedy_tokens=0, equal_greedy_tokens=0)
    assert cell(body) == "2.0e-06 of 4.0"
    assert cell(replace(receipt, max_difference=0.5)).startswith("differs: ")


@pytest.fixture
def versions(monkeypatch):
    """Engines that need not be installed."""
    monkeypatch.setattr("jaxformer.engines.table.version", lambda name: "1.0")
    for _, engine in columns():
        monkeypatch.setattr(type(engine), "version", "1.0")


@pytest.mark.usefixtures("versions")
def test_what_is_before_the_table_stays():
    names = ["transformers", *(engine.name for _, engine in columns()[1:])]
    row = Row("llama", "LlamaForCausalLM", dict.fromkeys(names, "-"), {"mlx": "a reason"})
    page = engines_page([row], f"# Engines\n\nText.\n\n{HEADING}\n\nan older table\n")
    assert page.startswith(f"# Engines\n\nText.\n\n{HEADING}\n\n| `model_type` |")
    assert "an older table" not in page
    assert "- `llama` in mlx: a reason" in page
    assert page.count("\n| ") == 3
    again = Row("t5", "T5ForConditionalGeneration", dict.fromkeys(names, "new"), {})
    page = engines_page([again], page)
    assert page.count("\n| ") == 4
    assert "- `llama` in mlx: a reason" in page
    assert page.count("easured on") == 2
    assert page.endswith("by `jaxformer engines --only t5`.\n")
    assert engines_page([again, row], page).count("easured on") == 1


@pytest.mark.usefixtures("versions")
def test_what_is_measured_in_one_engine_leaves_the_other_columns():
    before = (
        f"# Engines\n\n{HEADING}\n\n| `model_type` | class | transformers | mlx |\n"
        "| --- | --- | --- | --- |\n"
        "| `llama` | LlamaForCausalLM | 1e-6 of 4.0, 256 | refused |\n\n"
        "- `llama` in mlx: a reason\n- `llama` in iree: an older reason\n\n"
        "Measured on a day, by `jaxformer engines`.\n"
    )
    row = Row("llama", "LlamaForCausalLM", {"iree": "2e-6 of 4.0, 256"}, {})
    for _ in range(2):
        before = engines_page([row], before)
        (line,) = [line for line in before.splitlines() if line.startswith("| `llama`")]
        unknown = ["not measured"]
        assert line.strip("| ").split(" | ")[2:] == (
            ["1e-6 of 4.0, 256", *unknown * 2, "refused", *unknown * 2, "2e-6 of 4.0, 256"]
        )
        assert "- `llama` in mlx: a reason" in before
        assert "older reason" not in before
        assert "Measured on a day, by `jaxformer engines`." in before
    assert before.endswith("by `jaxformer engines --engines iree`.\n")


def test_every_engine_of_an_exact_format_has_a_column():
    names = [engine.name for _, engine in columns()]
    assert len(names) == len(set(names))
    assert {"transformers", "mlx", "jax", "iree"} <= set(names)


@pytest.mark.parametrize(("option", "name"), [("only", "t6"), ("engines", "tflite")])
def test_what_is_not_in_the_table(option, name):
    with pytest.raises(ConfigError, match=f"--{option} {name}: must be among"):
        next(measure_all(**{option: [name]}))
