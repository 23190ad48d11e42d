"""Small random models that transformers saves, with what travels beside the weights."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
from recordings import Recording
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from jaxformer.parity.reference import save_random
from jaxformer.zoo import FORMATS

WORDS = {"[UNK]": 0, "the": 1, "dog": 2, "[PAD]": 3, "runs": 4, "[CLS]": 5, "[SEP]": 6, "[MASK]": 7}
TRAVELLERS = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


def save_tiny(kind: str, folder: Path, head: str = "", **changes) -> Path:
    """Saves a model of a system: the most usual class, or the first whose name ends with `head`.

    The most usual one is recorded (`recordings`). Others, and those with `changes` in the fields of
    their configuration, need PyTorch.
    """
    names = [each.name for each in FORMATS[kind].architectures if each.name.endswith(head)]
    if names[0] == FORMATS[kind].architectures[0].name and not changes:
        Recording.read(kind).write(folder)
    else:
        save_random(kind, names[0], folder, **changes)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    # Spaces that no program would write: they must stay.
    (folder / "tokenizer_config.json").write_text(
        '{ "pad_token":"[PAD]",  "tokenizer_class":\n"PreTrainedTokenizerFast"}'
    )
    (folder / "generation_config.json").write_text('{ "do_sample":  false, "max_length": 7 }')
    return folder


def assert_same_parameters(ours, theirs) -> None:
    """Asserts that two models have the same parameters, bit for bit."""
    assert ours.parameters.keys() == theirs.parameters.keys()
    for name, array in theirs.parameters.items():
        np.testing.assert_array_equal(ours.parameters[name], array, err_msg=name)


def copy_of(folder: Path, target: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(folder, target)
    return target


def change_settings(folder: Path, *without: str, **changes) -> None:
    """Changes fields of config.json, or takes some away."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: values[name] for name in values if name not in without}))


def rename_tensors(folder: Path, names: dict[str, str]) -> None:
    """Rewrites the names in model.safetensors: regular expressions -> what replaces them."""

    def renamed(tensors):
        for name in list(tensors):
            new = name
            for old, other in names.items():
                new = re.sub(old, other, new)
            tensors[new] = tensors.pop(name)

    change_tensors(folder, renamed)


def change_tensors(folder: Path, change) -> None:
    """Rewrites model.safetensors; `change` gets the dictionary of its tensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
