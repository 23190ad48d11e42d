"""``jaxformer COMMAND``, the same as ``python -m jaxformer COMMAND``.

A command is a function that takes its options, a dataclass, and returns None or an exit status. If
the options depend on the arguments, it takes the arguments and its name for messages instead. Its
module is imported only when the command runs, so that ``jaxformer --help`` is fast and a command
requires only the libraries that it uses.
"""

import dataclasses
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from jaxformer import __version__
from jaxformer.cli.interruption import exit_on_interrupt
from jaxformer.errors import ArgumentError, did_you_mean
from jaxformer.extras import missing_extra

COMMANDS = {
    "train": ("training.train", "train", "train a model, or continue its run"),
    "plan": ("plan", "train", "estimate memory, speed and mesh of a config on a slice"),
    "inspect": ("training.runs", "hub", "show a run's steps, config, parameters and content hash"),
    "rows": (
        "training.rows",
        "train",
        "show the first rows of a config's data as the model sees them",
    ),
    "evaluate": ("training.evaluate", "train", "measure a run on validation data"),
    "glue": (
        "training.glue",
        "train",
        "fine-tune on the tasks of GLUE, with their table and average",
    ),
    "merge": ("training.runs", "hub", "merge the LoRA factors of a run into plain weights"),
    "compare": ("training.runs", "train", "compare runs by a validation metric"),
    "goodput": ("training.goodput", "train", "show how the wall time of a run was spent"),
    "zoo": ("hub.zoo", "hub", "list the published systems and their sizes"),
    "doctor": ("doctor", "hub", "check that this machine and its jaxlib compute correctly"),
    "generate": ("inference.generate", "hub", "generate text from prompts"),
    "chat": ("inference.generate", "hub", "chat with a trained model"),
    "predict": ("inference.predict", "hub", "predict labels, tags, answers or embeddings of rows"),
    "embed": ("inference.embed", "hub", "embed texts, or score pairs of texts"),
    "transcribe": ("inference.transcribe", "hub", "transcribe sound files"),
    "zero-shot": ("inference.zero_shot", "hub", "classify images by text labels"),
    "serve": ("inference.serve", "serve", "serve a model over HTTP, for trying it out"),
    "tokenize": ("inference.inspection", "hub", "show how a model tokenizes a text"),
    "neighbours": ("inference.inspection", "hub", "show the tokens nearest to a word"),
    "fill-mask": ("inference.inspection", "hub", "predict the masked tokens of a text"),
    "import": (
        "hub.checkpoints:import_checkpoint",
        "hub",
        "import a Hugging Face checkpoint as a run",
    ),
    "forward": ("hub.checkpoints", "hub", "compute a model's outputs for the arrays in a file"),
    "export": ("hub.checkpoints", "hub", "export a run as a Hugging Face checkpoint"),
    "push": ("hub.checkpoints", "hub", "push an exported checkpoint to the Hugging Face hub"),
    "verify": (
        "hub.parity",
        "parity",
        "run an export in transformers or another engine, and compare it",
    ),
    "engines": ("hub.parity", "parity", "measure every known system in other engines"),
    "parity": ("hub.parity", "parity", "compare every known system with transformers"),
    "flax-classes": ("hub.flax", "hub", "list Flax classes and their equivalents here"),
    "launch slurm": ("launch", "train", "write a SLURM script that trains on a cluster"),
    "launch jobset": ("launch", "train", "write a Kubernetes manifest: GKE's TPUs, GPUs"),
    "launch tpu-vm": ("launch", "train", "write the gcloud commands for TPU machines"),
    "lab diagram": ("lab.diagram", "train", "draw the architecture of a config"),
    "lab positions": ("lab.positions", "train", "draw and measure positional schemes"),
    "lab attention": ("lab.attention", "train", "draw a model's attention maps"),
    "lab experts": ("lab.experts", "train", "draw how a model's experts process a text"),
    "lab speech": ("lab.speech", "train", "draw how a speech model processes a sound"),
    "lab two-dogs": ("lab.experiments", "train", "show a model without its positions"),
    "lab softmax": ("lab.experiments", "train", "why scores are divided by sqrt(d_k)"),
    "lab mask": ("lab.experiments", "train", "why a mask comes before the softmax"),
    "lab cache": ("lab.cache", "train", "size and savings of a decoder's KV cache"),
    "lab cost": ("lab.experiments", "train", "time and memory against the length"),
    "lab recall": ("lab.experiments", "train", "attention, a GRU, a convolution on a task"),
    "lab extrapolate": ("lab.studies", "train", "test positions beyond training"),
    "lab norms": ("lab.studies", "train", "compare norms, with and without warm-up"),
    "lab families": ("lab.studies", "train", "compare three families at equal FLOPs"),
}
"""The module of each command, its extra, and its description.

The function has the name of the command's last word, unless it is given after a colon.
"""
GROUPS = ("lab", "launch")
"""The groups of two-word commands, such as "lab" in "lab positions"."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, that of this process by default, and returns the exit status."""
    _open_streams()
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("-h", "--help"):
        return _show(_help())
    if name == "--version":
        libraries = ", ".join(f"{each} {version(each)}" for each in ("jax", "jaxlib", "flax"))
        return _show(f"jaxformer {__version__} ({libraries})")
    if name in GROUPS and (not rest or rest[0] in ("-h", "--help")):
        return _show(_help(f"{name} "))
    if name in GROUPS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    return run(name, rest, prog=f"jaxformer {name}")


def run(name: str, arguments: Sequence[str], prog: str) -> int:
    """Runs a command, called `prog` in its messages, and returns the exit status."""
    logging.basicConfig(format="%(levelname)s: %(message)s")  # before a library configures it
    with exit_on_interrupt():
        from jaxformer.cli.errors import reporting_errors

    def action() -> int | None:
        try:
            return _command(name)(arguments, prog)
        except ModuleNotFoundError as error:
            raise missing_extra(error, prog, COMMANDS[name][1]) from error

    return reporting_errors(action)


def _show(text: str) -> int:
    """Prints a text, whose reader (such as head) may close early; returns the exit status."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _open_streams() -> None:
    """Opens closed standard streams, as in a daemon."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (until the process ends)


def _command(name: str) -> Callable[[Sequence[str], str], int | None]:
    if name not in COMMANDS:
        advice = did_you_mean(name, COMMANDS) or f"; choose one of {', '.join(COMMANDS)}"
        raise ArgumentError(f"{name!r} is not a command{advice}" if name else f"no command{advice}")
    module, _, function = COMMANDS[name][0].partition(":")
    function = function or name.split()[-1].replace("-", "_")
    with exit_on_interrupt():
        command = getattr(importlib.import_module(f"jaxformer.cli.{module}"), function)
        from jaxformer.config.overrides import parse
    kind = next(iter(inspect.signature(command).parameters.values())).annotation
    if not dataclasses.is_dataclass(kind):
        return command
    return lambda arguments, prog: command(parse(kind, arguments, prog))


def _help(group: str = "") -> str:
    """Returns the help for all commands, or for a group such as "lab "."""
    texts = {name: text for name, (_, _, text) in COMMANDS.items() if name.startswith(group)}
    width = max(map(len, texts))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in texts.items())
    command = f"{group}COMMAND"
    return (
        f"usage: jaxformer {command} [ARGUMENT ...]\n\nTransformers in JAX.\n\n"
        f"commands:\n{listed}\n\n`jaxformer {command} --help` describes a command and its options, "
        "and `jaxformer --version` lists the installed versions."
    )
