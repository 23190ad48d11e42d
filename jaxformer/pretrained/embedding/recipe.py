"""Reads how a model embeds texts from the files of sentence-transformers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from jaxformer.errors import ConfigError, DataError, did_you_mean, shortened
from jaxformer.io.files import read_json
from jaxformer.io.model_files import EMBEDDINGS, file_in, read_object
from jaxformer.io.notices import warn_once
from jaxformer.pretrained.embedding.modules import MODULES, Module, Pooling

LIST = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_OLD = re.compile(r"\d+_Transformer")
_TRANSFORMER_FILES = [name for name in EMBEDDINGS if name not in (LIST, SETTINGS)]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


@dataclass(frozen=True)
class Recipe:
    """How a model embeds a text or scores a pair of texts."""

    transformer: Path
    """The folder of the model."""
    max_length: int | None = None
    """The maximum number of tokens of a text; None: the maximum of the model and its tokenizer."""
    lower_case: bool = False
    """Whether texts are lowercased."""
    pooling: Pooling | None = None
    """How the tokens' states are pooled to a vector; None for a cross-encoder."""
    modules: tuple[Module, ...] = ()
    """The steps after pooling."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The values of config_sentence_transformers.json."""

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts to prepend to a text, by name."""
        given = self.settings.get("prompts") or {}
        return {name: str(text) for name, text in given.items() if text is not None}

    @property
    def similarity(self) -> Similarity:
        """How vectors are compared."""
        name = self.settings.get("similarity_fn_name")
        return name if name in get_args(Similarity) else "cosine"

    def prompt(self, text: str | None, name: str | None) -> str:
        """Returns the prompt to prepend to each text."""
        if text is not None:
            return text
        name = self.settings.get("default_prompt_name") if name is None else name
        if name is None:
            return ""
        # sentence-transformers accepts these names for every model, with a default of "".
        known = {"query": "", "document": ""} | self.prompts
        if name not in known:
            raise ConfigError(
                f"prompt_name = {shortened(name)}: must be one of {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
        return known[name]


def read_recipe(folder: Path) -> Recipe:
    """Returns the recipe of a folder; without modules.json, only of the model."""
    file = file_in(folder, LIST)
    if file is None and _OLD.fullmatch(folder.name) and file_in(folder.parent, LIST) is not None:
        recipe = read_recipe(folder.parent)
        if recipe.transformer == folder:
            return recipe
    settings = read_object(folder, SETTINGS) or {}
    if file is None:
        return Recipe(folder, settings=settings)
    listed = [_entry(file, entry) for entry in read_json(file, list)]
    if not listed or listed[0][0] != "Transformer":
        first = listed[0][0] if listed else "nothing"
        raise ConfigError(f"{file}: begins with {first}: must begin with a Transformer")
    transformer = folder / listed[0][1]
    rest = [(kind, folder / path) for kind, path in listed[1:]]
    pooling = None
    if rest:
        kind, path = rest.pop(0)
        if kind != "Pooling":
            raise ConfigError(_unsupported(file, kind, "Pooling after the Transformer"))
        pooling = Pooling.read(path)
    for kind, _ in rest:
        if kind not in MODULES:
            raise ConfigError(_unsupported(file, kind, f"one of {', '.join(MODULES)} after it"))
    modules = tuple(MODULES[kind](path) for kind, path in rest)
    values = _settings_of(transformer)
    length = values.get("max_seq_length")
    lower = bool(values.get("do_lower_case", False))
    return Recipe(transformer, length, lower, pooling, modules, settings)


def with_default_pooling(recipe: Recipe, model_class: str) -> Recipe:
    """Returns the recipe with the pooling that sentence-transformers uses by default."""
    mode = "lasttoken" if model_class.endswith("ForCausalLM") else "mean"
    what = {"lasttoken": "the state of the last token", "mean": "the mean of the tokens' states"}
    warn_once(
        f"{recipe.transformer}: there is no {LIST} that defines how to embed texts: {what[mode]} "
        "is used, as in sentence-transformers"
    )
    return replace(recipe, pooling=Pooling((mode,)))


def _entry(file: Path, entry: Any) -> tuple[str, str]:
    """Returns the class of a module, without its package, and the module's folder."""
    kind, path = (entry.get(name) if isinstance(entry, dict) else None for name in ("type", "path"))
    if not (isinstance(kind, str) and isinstance(path, str)):
        raise DataError(f"{file}: {shortened(entry)}: must be a module with a type and a path")
    parts = PurePosixPath(path).parts
    if len(parts) > 1 or set(parts) & {"..", "/"}:
        raise DataError(f"{file}: path = {path!r}: must be a folder next to it")
    package, _, name = kind.rpartition(".")
    if package.partition(".")[0] != "sentence_transformers":
        raise ConfigError(_unsupported(file, kind, "one of sentence_transformers, not custom code"))
    return name, path


def _unsupported(file: Path, kind: str, wanted: str) -> str:
    return f"{file}: the module {shortened(kind)} is not supported: must be {wanted}"


def _settings_of(transformer: Path) -> dict[str, Any]:
    """Reads the settings of the Transformer from the first of its possible files that exists."""
    for name in _TRANSFORMER_FILES:
        if values := read_object(transformer, name):
            return values
    return {}
