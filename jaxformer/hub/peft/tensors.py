"""Merges a PEFT adapter into the tensors of a model.

PEFT's files name the modules of transformers, so an adapter changes their tensors. The result is
read like any other file: a head that differs from the embedding table is untied, and a table with
more rows is a larger vocabulary.
"""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.peft.changes import Change, ModuleChange
from jaxformer.hub.peft.config import MERGE, PeftConfig, read_peft_config
from jaxformer.hub.peft.experts import Pair, is_parameter, parameter_of
from jaxformer.hub.peft.files import ROOT, TENSORS
from jaxformer.hub.weights.names import current_name, spellings
from jaxformer.hub.weights.tensors import Tensor, TensorFiles

_LAYER = re.compile(r"(.*\.|)(layers|layer|h)\.(\d+)\.(.*)")
_INSIDE = re.compile(r"\.(base_layer|token_adapter|modules_to_save(\.default)?)(?=\.)")
_WEIGHT = ".weight"
_KINDS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "bias",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".ia3_l": "factors",
    ".trainable_tokens_delta": "tokens",
}
"""Suffix of a tensor's name -> its kind in the module."""


class Base(NamedTuple):
    """The tensors of a model, by their names in transformers."""

    tensors: Mapping[str, Tensor]
    read: Callable[[str], np.ndarray]
    """Returns a tensor by name."""
    model_format: ModelFormat
    in_out: Collection[str]
    """The tensors that are `[inputs, outputs]`, as in GPT-2's Conv1D."""
    table: str
    """The tensor of the embedding table, or ""."""
    tied: str
    """The name of a tied head's tensor, which is not stored, or ""."""
    head: str
    """The tensor of an untied head, or ""."""
    experts: Mapping[str, tuple[str, ...]]
    """The names of the linear layers of an expert, see `names_of_experts`."""


@dataclass(frozen=True)
class AdaptedTensors:
    """The `Tensors` of a base, to which an adapter's changes are applied on reading."""

    folder: Path
    """The folder of the adapter."""
    sources: Mapping[str, str]
    """Name of a tensor -> its name in the base."""
    base: Base
    changes: Mapping[str, Sequence[Change]]
    """Name of a tensor -> its changes, in order."""
    replaced: Mapping[str, np.ndarray]
    """The tensors of the adapter that replace the base's."""
    adapted: frozenset[str]
    """The names of tensors with low-rank factors."""

    unused = computed = ()

    @property
    def changed(self) -> frozenset[str]:
        """The tensors that differ from the base's tensors of the same name."""
        moved = (name for name, source in self.sources.items() if name != source)
        return frozenset({*self.changes, *self.replaced, *moved})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Name -> shape and dtype, which is float32 for changed tensors."""
        found = {name: self.base.tensors[source] for name, source in self.sources.items()}
        found |= {n: Tensor(array.shape, array.dtype) for n, array in self.replaced.items()}
        changed = {name: Tensor(found[name].shape, np.dtype(np.float32)) for name in self.changes}
        return found | changed

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as a view of a file if it is unchanged."""
        array = self.replaced[name] if name in self.replaced else self.base.read(self.sources[name])
        for change in self.changes.get(name, ()):
            array = change(np.asarray(array, np.float32))
        return array


def adapted_tensors(folder: Path, base: Base, weight: float = 1.0) -> AdaptedTensors:
    r"""Returns the tensors of a base with an adapter merged into them.

    .. math:: W' = W + w \lambda B A
    """
    config = read_peft_config(folder)
    files = TensorFiles(folder, TENSORS, index=None)
    sources = _replicated(folder, config, base)
    modules, whole, at = *_by_module(files, config.parameters), f"{folder / TENSORS}"
    copies = base.model_format.copies
    names = _Names({*sources, *copies, base.tied} - {""}, base.model_format)
    replaced = {names.tensor(own): files.read(file) for own, file in whole.items()}
    _check_shared(at, {names.of(module) for module in modules} | replaced.keys(), base)
    if base.tied and not _stays_tied(modules, whole, names, base):
        sources = {**sources, base.tied: base.table}
        # The head is unchanged; its resized table is in the file next to the factors.
        has_factors = any(
            "embedding_a" in parts and names.of(module) == base.table
            for module, parts in modules.items()
        )
        if base.table in replaced and has_factors:
            replaced.setdefault(base.tied, replaced[base.table])
    else:
        modules = {m: parts for m, parts in modules.items() if names.of(m) != (base.tied or m)}
    changes: dict[str, list[Change]] = {}
    unknown = [own for own in whole if names.tensor(own) is None]
    adapted = set()
    for module, found in modules.items():
        parts = {kind: np.asarray(files.read(file), np.float32) for kind, file in found.items()}
        if is_parameter(module):
            whole_change = ModuleChange(at, module, config, (), False, parts, weight)
            own = _of_experts(whole_change, names, base, sources)
            for tensor, each in own.items():
                changes.setdefault(tensor, []).append(each)
            unknown += [] if own else [module]
            adapted |= own.keys()
            continue
        tensor = names.of(module)
        bias = names.tensor(f"{module}.bias")
        if tensor not in sources or ("bias" in found and bias is None):
            unknown.append(module)
            continue
        shape = (
            replaced[tensor].shape if tensor in replaced else base.tensors[sources[tensor]].shape
        )
        change = ModuleChange(at, module, config, shape, tensor in base.in_out, parts, weight)
        changes.setdefault(tensor, []).append(change.of_weight())
        if bias is not None and (of_bias := change.of_bias()) is not None:
            changes.setdefault(bias, []).append(of_bias)
        adapted |= {tensor} if change.rank else set()
    if unknown or not (changes or replaced):
        listed = ", ".join(sorted(unknown)[:4]) or "the tensors of an adapter"
        raise DataError(
            f"{at}: does not fit the model: {listed}{' ...' if unknown[4:] else ''} are not in "
            f"it; the adapter was trained on {config.base or 'another model'}: {MERGE}"
        )
    modules_of = {name.removesuffix(_WEIGHT) for name in sources if name.endswith(_WEIGHT)}
    config.check_depth(at, {name.removesuffix(_WEIGHT) for name in adapted}, sorted(modules_of))
    result = AdaptedTensors(folder, sources, base, changes, replaced, frozenset(adapted))
    _check_rows(at, result, base)
    return result


class _Names:
    """Finds tensors of the base by the module names in an adapter."""

    def __init__(self, tensors: Collection[str], model_format: ModelFormat):
        self._format = model_format
        self._known = {name: name for name in tensors}
        # An adapter of a body lacks the prefix of models with heads.
        for name in tensors:
            for spelled in spellings(name, model_format.prefix):
                self._known.setdefault(spelled, name)

    def tensor(self, name: str) -> str | None:
        current = current_name(name, self._format)
        return self._known.get(name, self._known.get(current))

    def of(self, module: str) -> str | None:
        """Returns the weight of a module."""
        return self.tensor(f"{module}.weight")


def _of_experts(
    whole: ModuleChange, names: _Names, base: Base, sources: Mapping[str, str]
) -> dict[str, Change]:
    """Returns the changes of the tensors in a parameter of experts; {} if there are none.

    `whole` has the factors of all experts; its shape is unknown.
    """
    path, _, fused = whole.module.rpartition(".")
    tensor = names.tensor(whole.module)
    if tensor in sources:  # gpt-oss has `[E, inputs, outputs]`
        num, *shape = base.tensors[sources[tensor]].shape
        pairs = zip(*_pair(whole, num), strict=True)
        changes = [_of_expert(whole, tuple(shape), a, b, in_out=True) for a, b in pairs]
        return {
            tensor: lambda value: np.stack(
                [change(own) for change, own in zip(changes, value, strict=True)]
            )
        }
    leaves = base.experts.get(fused, ())
    numbers = itertools.takewhile(
        lambda number: names.of(f"{path}.{number}.{leaves[0]}") in sources,
        itertools.count() if leaves else (),
    )
    kernels = [[str(names.of(f"{path}.{number}.{leaf}")) for leaf in leaves] for number in numbers]
    if not kernels:
        return {}
    found = {}
    for own, a, b in zip(kernels, *_pair(whole, len(kernels)), strict=True):
        for name, rows in zip(own, np.split(b, len(leaves)), strict=True):
            found[name] = _of_expert(whole, base.tensors[sources[name]].shape, a, rows)
    return found


def _pair(whole: ModuleChange, num: int) -> Pair:
    """Returns the factors of all experts, by expert."""
    shapes = [whole.parts[kind].shape for kind in ("a", "b") if kind in whole.parts]
    if len(shapes) != 2 or shapes[0][0] % num or shapes[1][1:] != shapes[0][:1]:
        raise DataError(
            f"{whole.at}: the factors of {whole.module} have the shapes {shapes}: must be "
            f"({num} r, inputs) and (outputs, {num} r) for this model, which has {num} experts"
        )
    return Pair.of_file(whole.parts["a"], whole.parts["b"], num)


def _of_expert(
    whole: ModuleChange, shape: tuple[int, ...], a: np.ndarray, b: np.ndarray, in_out: bool = False
) -> Change:
    return replace(whole, shape=shape, in_out=in_out, parts={"a": a, "b": b}).of_weight()


def adapters_with_weights(
    adapters: Mapping[str, Path], weights: str | Mapping[str, float]
) -> list[tuple[Path, float]]:
    """Returns the folder and the weight of each chosen adapter."""
    chosen = {weights: 1.0} if isinstance(weights, str) else weights
    if not chosen or not chosen.keys() <= adapters.keys():
        raise ConfigError(
            f"adapters = {list(chosen)}: must be among {', '.join(adapters) or 'none'}; "
            "jaxformer.load(folder, adapters={NAME: ADAPTER}) reads them"
        )
    pairs = [(adapters[name], weight) for name, weight in chosen.items()]
    if list(chosen.values()) != [1.0]:
        _check_mergeable([folder for folder, _ in pairs])
    return pairs


def _check_mergeable(folders: Sequence[Path]) -> None:
    """Checks that adapters contain only factors and full modules, and replace each module once."""
    seen: dict[str, Path] = {}
    for folder in folders:
        if not read_peft_config(folder).is_lora:
            raise ConfigError(
                f"{folder}: must have only low-rank factors to be one of several adapters, or to "
                f'have a weight: merge it separately, with load(BASE, adapter="{folder}")'
            )
        for name in _by_module(TensorFiles(folder, TENSORS, index=None), ())[1]:
            if seen.setdefault(name, folder) != folder:
                raise ConfigError(f"{seen[name]} and {folder}: each replaces {name}: choose one")


def _by_module(
    files: TensorFiles, parameters: Sequence[str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Splits the files' tensors into parts of modules, by kind, and full replacements.

    A parameter of experts in `parameters` counts as a separate module.
    """
    modules: dict[str, dict[str, str]] = {}
    whole = {}
    for file in files.tensors:
        name = _INSIDE.sub("", file.removeprefix(ROOT))
        if ".original_module." in name:  # the adapter replaces it
            continue
        end = next((end for end in _KINDS if name.endswith(end)), None)
        if end is None:
            whole[name] = file
        else:
            wrapper = file.removeprefix(ROOT).removesuffix(end)
            module = parameter_of(wrapper, parameters) or name.removesuffix(end)
            modules.setdefault(module, {})[_KINDS[end]] = file
    return modules, whole


def _stays_tied(
    modules: Mapping[str, Mapping[str, str]], whole: Collection[str], names: _Names, base: Base
) -> bool:
    """Whether the head stays tied: both tensors are unchanged, or change in the same way."""
    pair = (base.table, base.tied)
    touched = [parts for module, parts in modules.items() if names.of(module) in pair]
    return not any(names.tensor(own) in pair for own in whole) and all(
        set(parts) == {"tokens"} for parts in touched
    )


def _check_shared(at: str, changed: Collection[str | None], base: Base) -> None:
    """Refuses to change a table that several modules of transformers share."""
    prefix = base.model_format.prefix
    table = base.table.removeprefix(prefix)
    found = base.model_format.copies.items()
    copies = [x for x, original in found if original.removeprefix(prefix) == table]
    if base.table in changed and any(copy.endswith("embed_tokens.weight") for copy in copies):
        raise DataError(
            f"{at}: it changes {base.table} in a module that neither the encoder "
            "nor the decoder reads: leave it out of target_modules and modules_to_save"
        )


def _replicated(folder: Path, config: PeftConfig, base: Base) -> dict[str, str]:
    """Tensors of a model that repeats or omits layers of the base -> the base's tensors."""
    if not config.layers:
        return {name: name for name in base.tensors}
    found = {name: _LAYER.fullmatch(name) for name in base.tensors}
    count = 1 + max((int(match[3]) for match in found.values() if match), default=-1)
    if not all(0 <= layer < count for layer in config.layers):
        raise ConfigError(
            f"{folder}: layer_replication has the layers {list(config.layers)}: must be from 0 to "
            f"{count - 1} for this base"
        )
    result = {name: name for name, match in found.items() if match is None}
    for match in filter(None, found.values()):
        for new, old in enumerate(config.layers):
            if int(match[3]) == old:
                result[f"{match[1]}{match[2]}.{new}.{match[4]}"] = match[0]
    return result


def _check_rows(at: str, files: AdaptedTensors, base: Base) -> None:
    """Checks that the head of a resized vocabulary has as many rows as the table."""
    tensors = files.tensors
    rows = tensors[base.table].shape[0] if base.table in tensors else None
    head = next((name for name in (base.tied, base.head) if name in tensors), None)
    if head and tensors[head].shape[0] != rows:
        raise DataError(
            f"{at}: its embedding table has {rows} rows, but {head} has "
            f"{tensors[head].shape[0]}, and the adapter does not have it: resize the base in "
            "transformers (resize_token_embeddings, save_pretrained) as for its training, and load "
            "the adapter onto that"
        )
