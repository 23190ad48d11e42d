"""Fine-tuning on multiple choice: a table, the head of transformers, an export that it loads."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_checkpoints import save_checkpoint

from jaxformer.cli import main as cli
from jaxformer.data import Bytes
from jaxformer.data.tasks import ChoiceText
from jaxformer.data.tasks.choice_text import ChoiceExamples
from jaxformer.data.tasks.sequences import TokenizedText, model_inputs
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import AbstractModel, DecoderConfig, EncoderConfig
from jaxformer.models.heads.choices import MultipleChoice
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward

ROW = {"sent1": "A dog runs.", "sent2": "It", "label": 1}
ROW |= {f"ending{number}": f"sees {number} cats." for number in range(4)}


def table(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def read(tmp_path, *rows, **fields):
    return ChoiceText(tokenizer=Bytes(), **fields).read(table(tmp_path / "a.jsonl", *rows))


def test_the_columns_of_swag_are_read(tmp_path):
    (row,) = read(tmp_path, ROW)
    assert row.context == "A dog runs."
    assert row.choices == tuple(f"It sees {number} cats." for number in range(4))
    assert row.label == 1


def test_a_column_may_hold_a_list(tmp_path):
    fields = {"context": "q", "start": None, "choices": ("answers",), "num_choices": 3}
    (row,) = read(tmp_path, {"q": "Why?", "answers": ["a", "b", "c"], "label": "2"}, **fields)
    assert row[1:] == ("Why?", ("a", "b", "c"), 2)
    with pytest.raises(DataError, match=r"2 choices: must be data\.num_choices = 3"):
        read(tmp_path, {"q": "Why?", "answers": ["a", "b"], "label": 0}, **fields)
    with pytest.raises(DataError, match="must have a list of texts"):
        read(tmp_path, {"q": "Why?", "answers": "a", "label": 0}, **fields)


@pytest.mark.parametrize("label", [4, -1, "x", None, True, 1.5])
def test_a_label_is_the_number_of_a_choice(tmp_path, label):
    with pytest.raises(DataError, match=r"must be the number of the right choice, 0 to 3"):
        read(tmp_path, ROW | {"label": label})


def test_fields_must_agree():
    with pytest.raises(ConfigError, match="one column, or num_choices = 4 of them"):
        ChoiceText(choices=("a", "b"))
    sizes = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "mlp_dim": 8, "vocab_size": 9}
    causal = DecoderConfig(**sizes, heads=(MultipleChoice(),))
    with pytest.raises(ConfigError, match="an encoder, not a causal model"):
        AbstractModel(causal.build)
    with pytest.raises(ConfigError, match="pooling = 'last': must be 'first' to train"):
        MultipleChoice(pooling="last").reads(2, 3)


def test_choices_side_by_side_score_as_apart():
    """The row of a batch against each choice as a row of its own."""
    config = EncoderConfig(
        num_layers=2, model_dim=16, num_heads=2, mlp_dim=20, vocab_size=300, token_types=2,
        pooler="tanh", heads=(MultipleChoice(),), compute_dtype="float32",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    sizes = [5, 9, 7]
    texts = [rng.integers(300, size=size).astype(np.int32) for size in sizes]
    types = [(np.arange(size) > 2).astype(np.int32) for size in sizes]
    rows = [TokenizedText(*pair) for pair in zip(texts, types, strict=True)]
    source = ChoiceExamples([rows], [2], 9, 0)
    batch = {name: jnp.asarray(x)[None] for name, x in source.read(0, rng).items()}
    model = config.build(jax.random.key(0))
    scores = model.scores(batch)["choice"]
    apart = [
        {name: jnp.asarray(x)[None] for name, x in model_inputs(row, 9, 0).items()} for row in rows
    ]
    alone = jnp.stack([model.scores(each)["choice"][0] for each in apart])
    np.testing.assert_allclose(scores[0], alone, atol=1e-5)
    _, losses = model.loss(batch)
    expected = -jax.nn.log_softmax(alone)[2]
    np.testing.assert_allclose(losses["choice"].loss, expected, atol=1e-5)
    assert source.blank()["choice_weights"] == 0


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_from_the_command_line_is_exported_for_transformers(tmp_path, capsys):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    origin = save_checkpoint("bert", tmp_path / "bert")
    endings = [ROW | {"label": number % 4, "sent1": f"Row {number}."} for number in range(24)]
    file = table(tmp_path / "swag.jsonl", *endings)
    config = Path(__file__).parents[2] / "configs" / "finetune_multiple_choice.py"
    options = ["--init-from", str(origin), "--data.train", file, "--data.batch-size", "8"]
    options += ["--data.sequence-length", "24", "--train.steps", "2", "--train.epochs", "None"]
    assert cli.main(["train", str(config), *options, "--run-dir", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "MultipleChoice" in said
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "out").eval()
    inputs = {"input_ids": np.arange(5, 29).reshape(2, 3, 4)}
    with torch.no_grad():
        expected = theirs(**{n: torch.tensor(x) for n, x in inputs.items()}).logits.numpy()
    found = forward(load(tmp_path / "out"), inputs)["logits"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
