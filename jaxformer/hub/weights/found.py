"""Finds the weight files of a folder, and files in unsupported formats."""

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jaxformer.io.model_files import OLD_FOLDER

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_VARIANT = re.compile(r"model\.([^.]+)\.safetensors|model\.safetensors\.index\.([^.]+)\.json")
_PART = re.compile(r".*-\d+-of-\d+")
_PREFERRED = ("fp32", "bf16", "fp16")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_CONVERT = ".save_pretrained(FOLDER), and name that FOLDER"


class WeightNames(NamedTuple):
    """The names of weight files: a single file, or several with an index."""

    single: str = SINGLE
    index: str = INDEX
    variant: str | None = None
    """The `variant` of `save_pretrained` in the names, such as "fp16"."""

    def plain(self, name: str) -> str:
        """Removes the variant from a file name, or from a text with such names."""
        if self.variant is None:
            return name
        dotted = re.escape(f".{self.variant}")
        return re.sub(rf"{dotted}(?=-\d+-of-\d+\.|\.safetensors|\.json)", "", name)


def weight_names(names: Collection[str]) -> WeightNames:
    """Returns the names of the safetensors files among the files of a folder.

    Files without a variant take precedence, then the variant for float32.
    """
    if SINGLE in names or INDEX in names:
        return WeightNames()
    found = (_VARIANT.fullmatch(name) for name in names)
    variants = {variant for each in found if each for variant in each.groups() if variant}
    variants = sorted(each for each in variants if not _PART.fullmatch(each))
    usual = [each for each in _PREFERRED if each in variants]
    if not variants:
        return WeightNames()
    variant = (usual or variants)[0]
    return WeightNames(
        f"model.{variant}.safetensors", f"model.safetensors.index.{variant}.json", variant
    )


def weight_names_in(folder: Path) -> WeightNames:
    """Returns `weight_names` of the files in a folder."""
    return weight_names([path.name for path in folder.glob("model.*")])


def unreadable_weights(names: Collection[str], load: str) -> str | None:
    """Describes weights in an unsupported format and the remedy, or returns None."""
    if any(PurePosixPath(name).parts[0] == OLD_FOLDER for name in names):
        return (
            f"an old folder of sentence-transformers: its model is in {OLD_FOLDER}; name that "
            "folder"
        )

    def first(*ends: str) -> str | None:
        return next((name for name in sorted(names) if name.endswith(ends)), None)

    if name := next((n for n in sorted(names) if n.endswith(_PICKLES) and "/" not in n), None):
        return (
            f"{name}, a pickle, which can run any code when it is read, and no {SINGLE}: convert "
            f"it with transformers, {load}){_CONVERT}"
        )
    if name := first(".gguf"):
        return (
            f"{name}, weights for llama.cpp: fetch the model's safetensors, or convert it with "
            f'transformers, {load}, gguf_file="{name}"){_CONVERT}'
        )
    if name := first(".h5", ".ckpt.index"):
        return (
            f"{name}, TensorFlow weights: fetch the model's safetensors, or convert it with "
            f"transformers 4, {load}, from_tf=True){_CONVERT}"
        )
    if name := first(".onnx", ".tflite", ".mlmodel"):
        return (
            f"{name}, a program compiled from a model: fetch the safetensors of the model "
            "that it was exported from"
        )
    if "adapter_model.safetensors" in names:
        return (
            "adapter_model.safetensors, a PEFT adapter without its base model: "
            'load(BASE, adapter="FOLDER") merges it'
        )
    if name := first(".safetensors"):
        return f"{name}, which is not a name that transformers uses: rename it to {SINGLE}"
    return None


def unreadable_weights_in(folder: Path) -> str | None:
    """Returns `unreadable_weights` of the files in a folder and its direct subfolders."""
    if not folder.is_dir():
        return None
    found = [*folder.glob("*"), *folder.glob("*/*.onnx"), *folder.glob(f"{OLD_FOLDER}/*")]
    names = [str(path.relative_to(folder)) for path in found]
    return unreadable_weights(names, "from_pretrained(...")
