"""The names of labels in config.json: kept while they say the same, the data's otherwise."""

import pytest

from jaxformer.hub.tasks.label_names import generic_names, label_names, label_settings, same_labels
from jaxformer.models import Classification, MultiLabel, Regression, TokenClassification
from jaxformer.zoo.common.bert_like import bert

THEIRS = {"id2label": {"1": "good", "0": "bad", "10": "best"}}


def settings(head, names, kept):
    return label_settings(bert(1, 8, 2, heads=(head,)), names, kept)


def test_names_are_in_the_order_of_their_numbers():
    assert label_names(THEIRS) == ("bad", "good", "best")
    assert label_names({"architectures": ["BertForSequenceClassification"]}) == generic_names(2)
    assert label_names({"architectures": ["BertForMaskedLM"]}) == label_names({}) == ()


def test_labels_are_the_same_by_name_or_by_number():
    assert same_labels(("BAD", "good", "Best"), label_names(THEIRS))
    assert same_labels(("0", "1", "2"), label_names(THEIRS))
    assert not same_labels(("good", "bad", "best"), label_names(THEIRS))
    assert not same_labels(("0", "1"), label_names(THEIRS))
    assert not same_labels((), label_names(THEIRS))


@pytest.mark.parametrize("kind", [Classification, TokenClassification])
def test_only_what_changes_is_written(kind):
    head = kind(num_labels=3)
    assert settings(head, ("0", "1", "2"), THEIRS) == {}
    assert settings(head, (), THEIRS) == {}
    assert settings(head, ("a", "b", "c"), THEIRS) == {
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "label2id": {"a": 0, "b": 1, "c": 2},
    }
    several = THEIRS | {"problem_type": "multi_label_classification", "num_labels": 3}
    assert settings(head, (), several) == {"problem_type": "single_label_classification"}
    if kind is Classification:
        assert settings(MultiLabel(num_labels=3), (), several) == {}
        found = settings(MultiLabel(num_labels=3), (), THEIRS)
        assert found == {"problem_type": "multi_label_classification"}
    assert settings(kind(num_labels=2), ("x", "y"), several)["num_labels"] == 2
    assert settings(Classification(label="next_sentence"), (), THEIRS) == {}


def test_numbers_are_a_regression():
    alone = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    assert settings(Regression(), (), alone) == {}
    assert settings(Regression(), (), THEIRS) == {"problem_type": "regression"} | alone
    assert settings(Regression(), (), {}) == {"problem_type": "regression"} | alone
