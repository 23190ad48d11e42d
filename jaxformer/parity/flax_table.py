"""The table of docs/from-flax.md: Flax classes of transformers 4.55 and their equivalents."""

import inspect

from jaxformer.errors import ConfigError
from jaxformer.hub.flax_classes import FLAX_CLASSES, flax_architecture
from jaxformer.hub.tasks.classes import (
    CausalLMTask,
    MaskedLMTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.speech import ClipClassificationTask, TranscriptTask
from jaxformer.io.console import markdown_table
from jaxformer.zoo import FORMATS

BEGIN = "<!-- flax-classes: begin -->"
END = "<!-- flax-classes: end -->"
"""The marker lines around the table, which `jaxformer flax-classes` writes."""
_COLUMNS = ("Flax class", "`model_type`", "class", "head", "command")
_COMMANDS: dict[tuple[type[Task], ...], str] = {
    (TranscriptTask,): "transcribe",
    (CausalLMTask, Seq2SeqLMTask): "generate",
    (MaskedLMTask,): "fill-mask",
    (ClipClassificationTask,): "forward",
    (SequenceClassificationTask, TokenClassificationTask, QuestionAnsweringTask): "predict",
    (Task,): "forward",
}
"""Tasks -> an example command for their classes; the first match is used."""
_LEFT_OUT = dict.fromkeys(("resnet", "regnet"), "a convolutional network, not a transformer")
"""`model_type` -> why it is not supported."""


def flax_table() -> list[str]:
    """Returns the lines of the table."""
    rows = [
        (f"`Flax{name}`", f"`{kind}`", *_cells(kind, name))
        for kind, names in FLAX_CLASSES.items()
        for name in names
    ]
    return markdown_table(_COLUMNS, rows)


def with_table(page: str) -> str:
    """Returns the text of a page with the table between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"the page must have the lines {BEGIN} and {END} around its table")
    return "\n".join([f"{before}{BEGIN}", "", *flax_table(), "", f"{END}{after}"])


def missing() -> list[str]:
    """Returns the Flax classes without an equivalent here, except for deliberate omissions."""
    return [
        f"Flax{name}"
        for kind, names in FLAX_CLASSES.items()
        for name in names
        if kind not in _LEFT_OUT and flax_architecture(FORMATS, kind, name) is None
    ]


def _cells(kind: str, name: str) -> tuple[str, str, str]:
    """Returns the class, its head and a command."""
    if kind in _LEFT_OUT:
        return "", _LEFT_OUT[kind], ""
    if (found := flax_architecture(FORMATS, kind, name)) is None:
        return "", "", ""
    architecture = found[1]
    summary = inspect.getdoc(type(architecture.task)).partition("\n")[0].rstrip(".")
    head = "none" if type(architecture.task) is Task else summary[0].lower() + summary[1:]
    command = next(x for kinds, x in _COMMANDS.items() if isinstance(architecture.task, kinds))
    return f"`{architecture.name}`", head, f"`jaxformer {command}`"
