"""GLUE's nine tasks and its diagnostic set: their files, labels and metrics.

References:
    Wang et al., GLUE, https://arxiv.org/abs/1804.07461
"""

import re
from dataclasses import dataclass

from jaxformer.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class GlueTask:
    """How a task is distributed and scored."""

    title: str
    """The name of its folder."""
    text: tuple[str, ...]
    """The columns of its texts in a .tsv file."""
    label: str
    """The column of the label in a .tsv file."""
    metrics: tuple[str, ...]
    """The metrics that GLUE reports; their mean is the task's score."""
    labels: tuple[str, ...] = ("0", "1")
    """The labels, in the order of their numbers in Parquet files; empty: a number from 0 to 5."""
    dev: tuple[str, ...] = ("dev",)
    """The splits for validation; the first is measured during training."""
    test: tuple[str, ...] = ("test",)
    """The splits whose predictions are submitted."""
    submissions: tuple[str, ...] = ()
    """The name of the submitted file of each, without its ending; empty: the title."""
    hub_text: tuple[str, ...] = ()
    """The columns of the texts in a Parquet file of the hub; empty: those of a .tsv file."""
    hub_labels: tuple[str, ...] = ()
    """The names of the labels in such a file, in the same order; empty: the same names."""

    @property
    def submitted(self) -> dict[str, str]:
        """The file of each split that is submitted, without its ending."""
        return dict(zip(self.test, self.submissions or (self.title,), strict=True))


_TWO = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILS = ("entailment", "not_entailment")
_PREMISE = ("premise", "hypothesis")
_ACCURACY = ("accuracy",)
_BOTH = ("f1", "accuracy")

TASKS = {
    "cola": GlueTask(
        "CoLA", ("sentence",), "1", ("matthews",), hub_labels=("unacceptable", "acceptable")
    ),
    "sst2": GlueTask(
        "SST-2", ("sentence",), "label", _ACCURACY, hub_labels=("negative", "positive")
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        _BOTH,
        hub_text=_TWO,
        hub_labels=("not_equivalent", "equivalent"),
    ),
    "stsb": GlueTask("STS-B", _TWO, "score", ("pearson", "spearman"), labels=()),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        _BOTH,
        hub_labels=("not_duplicate", "duplicate"),
    ),
    "mnli": GlueTask(
        "MNLI",
        _TWO,
        "gold_label",
        _ACCURACY,
        labels=_NLI,
        dev=("dev_matched", "dev_mismatched"),
        test=("test_matched", "test_mismatched"),
        submissions=("MNLI-m", "MNLI-mm"),
        hub_text=_PREMISE,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), "label", _ACCURACY, labels=_ENTAILS),
    "rte": GlueTask("RTE", _TWO, "label", _ACCURACY, labels=_ENTAILS),
    "wnli": GlueTask("WNLI", _TWO, "label", _ACCURACY, hub_labels=_ENTAILS[::-1]),
}
"""The tasks by their names in transformers, in the order of GLUE's table."""

DIAGNOSTIC = GlueTask("AX", _TWO, "label", ("matthews",), labels=_NLI, hub_text=_PREMISE)
"""The diagnostic set, which is predicted with the model of MNLI."""


def task_name(name: str) -> str:
    """Returns the name of the task that a user means: "SST-2", "sst2" or "STSB"."""
    plain = plain_name(name)
    if plain not in TASKS:
        raise ConfigError(
            f"{name!r} is not a GLUE task: the tasks are {', '.join(TASKS)}"
            f"{did_you_mean(plain, TASKS)}"
        )
    return plain


def plain_name(name: str) -> str:
    """Returns a name in lower case, with only its letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
