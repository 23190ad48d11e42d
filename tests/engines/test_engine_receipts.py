"""Receipts tell a model that computes the same from one that does not; the page shows them."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import random_model, tiny

from jaxformer.engines import receipts
from jaxformer.engines.base import Engine, LoadedModel
from jaxformer.engines.receipts import Receipt, answers_of, measure, num_equal, perplexity
from jaxformer.engines.reference import ReferenceModel
from jaxformer.engines.table import HEADING, Row, columns, engines_page, measure_all
from jaxformer.engines.table import _cell as cell
from jaxformer.errors import ConfigError


@pytest.fixture(scope="module")
def model():
    return random_model(tiny(vocab_size=64))


class Changed(LoadedModel):
    """jaxformer's own model, with an error added to its outputs."""

    def __init__(self, model, error):
        self._model, self._error = ReferenceModel(model), error

    def outputs(self, prompt):
        return self._model.outputs(prompt) + self._error

    def greedy(self, prompt, count):
        tokens = self._model.greedy(prompt, count)
        return [*tokens[:3], *((token + 1) % 64 for token in tokens[3:])] if self._error else tokens


class FakeEngine(Engine):
    name = "fake"
    module = "numpy"
    version = "1.0"

    def __init__(self, model, error):
        self._model, self._error = model, error

    def load(self, folder, description):
        return Changed(self._model, self._error)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    monkeypatch.setattr(receipts, "GREEDY_TOKENS", 8)


def receipt(model, tmp_path, error, description=None, rows=()):
    (tmp_path / "weights").write_bytes(b"12345")
    engine = FakeEngine(model, error)
    reference = ReferenceModel(model)
    return measure(engine, tmp_path, description or {}, reference, answers_of(reference), rows)


def test_the_same_model_agrees(model, tmp_path):
    found = receipt(model, tmp_path, 0.0)
    assert (found.max_difference, found.equal_greedy_tokens, found.greedy_tokens) == (0.0, 8, 8)
    assert found.bytes == 5
    assert not found.problems
    assert found.as_json()["agrees"]


def test_another_model_does_not(model, tmp_path):
    found = receipt(model, tmp_path, 0.5)
    assert found.max_difference == pytest.approx(0.5)
    assert found.equal_greedy_tokens == 3
    assert len(found.problems) == 2
    assert not found.as_json()["agrees"]


def test_quantised_weights_are_judged_by_their_perplexity(model, tmp_path):
    rows = [np.arange(12) % 64, np.arange(20, 32)]
    found = receipt(model, tmp_path, 0.5, {"quantise": "int8"}, rows)
    assert found.perplexity["engine"] == pytest.approx(found.perplexity["jaxformer"], rel=1e-5)
    assert not found.problems  # the same to every logit changes no probability
    worse = {"jaxformer": 10.0, "engine": 10.3}
    assert len(replace(found, perplexity=worse).problems) == 1


def test_the_perplexity_of_equal_logits_is_the_size_of_the_vocabulary():
    class Uniform(LoadedModel):
        def outputs(self, prompt):
            return np.zeros((len(prompt.tokens), 50), np.float32)

    assert perplexity(Uniform(), [np.arange(9)]) == pytest.approx(50)


def test_nan_and_another_shape_differ():
    right = np.ones((2, 3), np.float32)
    assert receipts.largest_difference(np.full((2, 3), np.nan), right) == np.inf
    assert receipts.largest_difference(np.ones((2, 4)), right) == np.inf
    assert receipts.largest_difference(right * 2, right) == 1


def test_tokens_are_counted_up_to_the_first_that_differs():
    assert num_equal([1, 2, 3, 4], [1, 2, 9, 4]) == 2
    assert num_equal([1, 2], [1, 2, 3]) == 2


def test_an_engine_without_a_tokenizer_is_not_asked_for_tokens(model, tmp_path):
    assert receipt(model, tmp_path, 0.0).equal_tokens_of_text is None


@pytest.mark.parametrize("description", [{"dtype": "bfloat16"}, {"quantise": "int8"}])
def test_fewer_bits_without_validation_data_are_not_judged(description, model, tmp_path):
    found = receipt(model, tmp_path, 0.5, description)
    assert not found.judged
    assert found.as_json()["agrees"] is None
    judged = receipt(model, tmp_path, 0.5, description, [np.arange(12) % 64])
    assert judged.as_json()["agrees"] is True


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
