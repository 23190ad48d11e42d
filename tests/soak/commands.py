"""Command lines of every command, with options misspelt, missing, doubled and given nonsense."""

import contextlib
import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from tiny_run import contents

from jaxformer.cli import main as cli
from jaxformer.cli.hub import parity as cli_parity
from jaxformer.cli.inference import generate as cli_generate
from jaxformer.cli.inference.generate import Chat, Generation
from jaxformer.cli.training import evaluate as cli_evaluate
from jaxformer.cli.training.evaluate import Evaluation
from jaxformer.cli.training.train import Launch
from jaxformer.config import load_config
from jaxformer.io import remote
from jaxformer.parity import table as parity
from jaxformer.training import loop
from soak.hostile import TEXTS, misspelt
from soak.runs import train, whole_run
from soak.trial import Reached, Refused, Silent, Trial, chance, heard, judge, reporting

PART = "commands"
FIXED = {
    "inspect": ("--step",),
    "merge": ("--step",),
    "compare": ("--out", "--title"),
    "export": ("--dtype", "--max-shard-gb"),
    "import": ("--dtype",),
    "forward": ("--inputs", "--output", "--hidden-states", "--dtype"),
    "verify": (),
    "parity": ("--output",),
}
"""The options of commands that do not make them of dataclasses; `zoo` and `doctor` have none."""


class Commands:
    """Gives command lines to commands, whose long work is left out."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        with heard():
            whole = whole_run(folder.parent, "text")
        self.run, self.experiment = whole.folder, whole.experiment
        np.savez(folder / "in.npz", input_ids=np.ones((1, 4), np.int32))
        (folder / "prompts.txt").write_text("The dog\n")
        (folder / "notes").mkdir()
        (folder / "notes" / "thesis.tex").write_text("years of work")
        launch = Launch(**vars(load_config(str(self.experiment))))
        self.options = {
            "train": list(_options(launch)),
            "evaluate": list(_options(Evaluation(launch.data, launch.mesh))),
            "generate": list(_options(Generation(folder=None))),
            "chat": list(_options(Chat(folder=None))),
        } | {name: [(option, None) for option in options] for name, options in FIXED.items()}

    def trial(self, index: int) -> Trial:
        """Makes a command line and runs it."""
        dice = chance(self.seed, PART, index)
        name = dice.choice((*("train",) * 6, *("generate", "evaluate") * 3, *self.options))
        arguments = [*self._places(name, dice), *self._chosen(name, dice)]
        work = self.folder / "work"
        work.mkdir()
        shutil.copytree(self.run, work / "run")
        try:
            with contextlib.chdir(work), _no_long_work():
                outcome, detail = judge(lambda: self._run(name, arguments, work))
        finally:
            shutil.rmtree(work)
        shown = " ".join(repr(item[:60]) if " " in item or not item else item for item in arguments)
        return Trial(PART, index, f"{name} {shown}"[:300], outcome, detail)

    def _run(self, name: str, arguments: list[str], work: Path) -> None:
        before = contents(work).keys()
        try:
            if name == "train":
                reporting(lambda: train(*arguments))
            else:
                reporting(lambda: cli.main([name, *arguments]))
        except (Refused, Reached) as end:
            # Where training was refused, the next start finds the folder as this one did.
            if isinstance(end, Refused) and (left := contents(work).keys() ^ before):
                raise Silent(f"refused, but not as it was: {sorted(left)[:3]}") from end
            raise

    def _places(self, name: str, dice: random.Random) -> list[str]:
        """The arguments that name files and folders; mostly good ones."""
        good = {
            "train": [str(self.experiment)],
            "compare": ["run"],
            "import": [str(self.folder / "notes"), "out"],
            "export": ["run", "out"],
            "merge": ["run", "out"],
            "verify": [str(self.folder / "notes")],
        }.get(name, [] if name == "parity" else ["run"])
        others = (*TEXTS, str(self.folder / "notes"), str(self.folder / "in.npz"), "run")
        places = [dice.choice(others) if dice.random() < 0.1 else place for place in good]
        if dice.random() < 0.05:
            return places[:-1]
        return [*places, dice.choice(others)] if dice.random() < 0.03 else places

    def _chosen(self, name: str, dice: random.Random) -> list[str]:
        """Some options, with values that they may have and such that they may not."""
        arguments = []
        if name == "forward":
            arguments = ["--inputs", str(self.folder / "in.npz"), "--output", "out.npz"]
        if name == "generate":
            arguments = ["--prompt", "The dog"]
        if name == "train":
            arguments = ["--run-dir", dice.choice(("new", "new", "run", "new/deep"))]
        for _ in range(dice.choice((0, 1, 1, 2, 3))):
            if not self.options[name]:
                break
            option, value = dice.choice(self.options[name])
            given = [str(value) if dice.random() < 0.3 else dice.choice(TEXTS)]
            if dice.random() < 0.1:
                option = misspelt(option, dice)
            if dice.random() < 0.1:
                given = [] if dice.random() < 0.5 else [*given, dice.choice(TEXTS)]
            if given and dice.random() < 0.1:
                option, given = f"{option}={given[0]}", given[1:]
            arguments += [option, *given]
        return arguments


def _options(tree: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """The options of a tree of dataclasses, with their values."""
    for field in dataclasses.fields(tree):
        if field.name == "folder":  # of generate and chat, which take it by its place
            continue
        option, value = prefix + field.name.replace("_", "-"), getattr(tree, field.name)
        if dataclasses.is_dataclass(value):
            yield option, type(value).__name__
            yield from _options(value, f"{option}.")
        else:
            yield option, value


@contextlib.contextmanager
def _no_long_work() -> Iterator[None]:
    """Ends where training, generating and comparing would begin, or a store would be asked."""
    with contextlib.ExitStack() as stack:
        for owner, name in (
            (loop, "TrainProgram"),
            (cli_evaluate, "TrainProgram"),
            (cli_generate, "TextGenerator"),
            (cli_parity.verification, "verify"),
            (parity, "measure_all"),
            (jax.distributed, "initialize"),
            (remote, "attempt"),
        ):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, _reached(name)))
        yield


def _reached(name: str) -> Callable:
    def reached(*_, **__):
        raise Reached(name)

    return reached
