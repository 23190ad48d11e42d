"""Rows with several labels: read, learned as in PyTorch, measured, predicted and exported."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_checkpoints import SENTENCES
from sklearn import metrics as reference

from jaxformer.cli import main as cli
from jaxformer.config import load_config, validate
from jaxformer.config.shipped import config_spec
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.labels import LabelSet, Number, is_set, label_set_of, names_in
from jaxformer.data.tasks import LabelledText
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.tables import write_table
from jaxformer.models import Classification, LossOptions, ModelOutput, MultiLabel
from jaxformer.models.heads.metrics import multi_label_scores
from jaxformer.training.resolve import fill
from jaxformer.zoo.common.bert_like import bert

pytestmark = pytest.mark.more

NAMES = ("toxic", "insult", "spam")


@pytest.mark.torch
def test_loss_and_gradients_are_those_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    config = bert(num_layers=1, model_dim=8, num_heads=2, mlp_dim=8, vocab_size=11)
    head = MultiLabel(num_labels=5, pooling="mean").build(jax.random.key(0), config)
    hidden = jnp.asarray(rng.normal(0, 3, (4, 6, 8)), jnp.float32)
    labels = (rng.random((4, 5)) < 0.4).astype(np.float32)
    weights = np.float32([1, 0, 1, 1])

    def mean_loss(hidden):
        batch = {"label": jnp.asarray(labels), "label_weights": jnp.asarray(weights)}
        sums = head.loss(ModelOutput(hidden), batch, LossOptions(), None)
        return sums.loss / sums.weight, sums

    (loss, sums), gradient = jax.value_and_grad(mean_loss, has_aux=True)(hidden)
    scores = np.asarray(head.scores(ModelOutput(hidden)))
    given = torch.tensor(np.asarray(hidden), requires_grad=True)
    kernel, bias = (
        torch.tensor(np.asarray(x[...])) for x in (head.output.kernel, head.output.bias)
    )
    theirs = given.mean(dim=1) @ kernel + bias
    counted = weights > 0
    wanted = torch.nn.BCEWithLogitsLoss()(theirs[counted], torch.tensor(labels[counted]))
    wanted.backward()
    np.testing.assert_allclose(scores, theirs.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(loss, wanted.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, given.grad.numpy(), atol=1e-6)
    right = ((scores > 0) == (labels > 0))[counted].all(axis=1).sum()
    assert float(sums.correct) == right


@pytest.mark.parametrize("count", [1, 4])
def test_scores_are_those_of_scikit_learn(count):
    rng = np.random.default_rng(count)
    predicted, true = (rng.random((2, 40, count)) < 0.3).astype(int)
    predicted[:, -1] = 0
    weights = (rng.random(40) < 0.8).astype(np.float32)
    names = tuple("abcd"[:count])
    found = multi_label_scores(predicted, true, weights, names)
    rows = true[weights > 0], predicted[weights > 0]
    each = [reference.f1_score(rows[0][:, n], rows[1][:, n], zero_division=0) for n in range(count)]
    assert [found[f"f1_{name}"] for name in names] == pytest.approx(each)
    assert found["macro_f1"] == pytest.approx(np.mean(each))
    both = [side.ravel() for side in rows]
    assert found["micro_f1"] == pytest.approx(reference.f1_score(*both, zero_division=0))
    assert found["exact_match"] == pytest.approx((rows[0] == rows[1]).all(axis=1).mean())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (0, False),
        ("1", True),
        (" 0 ", False),
        (True, True),
        (1.0, True),
        ("False", False),
    ],
)
def test_columns_of_0_and_1(value, expected):
    assert is_set(Record("t:1", {"a": value}), "a") == expected


@pytest.mark.parametrize("value", [0.3, "yes", "", None, 2, [1]])
def test_other_values_are_refused(value):
    with pytest.raises(DataError, match=r"t:1: column 'a' holds .*: must be 0 or 1"):
        is_set(Record("t:1", {"a": value}), "a")


def write(file, columns, rows):
    write_table(file, lambda: (dict(zip(columns, row, strict=True)) for row in rows))
    return str(file)


def test_rows_of_columns_and_of_lists(tmp_path):
    table = write(tmp_path / "t.csv", ("text", *NAMES), [("a", 1, 0, 0), ("b", 0, 0, 0)] * 3)
    data = LabelledText(train=table, text=None, label=NAMES, validation=table)
    rows = data.read(table)
    assert [row.label for row in rows[:2]] == [("toxic",), ()]
    assert (data.head, data.as_found(), data.label_names(rows)) == ("multi_label", data, NAMES)
    found = data.label_kind.values([row.label for row in rows], NAMES, ["x"] * 6)
    np.testing.assert_array_equal(found[:2], [[1, 0, 0], [0, 0, 0]])
    lists = write(
        tmp_path / "l.jsonl", ("text", "label"), [("a", ["x"]), ("b", []), ("c", ["y", "x", "x"])]
    )
    data = LabelledText(train=lists, text=None).as_found()
    assert data.labels == LabelSet()
    rows = data.read(lists)
    assert [row.label for row in rows] == [("x",), (), ("y", "x")]
    assert data.label_names(rows) == ("x", "y")
    assert names_in('["x", "y"]') == ("x", "y")
    assert names_in("[x") is names_in("x") is names_in(3) is None
    with pytest.raises(DataError, match="must be a list of labels"):
        label_set_of(Record("t:1", {"label": "x"}), "label")
    with pytest.raises(ConfigError, match="label"):
        LabelledText(label=NAMES, labels=Number())


def test_rows_that_nobody_labelled_are_left_out(tmp_path):
    rows = [("a", 1, 0, 0), ("b", -1, -1, -1), ("c", 0, 1, 0)]
    table = write(tmp_path / "t.csv", ("text", *NAMES), rows)
    assert len(LabelledText(train=table, text=None, label=NAMES).read(table)) == 2


@pytest.mark.torch
@pytest.mark.slow
def test_a_checkpoint_learns_and_exports_them(tmp_path, checkpoint):
    transformers, torch = (pytest.importorskip(name) for name in ("transformers", "torch"))
    rows = [(text, n % 2, int(n % 3 == 0), 0) for n, text in enumerate(SENTENCES[:24])]
    origin = str(checkpoint("bert"))
    table = write(tmp_path / "t.jsonl", ("comment", *NAMES), rows)
    run, exported, output = (tmp_path / name for name in ("run", "out", "out.csv"))
    options = ["--init-from", origin, "--data.train", table, "--data.validation", table]
    options += ["--data.text", "comment", "--data.label", *NAMES, "--train.steps", "2"]
    options += ["--data.batch-size", "4", "--optimizer.schedule.learning-rate", "0.01"]
    run_dir = ["--run-dir", str(run)]
    assert cli.main(["train", "finetune_classification", *options, *run_dir]) == 0
    assert cli.main(["export", str(run), str(exported)]) == 0
    values = json.loads((exported / "config.json").read_text())
    assert values["problem_type"] == "multi_label_classification"
    assert values["id2label"] == {str(n): name for n, name in enumerate(NAMES)}
    assert cli.main(["predict", str(run), "--input", table, "--output", str(output)]) == 0
    classify = transformers.pipeline("text-classification", model=str(exported), top_k=None)
    predicted = [record.values for record in read_records(output)]
    for row, found in zip(predicted, classify([row[0] for row in rows]), strict=True):
        wanted = {each["label"]: each["score"] for each in found}
        for name in NAMES:
            assert float(row[f"score_{name}"]) == pytest.approx(wanted[name], abs=1e-5)
        above = [name for name in NAMES if wanted[name] > 0.5]
        assert json.loads(row["labels"]) == above
    # The loss is the one that transformers gives to the export.
    model = transformers.AutoModelForSequenceClassification.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    inputs = tokenizer([row[0] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = model(**inputs, labels=torch.tensor([row[1:] for row in rows]).float()).loss
    measured = json.loads((run / "evaluation.json").read_text())["metrics"]
    assert measured["loss"] == pytest.approx(wanted.item(), rel=2e-3)  # in bfloat16
    # A run that starts from it keeps the order of its labels and the head.
    config = load_config(config_spec("finetune_classification"))
    lists = write(
        tmp_path / "l.jsonl",
        ("sentence", "label"),
        [(text, ["spam", "toxic", "insult"][: n % 4]) for n, text in enumerate(SENTENCES[:24])],
    )
    data = replace(config.data, train=lists)
    config = fill(replace(config, init_from=str(exported), data=data)).config
    assert config.data.label_order == NAMES
    assert type(config.model.heads[0]) is MultiLabel
    one = config.model.with_fields(heads=(Classification(num_labels=3),))
    with pytest.raises(ConfigError, match="use MultiLabel"):
        validate(replace(config, model=one), 1)
