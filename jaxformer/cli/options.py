"""Options shared by several commands."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from jaxformer.config.shipped import shipped_names
from jaxformer.errors import ArgumentError

Dtype = Literal["float32", "bfloat16", "float16"]
T = TypeVar("T")

RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
RunDirs = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR [RUN_DIR ...]")
]
OutDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT_DIR")]
HFDir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HF_DIR")]
ModelDir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
"""A folder or a hub name; a `Path` would turn "./org/name" into "org/name"."""


@dataclass(frozen=True, kw_only=True)
class CheckpointChoice:
    """Which checkpoint of a run to read."""

    step: int | None = None
    """The step of the checkpoint (default: the newest)."""
    best: bool = False
    """Use the checkpoint with the best validation metric, the run's train.metric."""


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """Which class of a Hugging Face checkpoint to read."""

    architecture: str | None = None
    """The class of a Hugging Face checkpoint, such as BertModel (default: the class in its
    config.json).
    """


@dataclass(frozen=True, kw_only=True)
class ModelChoice(CheckpointChoice, ClassChoice):
    """Which model to read, and how."""

    folder: ModelDir
    """The folder of a run or of a Hugging Face checkpoint, or a hub name, org/name or
    org/name@revision.
    """
    strict: bool = False
    """Refuse a Hugging Face checkpoint whose config.json has fields that transformers does not
    know, instead of logging a warning.
    """

    @property
    def how(self) -> dict[str, Any]:
        """The arguments for `jaxformer.load`."""
        return {
            "step": self.step,
            "best": self.best,
            "strict": self.strict,
            "architecture": self.architecture,
        }


def part_of(kind: type[T], options: Any) -> T:
    """Builds an instance of a class from a command's options of the same names."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})


def split_subject(
    arguments: Sequence[str], metavar: str, usage: str, description: str
) -> tuple[str, list[str]]:
    """Splits a command line into its first argument, on which the options depend, and the others.

    Raises:
        ArgumentError: The command line has no first argument.
        SystemExit: Status 0 after ``--help`` alone.
    """
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: {usage}\n\n{description}")
        raise SystemExit(0)
    raise ArgumentError(f"name {metavar} first: {usage}")


def split_config(
    arguments: Sequence[str], prog: str, description: str, usage: str = "[OPTION ...]", **words: str
) -> tuple[str, list[str]]:
    """Returns `split_subject` of a command line with a config; `words` are in the description."""
    text = description.format(prog=prog, names=", ".join(shipped_names()), **words)
    return split_subject(arguments, "an experiment", f"{prog} CONFIG {usage}", text)
