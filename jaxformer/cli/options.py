"""What the options of several commands share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxformer.errors import ArgumentError

Dtype = Literal["float32", "bfloat16", "float16"]

RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
RunDirs = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR [RUN_DIR ...]")
]
OutDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT_DIR")]
HFDir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HF_DIR")]
ModelDir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
"""A folder, or a name on the hub: a `Path` would make "org/name" of "./org/name"."""


@dataclass(frozen=True, kw_only=True)
class CheckpointChoice:
    """Which checkpoint of a run is read."""

    step: int | None = None
    """The checkpoint of this step (default: the newest)."""
    best: bool = False
    """The checkpoint with the best validation metric, the run's train.metric."""


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """Which class of a Hugging Face checkpoint is read."""

    architecture: str | None = None
    """The class of a Hugging Face checkpoint, such as BertModel (default: the one that its
    config.json names)."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice(CheckpointChoice, ClassChoice):
    """Which model is read, and how."""

    strict: bool = False
    """Refuse a Hugging Face checkpoint whose config.json has fields that transformers does not
    know, instead of a warning that names them."""

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of `jaxformer.load`."""
        return {
            "step": self.step,
            "best": self.best,
            "strict": self.strict,
            "architecture": self.architecture,
        }


def split_subject(
    arguments: Sequence[str], metavar: str, usage: str, description: str
) -> tuple[str, list[str]]:
    """Splits a command line into what the command works on, and the options.

    For a command whose options depend on its first argument, such as a config or a run.

    Args:
        arguments: The command line without the program.
        metavar: What the first argument is called: "RUN_DIR".
        usage: The usage line of the help.
        description: The rest of the help.

    Returns:
        The first argument, and the others.

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
