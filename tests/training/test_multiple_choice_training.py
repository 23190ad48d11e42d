"""Fine-tuning on multiple choice: a table, the head of transformers, an export that it loads."""

from pathlib import Path

import jax
import numpy as np
import pytest
from corpora import write_rows
from tiny_models import structure_of, tiny
from train_steps import program_of, stepped

from jaxformer.cli import main as cli
from jaxformer.data import Bytes
from jaxformer.data.tasks import ChoiceText
from jaxformer.data.tasks.choice_text import ChoiceExamples
from jaxformer.data.tasks.sequences import EncodedText, model_inputs
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import LayerNorm
from jaxformer.models import EncoderConfig
from jaxformer.models.heads.choices import MultipleChoice
from jaxformer.nn import DotProductAttention, TokenEmbeddings
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward

pytestmark = pytest.mark.more

ROW = {"sent1": "A dog runs.", "sent2": "It", "label": 1}
ROW |= {f"ending{number}": f"sees {number} cats." for number in range(4)}


def read(tmp_path, *rows, **fields):
    return ChoiceText(tokenizer=Bytes(), **fields).read(write_rows(tmp_path / "a.jsonl", rows))


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
    with pytest.raises(ConfigError, match="an encoder, not a causal model"):
        structure_of(tiny(heads=(MultipleChoice(),)))
    with pytest.raises(ConfigError, match="pooling = 'last': must be 'first' to train"):
        MultipleChoice(pooling="last").reads(2, 3)


CONFIG = EncoderConfig(
    num_layers=2, model_dim=16, num_heads=4, mlp_dim=12, vocab_size=40,
    embeddings=TokenEmbeddings(norm=LayerNorm(eps=1e-12), token_types=2),
    pooler="tanh", heads=(MultipleChoice(),), compute_dtype="float32", dropout=0.0,
    self_attention=DotProductAttention(bias=True, output_bias=True),
)  # fmt: skip
LENGTH = 9


def texts(seed=0):
    """Three texts of different lengths, before padding."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(40, size=size).astype(np.int32) for size in (5, LENGTH, 7)]
    return [EncodedText(ids, (np.arange(len(ids)) > 2).astype(np.int32)) for ids in arrays]


def batch_of(rows):
    source = ChoiceExamples(rows, [number % 3 for number in range(len(rows))], LENGTH, 0)
    assert source.blank()["choice_weights"] == 0
    read = [source.read(number, np.random.default_rng(0)) for number in range(len(source))]
    return {name: np.stack([row[name] for row in read]) for name in read[0]}


@pytest.mark.slow
def test_choices_side_by_side_score_as_apart():
    """The row of a batch against each choice as a separate row."""
    batch = batch_of([texts(), texts(1), texts(2)])
    model = CONFIG.build(jax.random.key(0))
    scores = model.scores(batch)["choice"]
    apart = [[model_inputs(each, LENGTH, 0) for each in texts(seed)] for seed in range(3)]
    flat = {name: np.stack([x[name] for row in apart for x in row]) for name in apart[0][0]}
    alone = model.scores(flat)["choice"].reshape(3, 3)
    np.testing.assert_allclose(scores, alone, atol=1e-5)
    expected = -np.trace(jax.nn.log_softmax(alone))
    np.testing.assert_allclose(model.loss(batch)[1]["choice"].loss, expected, atol=1e-5)


@pytest.mark.slow
def test_a_step_on_eight_devices_is_that_on_one():
    batch = batch_of([texts(seed) for seed in range(8)])
    losses = []
    for mesh in ((2, 2, 2), (1, 1, 1)):
        state, (metrics,) = stepped(program_of(CONFIG, mesh), batch)
        losses.append(metrics["loss"])
        assert np.isfinite(jax.device_get(state.params["heads.choice.output.kernel"])).all()
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_from_the_command_line_is_exported_for_transformers(tmp_path, checkpoint, capsys):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    origin = str(checkpoint("bert"))
    endings = [ROW | {"label": number % 4, "sent1": f"Row {number}."} for number in range(24)]
    file = write_rows(tmp_path / "swag.jsonl", endings)
    config = Path(__file__).parents[2] / "configs" / "finetune_multiple_choice.py"
    options = ["--init-from", origin, "--data.train", file, "--data.batch-size", "8"]
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
