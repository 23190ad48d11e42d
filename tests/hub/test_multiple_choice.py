"""Classes for multiple choice: one of several texts, whose inputs have an axis of choices."""

import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_outputs, models

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.describe import describe_model
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.models import Dense, EncoderConfig, MultipleChoice
from jaxformer.nn import MLP
from jaxformer.parity.examples import CHOICES, example_inputs
from jaxformer.pretrained.prediction.api import open_predictor
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch
KIND = "MultipleChoice"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return jaxformer.load(save_tiny("bert", tmp_path_factory.mktemp("bert"), KIND))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.slow
def test_modernbert_pools_what_is_no_padding(pooling, tmp_path):
    ours, theirs = models(save_tiny("modernbert", tmp_path, KIND, classifier_pooling=pooling))
    for padding in ("left", "right"):
        check_outputs(ours, theirs, example_inputs(ours.checkpoint, padding))


def test_scores_have_a_column_for_each_choice(bert):
    inputs = example_inputs(bert.checkpoint, "right")
    rows, choices, _ = inputs["input_ids"].shape
    outputs = jaxformer.forward(bert, inputs)
    assert outputs["logits"].shape == (rows, choices) == (3, CHOICES)
    # A choice is scored alone: in another order, its score is the same.
    others = {name: array[:, ::-1] for name, array in inputs.items() if array.ndim == 3}
    turned = jaxformer.forward(bert, others)["logits"]
    np.testing.assert_allclose(turned[:, ::-1], outputs["logits"], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": np.ones((3, 4), int)}, r"must have the shape \[B, C, T\], not \(3, 4\)"),
        ({"labels": np.array([0, 1, 2])}, "labels holds 0 to 2, but the model has 0 to 1"),
        ({"labels": np.zeros((3, 2), int)}, r"labels must have the shape \[B\]"),
        ({"attention_mask": np.ones((3, 11), int)}, "attention_mask has shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(bert, changes, message):
    inputs = {
        name: changes.get(name, array)
        for name, array in example_inputs(bert.checkpoint, "right").items()
        if name in changes or "input_ids" not in changes
    }
    with pytest.raises(DataError, match=message):
        jaxformer.forward(bert, inputs)


def test_predict_says_what_it_cannot_read(bert):
    with pytest.raises(ConfigError, match=r"its head .MultipleChoice. cannot predict"):
        open_predictor(bert.folder)


def test_a_model_of_no_system_is_described_by_its_head():
    head = MultipleChoice(pooling="mean", dense=Dense("relu"))
    config = EncoderConfig(
        num_layers=1,
        model_dim=8,
        num_heads=2,
        mlp_dim=8,
        vocab_size=9,
        feed_forward=MLP(bias=True),
        heads=(head,),
    )
    task = describe_model(config, FORMATS.values(), {}).architecture.task
    assert task == MultipleChoiceTask("mean", Dense("relu"))
