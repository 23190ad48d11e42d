"""The names of labels in a config.json: "id2label", "label2id" and "problem_type"."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.models.model import ModelConfig

ONE_LABEL = "single_label_classification"
SEVERAL_LABELS = "multi_label_classification"
_REGRESSION = "regression"


def label_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of a checkpoint's labels, ordered by id."""
    if names := values.get("id2label"):
        return tuple(str(names[number]) for number in sorted(names, key=int))
    named = values.get("architectures") or [""]
    return generic_names(values.get("num_labels", 2)) if "Classification" in str(named[0]) else ()


def generic_names(count: int) -> tuple[str, ...]:
    """Returns transformers' default label names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def same_labels(names: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether labels of data are those of a checkpoint, by name (ignoring case) or number."""
    numbers = [str(number) for number in range(len(theirs))]
    folded = [name.casefold() for name in theirs]
    return list(names) == numbers or [name.casefold() for name in names] == folded


def label_settings(
    model: ModelConfig, names: Sequence[str], kept: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the fields of config.json with a model's label names, unless `kept` has them."""
    heads = [each for each in model.heads if each.problem_type and each.name in ("label", "tags")]
    if not heads:
        return {}
    theirs = label_names(kept)
    problem = kept.get("problem_type")
    if heads[0].problem_type == _REGRESSION:
        if len(theirs) == 1 and problem in (None, _REGRESSION):
            return {}
        return {"problem_type": _REGRESSION} | _named(generic_names(1), kept)
    usual = (SEVERAL_LABELS,) if heads[0].problem_type == SEVERAL_LABELS else (ONE_LABEL, None)
    found = {"problem_type": usual[0]} if problem not in usual else {}
    if not names and len(theirs) != heads[0].num_labels:
        names = generic_names(heads[0].num_labels) if kept else ()
    if not names or same_labels(names, theirs):
        return found
    return found | _named(names, kept)


def _named(names: Sequence[str], kept: Mapping[str, Any]) -> dict[str, Any]:
    count = {"num_labels": len(names)} if "num_labels" in kept else {}
    return count | {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
