"""Spoiled config.json files: what is accepted has the types that it says."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from refusals import fields_of, fits
from tiny_run import ROOT

from jaxformer.checkpoints.run_dir import read_config
from jaxformer.config import load_config, validate
from jaxformer.io.serialization import to_json
from soak.hostile import spoiled_json, spoiled_json_text
from soak.trial import Silent, Trial, chance, heard, judge

PART = "configs"


class Configs:
    """Reads spoiled configurations of every experiment that is shipped."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        self.whole = {
            path.stem: to_json(load_config(str(path)))
            for path in sorted((ROOT / "configs").glob("*.py"))
        }

    def trial(self, index: int) -> Trial:
        """Spoils one configuration and reads it."""
        dice = chance(self.seed, PART, index)
        name = dice.choice(sorted(self.whole))
        if dice.random() < 0.1:
            what, content = spoiled_json_text(json.dumps(self.whole[name]), dice)
        else:
            what, data = spoiled_json(self.whole[name], dice)
            content = json.dumps(data).encode()
        (self.folder / "config.json").write_bytes(content)
        with heard():
            outcome, detail = judge(lambda: read(self.folder))
        return Trial(PART, index, f"{name}: {what}", outcome, detail)


def read(folder: Path) -> None:
    """Reads a run's configuration as everything does that opens a run."""
    config = read_config(folder)
    validate(config, 1)
    if wrong := mistyped(config, "config"):
        raise Silent(wrong)
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    if read_config(folder) != config:
        raise Silent("written and read again, it is another configuration")


def mistyped(value: Any, name: str) -> str:
    """Names a field whose value is not of its type; empty where all are."""
    for field, annotation in fields_of(type(value)).items():
        item, path = getattr(value, field), f"{name}.{field}"
        if not fits(item, annotation):
            return f"{path} = {item!r}, which should be {annotation}"
        if dataclasses.is_dataclass(item) and (wrong := mistyped(item, path)):
            return wrong
    return ""
