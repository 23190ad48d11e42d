"""Damaged files: bits, pages, ends and whole files of a run, then every way to open it."""

import json
import random
import re
import shutil
from pathlib import Path

from tiny_run import losses_of

from jaxformer.pretrained.auto import load
from soak.hostile import spoiled_bytes, spoiled_json, spoiled_json_text
from soak.runs import Whole, parameters_hash, train, whole_run
from soak.trial import Silent, Trial, announces_damage, chance, heard, judge, reporting, run_command

PART = "damage"
STRAYS = ("9999", "٣", "12.orbax-checkpoint-tmp-1", "-4", "04", "latest", "4.damaged", " 4")
"""Names that a hand or a tool leaves among checkpoints."""
CHECKPOINT = ("arrays", "state", "config", "meta", "files.json")
"""The roles of what a checkpoint consists of."""


class Damage:
    """Opens damaged copies of runs."""

    def __init__(self, folder: Path, seed: int, experiments: tuple[str, ...] = ("text", "labels")):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        with heard():
            self.wholes = [whole_run(folder.parent, name) for name in experiments]

    def trial(self, index: int) -> Trial:
        """Damages one thing and opens what is left in one way."""
        dice = chance(self.seed, PART, index)
        whole = dice.choice(self.wholes)
        copy = whole.copy(self.folder / "copy")
        try:
            attack, name = damaged(copy, dice)
            way = dice.choice(_ways(name, whole))
            outcome, detail = judge(lambda: way(whole, copy))
        finally:
            shutil.rmtree(copy)
        attack = f"{whole.folder.name.partition('-')[2]}: {attack}; {way.__name__}"
        return Trial(PART, index, attack, outcome, detail)


def damaged(run: Path, dice: random.Random) -> tuple[str, str]:
    """Spoils one thing in a run; returns what was done, and to which file."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    kinds = sorted({_kind(path.relative_to(run)) for path in files})
    kind = dice.choice(kinds)
    file = dice.choice([path for path in files if _kind(path.relative_to(run)) == kind])
    name = str(file.relative_to(run))
    is_json = file.suffix in (".json", ".jsonl") or file.name == "metadata"
    how = dice.choice(("bytes",) * 6 + ("json",) * 4 + ("delete", "stray"))
    if how == "json" and is_json:
        what = _spoil_json(file, dice)
    elif how == "delete":
        file.unlink()
        what = "deleted"
    elif how == "stray":
        stray = run / "checkpoints" / dice.choice(STRAYS)
        stray.mkdir() if dice.random() < 0.5 else stray.write_text("x")
        return f"a stray {'folder' if stray.is_dir() else 'file'} checkpoints/{stray.name}", "stray"
    else:
        what, spoiled = spoiled_bytes(file.read_bytes(), dice)
        file.write_bytes(spoiled)
    return f"{name}: {what}", name


def _spoil_json(file: Path, dice: random.Random) -> str:
    text = file.read_text()
    if dice.random() < 0.3 or file.suffix == ".jsonl":
        what, spoiled = spoiled_json_text(text, dice)
        if file.suffix == ".jsonl":
            lines = text.splitlines(keepends=True)
            at = dice.randrange(len(lines))
            what = f"line {at + 1} is {what}"
            spoiled = b"".join(
                spoiled + b"\n" if i == at else line.encode() for i, line in enumerate(lines)
            )
        file.write_bytes(spoiled)
        return what
    what, data = spoiled_json(json.loads(text), dice)
    file.write_text(json.dumps(data))
    return what


def _kind(path: Path) -> str:
    """Files of the same role; each role is damaged as often as any other."""
    first, *rest = path.parts
    if first != "checkpoints":
        return first.partition("-")[0]
    step, item, *inner = rest
    if item == "state":
        item = "arrays" if "d" in inner else "state"
    return f"checkpoints {step} {item if item in CHECKPOINT else 'rest'}"


# Ways to open a run -----------------------------------------------------------------------------


def inspected(whole: Whole, run: Path) -> None:
    """What is shown must be the hash of a whole checkpoint; an older one says why."""
    text = run_command("inspect", str(run))
    found = re.search(r"content hash +(\w{64}) \(step (\d+)\)", text)
    if found is None:
        raise Silent(f"inspect shows no content hash, status 0: {text[:200]}")
    _check_step(whole.contents.get(found.group(1)), int(found.group(2)), text, whole)


def loaded(whole: Whole, run: Path) -> None:
    """The parameters must be those of a whole checkpoint."""
    with heard() as words:
        model = load(run, dtype=None)
        found = parameters_hash(model.parameters)
    step = whole.parameters.get(found)
    _check_step(step, step, "\n".join(words), whole)


def exported(whole: Whole, run: Path) -> None:
    """What is exported and loaded again must be a whole checkpoint's parameters."""
    target = run.with_name("exported")
    try:
        text = run_command("export", str(run), str(target))
        with heard():
            found = parameters_hash(load(target, dtype=None).parameters)
        step = whole.parameters.get(found)
        _check_step(step, step, text, whole)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def continued(whole: Whole, run: Path) -> None:
    """The end of training must be that of an undisturbed run, bit for bit, and what it measures."""
    resumed(whole, run)
    rows = losses_of(run)
    if rows != [row for row in whole.losses if row in rows]:
        raise Silent("training on measures other losses")


def resumed(whole: Whole, run: Path) -> None:
    """The end of training must be that of an undisturbed run; rows are lost with a word only."""
    text = reporting(lambda: train(whole.experiment, "--run-dir", run))
    shown = run_command("inspect", str(run))
    found = re.search(r"content hash +(\w{64}) \(step (\d+)\)", shown)
    if found is None or whole.contents.get(found.group(1)) != 12:
        raise Silent("training on gives other parameters or optimizer state")
    if len(losses_of(run)) < len(whole.losses) and not announces_damage(text):
        raise Silent("rows of metrics.jsonl are gone")


def _check_step(step: int | None, shown: int | None, text: str, whole: Whole) -> None:
    if step is None:
        raise Silent("the numbers are those of no checkpoint that was saved")
    if step != shown:
        raise Silent(f"what is called step {shown} is step {step}")
    if step != max(whole.parameters.values()) and not announces_damage(text):
        raise Silent(f"an older checkpoint, of step {step}, is used without a word")


def _ways(name: str, whole: Whole) -> tuple:
    """How a run with this file damaged is opened: training reads all, and takes longest."""
    if name.startswith("checkpoints") or name == "stray":
        # The layouts of Hugging Face have no place for the labels' model.
        exports = (exported,) if whole.experiment.stem == "text" else ()
        return (inspected, loaded, inspected, loaded, continued, *exports)
    if name == "config.json":
        return (inspected, loaded, continued)
    # A number that is another one in metrics.jsonl cannot be told; no training depends on it.
    return (resumed,) if name == "metrics.jsonl" else (continued,)
