"""Hostile folders in the layout of Hugging Face: what they say, hold and link to."""

import json
import os
import random
import shutil
import struct
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from saved_folders import save_tiny

from jaxformer import forward, load
from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.generation.api import generation_config_for
from jaxformer.pretrained.import_run import import_folder
from soak.hostile import VALUES, spoiled_bytes, spoiled_json, spoiled_json_text
from soak.trial import Silent, Trial, chance, heard, judge

PART = "folders"
KINDS = {"gpt2": "LMHeadModel", "bert": "MaskedLM", "llama": "ForCausalLM", "t5": ""}
SECRET = "the secret of another folder"
HUGE = (10**9, 2**31, 2**63, 10**40, 10**4300)
ABSENT = ("vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja")
WEIGHTS = "model.safetensors"
LETTERS = "abcxyz"
MOST_SECONDS = 20


class Folders:
    """Loads, imports and runs models from spoiled copies of good folders."""

    def __init__(self, folder: Path, seed: int, kinds: tuple[str, ...] = tuple(KINDS)):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        (folder / "secret.txt").write_text(SECRET)
        with heard():
            self.whole = [save_tiny(kind, folder / kind, KINDS[kind]) for kind in kinds]

    def trial(self, index: int) -> Trial:
        """Spoils one folder and opens it."""
        dice = chance(self.seed, PART, index)
        whole = dice.choice(self.whole)
        copy = Path(shutil.copytree(whole, self.folder / "copy"))
        run = self.folder / "run"
        try:
            attack = dice.choice(ATTACKS)
            what = attack(copy, dice)
            way = dice.choice((loaded, loaded, imported))
            way = refused if "integers" in what else way
            way = tokenized if attack is _exploding else way
            with heard():
                outcome, detail = judge(lambda: way(copy, run))
        finally:
            shutil.rmtree(copy)
            shutil.rmtree(run, ignore_errors=True)
        return Trial(PART, index, f"{whole.name}: {what}; {way.__name__}", outcome, detail)


# Ways to open a folder --------------------------------------------------------------------------


def loaded(folder: Path, run: Path) -> None:
    """What loads without a word can be run and asked, and gives finite numbers."""
    with heard() as words:
        model = load(folder)
        generation_config_for(model, {})
        ids = np.ones((1, 3), np.int32)
        names = ["input_ids", "decoder_input_ids"][
            : 1 + (model.checkpoint.model_format.model_type == "t5")
        ]
        outputs = forward(model, dict.fromkeys(names, ids))
    wrong = [name for name, array in outputs.items() if not np.isfinite(array).all()]
    if wrong and not any(words):
        raise Silent(f"{', '.join(wrong)}: not finite")


def imported(folder: Path, run: Path) -> None:
    """What is imported without a word has finite weights, and nothing of another folder."""
    with heard() as words:
        model = import_folder(folder, run)
    wrong = [name for name, array in model.parameters.items() if not np.isfinite(array).all()]
    if wrong and not any(words):
        raise Silent(f"{', '.join(wrong[:3])}: not finite")
    for file in run.rglob("*"):
        if file.is_symlink():
            raise Silent(f"the run links to {os.readlink(file)}")
        if file.is_file() and SECRET.encode() in file.read_bytes():
            raise Silent(f"{file.name} of the run holds what lies outside of the folder")


def refused(folder: Path, run: Path) -> None:
    """What cannot be right is not loaded."""
    with heard() as words:
        load(folder)
    if not any(words):
        raise Silent("loaded without a word")


def tokenized(folder: Path, run: Path) -> None:
    """What explodes is refused where it is read, or where it meets its text, within seconds."""
    start = time.process_time()
    with heard():
        prompts = read_prompt_encoder(folder)
        for letter in LETTERS:
            prompts.plain(letter * 100 + "!")
    if time.process_time() - start > MOST_SECONDS:
        raise Silent(f"texts of 100 letters took {time.process_time() - start:.0f} s")


# Attacks ----------------------------------------------------------------------------------------


def _json_file(folder: Path, dice: random.Random) -> Path:
    return dice.choice([folder / "config.json", *sorted(folder.glob("*.json"))])


def _weights(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(folder.glob("*.safetensors")))


def _said(folder: Path, dice: random.Random) -> str:
    """A file of JSON says something else."""
    path = _json_file(folder, dice)
    what, data = spoiled_json(json.loads(path.read_text()), dice)
    path.write_text(json.dumps(data))
    return f"{path.name}: {what}"


def _huge(folder: Path, dice: random.Random) -> str:
    """A size is larger than any machine."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    sizes = [name for name, value in values.items() if type(value) is int]
    name, value = dice.choice(sizes), dice.choice(HUGE)
    text = json.dumps(values | {name: 0}).replace(f'"{name}": 0', f'"{name}": {_digits(value)}')
    path.write_text(text)
    return f"config.json: {name} = {_digits(value)[:30]}"


def _digits(value: int) -> str:
    return str(value) if value < 10**100 else "1" + "0" * 4300


def _unreadable(folder: Path, dice: random.Random) -> str:
    """A file of JSON is none."""
    path = _json_file(folder, dice)
    what, content = spoiled_json_text(path.read_text(), dice)
    path.write_bytes(content)
    return f"{path.name}: {what}"


def _spoiled(folder: Path, dice: random.Random) -> str:
    """A file of JSON is damaged."""
    path = _json_file(folder, dice)
    what, content = spoiled_bytes(path.read_bytes(), dice)
    path.write_bytes(content)
    return f"{path.name}: {what}"


def _header(folder: Path, dice: random.Random) -> str:
    """The header of the weights lies, or is damaged."""
    path = _weights(folder, dice)
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = whole[8 : 8 + size]
    if dice.random() < 0.2:
        lie = dice.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1))
        path.write_bytes(struct.pack("<Q", lie) + whole[8:])
        return f"weights: a header of {lie} bytes"
    if dice.random() < 0.3:
        what, header = spoiled_bytes(header, dice)
    else:
        what, data = spoiled_json(json.loads(header), dice)
        header = json.dumps(data).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + whole[8 + size :])
    return f"weights' header: {what}"


def _cut(folder: Path, dice: random.Random) -> str:
    """The weights end early, or something follows them."""
    path = _weights(folder, dice)
    whole = path.read_bytes()
    end = dice.randrange(len(whole))
    path.write_bytes(whole[:end] if dice.random() < 0.7 else whole + bytes(end))
    return f"weights: {path.stat().st_size} bytes instead of {len(whole)}"


def _numbers(folder: Path, dice: random.Random) -> str:
    """The weights hold what no training leaves."""
    path = _weights(folder, dice)
    tensors = load_file(path)
    name = dice.choice(sorted(tensors))
    value = dice.choice((np.nan, np.inf, -np.inf))
    which = dice.choice(("one tensor", "all", "one number", "integers"))
    for each in tensors if which == "all" else [name]:
        if which == "one number":
            tensors[each] = tensors[each].copy()
            tensors[each].flat[0] = value
        elif which == "integers":
            tensors[each] = np.ones(tensors[each].shape, np.int8)
        else:
            tensors[each] = np.full_like(tensors[each], value)
    save_file(tensors, path, metadata={"format": "pt"})
    return f"weights: {which} {value if which != 'integers' else ''} ({name})"


def _links(folder: Path, dice: random.Random) -> str:
    """A file is a link out of the folder, to itself, to a device, to the folder or to nothing."""
    path = dice.choice([*sorted(folder.iterdir()), *(folder / name for name in ABSENT)])
    content = path.read_bytes() if path.exists() else SECRET.encode()
    (folder.parent / "moved").write_bytes(content)
    path.unlink(missing_ok=True)
    goals = ("../secret.txt", "../secret.txt", "../moved", path.name, "/dev/zero", ".", "nothing")
    path.symlink_to(dice.choice(goals))
    return f"{path.name} -> {os.readlink(path)}"


def _places(folder: Path, dice: random.Random) -> str:
    """A pipe, a folder, a huge file or nothing stands where a file should."""
    path = dice.choice(sorted(folder.iterdir()))
    kind = dice.choice(("pipe", "folder", "nothing", "empty file", "file of 600 MiB"))
    if kind == "file of 600 MiB":
        os.truncate(path, 600 * 2**20)
    else:
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty file":
        path.touch()
    return f"{path.name}: a {kind}"


def _index(folder: Path, dice: random.Random) -> str:
    """The weights are named by an index that leads elsewhere."""
    names = (WEIGHTS, "../secret.txt", "/etc/passwd", "nothing.safetensors", "", ".")
    file = dice.choice((*names, f"a/../{WEIGHTS}", *VALUES))
    shards = {"weight_map": {"wte.weight": file, "x": WEIGHTS}}
    if dice.random() < 0.2:
        shards = dice.choice(([], {}, {"weight_map": []}, {"weight_map": {"a": {}}}))
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(shards))
    if dice.random() < 0.5:
        _weights(folder, dice).rename(folder / "model-00001-of-00001.safetensors")
    return f"index: {str(shards)[:60]}"


def _exploding(folder: Path, dice: random.Random) -> str:
    """The tokenizer makes a letter a billion letters, or tries a billion ways to match a text."""
    path, letter = folder / "tokenizer.json", dice.choice(LETTERS)
    definition = json.loads(path.read_text())
    other, size = dice.choice(LETTERS), dice.randint(2, 40)
    kind = dice.choice(("replacements", "decoder", "expression"))
    if kind == "expression":
        pattern = dice.choice(("({0}+)+$", "({0}{0}?)+{1}$", "({0}|{0}?)+#", "({0}*){{1,200}}#"))
        split = {"type": "Split", "pattern": {"Regex": pattern.format(letter, other)}}
        definition["pre_tokenizer"] = split | {"behavior": "Isolated", "invert": False}
    else:
        places = [letter, other] * dice.randint(8, 50)
        name = "normalizer" if kind == "replacements" else "decoder"
        steps = [
            {"type": "Replace", "pattern": {"String": old}, "content": new * size}
            for old, new in pairwise(places)
        ]
        definition[name] = {"type": "Sequence", f"{name}s": steps}
    path.write_text(json.dumps(definition))
    return f"tokenizer.json: an exploding {kind} ({letter}, {other}, {size})"


ATTACKS = (
    *(_said, _said, _said, _said, _huge, _unreadable, _spoiled, _header, _header, _cut),
    *(_numbers, _links, _places, _index, _exploding),
)
