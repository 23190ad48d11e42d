"""The tensors of a model with an adapter of PEFT merged into them.

PEFT's files name the modules of transformers, so all that an adapter does is a change of their
tensors. The result is read as any other file is: a table that is no longer that of the head is not
tied to it, and one with more rows is a larger vocabulary.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.peft import ROOT, TENSORS
from jaxformer.hub.peft_config import MERGE, PeftConfig, read_peft_config
from jaxformer.hub.weights.names import current_name, spellings
from jaxformer.hub.weights.tensors import Tensor, TensorFiles

Change = Callable[[np.ndarray], np.ndarray]
"""From a tensor to another one, in float32."""
_LAYER = re.compile(r"(.*\.|)(layers|layer|h)\.(\d+)\.(.*)")
_INSIDE = re.compile(r"\.(base_layer|token_adapter|modules_to_save(\.default)?)(?=\.)")
_PARTS = {
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
"""How the name of a tensor ends -> what it is for the module before."""


class Base(NamedTuple):
    """The tensors of a model, under the names that transformers has for them."""

    tensors: Mapping[str, Tensor]
    read: Callable[[str], np.ndarray]
    """Returns a tensor by its name."""
    model_format: ModelFormat
    """Its system."""
    in_out: Collection[str]
    """The tensors that are `[inputs, outputs]`, as those of GPT-2's Conv1D."""
    table: str
    """The tensor of the table of embeddings; "" if there is none."""
    tied: str
    """The tensor of a head that is tied to that table, which the model does not have; or ""."""
    head: str
    """The tensor of a head with a table of its own; "" if there is none."""


@dataclass(frozen=True)
class AdaptedTensors:
    """The tensors of a base with the changes of an adapter, which are computed when they are read.

    Attributes:
        unused: None; a model has all of them.
        computed: None.
    """

    folder: Path
    """The adapter's."""
    sources: Mapping[str, str]
    """The name of each tensor -> its name in the base."""
    base: Base
    changes: Mapping[str, Sequence[Change]]
    """The changes of some tensors, in their order."""
    whole: Mapping[str, np.ndarray]
    """The tensors that the adapter has in place of the base's."""
    adapted: frozenset[str]
    """The tensors that have low-rank factors."""

    unused = computed = ()

    @property
    def changed(self) -> frozenset[str]:
        """The tensors that are not the base's of that name."""
        moved = (name for name, source in self.sources.items() if name != source)
        return frozenset({*self.changes, *self.whole, *moved})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Name -> shape and dtype; what is changed is float32."""
        found = {name: self.base.tensors[source] for name, source in self.sources.items()}
        whole = {name: Tensor(array.shape, array.dtype) for name, array in self.whole.items()}
        found |= whole
        changed = {name: Tensor(found[name].shape, np.dtype(np.float32)) for name in self.changes}
        return found | changed

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: a view of the base's or the adapter's file, if it is not changed."""
        array = self.whole[name] if name in self.whole else self.base.read(self.sources[name])
        for change in self.changes.get(name, ()):
            array = change(np.asarray(array, np.float32))
        return array


def adapted_tensors(folder: Path, base: Base, weight: float = 1.0) -> AdaptedTensors:
    r"""Returns the tensors of a base with those of an adapter in them.

    .. math:: W' = W + w \lambda B A

    Args:
        folder: The adapter's, with both files.
        base: The base.
        weight: w, for the factors of a LoRA.

    Raises:
        ConfigError: The adapter is of another kind, or has a setting that is not supported.
        DataError: Its tensors do not fit the base.
    """
    config, files = read_peft_config(folder), TensorFiles(folder, TENSORS, index=None)
    sources = _replicated(folder, config, base)
    modules, whole, at = *_sorted(files), f"{folder / TENSORS}"
    copies = base.model_format.copies
    names = _Names({*sources, *copies, base.tied} - {""}, base.model_format)
    replaced = {names.tensor(own): files.read(file) for own, file in whole.items()}
    _check_shared(at, {names.of(module) for module in modules} | replaced.keys(), base)
    if base.tied and not _all_tied(modules, whole, names, base):
        sources = {**sources, base.tied: base.table}
        # The head stays as in the base, whose resized table is in the file beside the factors.
        if base.table in replaced and _has_factors(modules, names, base.table):
            replaced.setdefault(base.tied, replaced[base.table])
    else:
        modules = {m: parts for m, parts in modules.items() if names.of(m) != (base.tied or m)}
    changes: dict[str, list[Change]] = {}
    unknown = [own for own in whole if names.tensor(own) is None]
    adapted = set()
    for module, found in modules.items():
        tensor, bias = names.of(module), names.tensor(f"{module}.bias")
        if tensor not in sources or ("bias" in found and bias is None):
            unknown.append(module)
            continue
        parts = {kind: np.asarray(files.read(file), np.float32) for kind, file in found.items()}
        shape = (
            replaced[tensor].shape if tensor in replaced else base.tensors[sources[tensor]].shape
        )
        change = _Change(at, module, config, shape, tensor in base.in_out, parts, weight)
        changes.setdefault(tensor, []).append(change.of_weight())
        if bias is not None and (of_bias := change.of_bias()) is not None:
            changes.setdefault(bias, []).append(of_bias)
        adapted |= {tensor} if change.rank else set()
    if unknown or not (changes or replaced):
        listed = ", ".join(sorted(unknown)[:4]) or "no tensor of an adapter"
        raise DataError(
            f"{at}: does not fit the model: {listed}{' ...' if unknown[4:] else ''} have no place "
            f"in it; the adapter was trained on {config.base or 'another model'}: {MERGE}"
        )
    result = AdaptedTensors(folder, sources, base, changes, replaced, frozenset(adapted))
    _check_rows(at, result, base)
    return result


class _Names:
    """The tensors of the base by the names of their modules in the adapter."""

    def __init__(self, tensors: Collection[str], model_format: ModelFormat):
        self._format = model_format
        self._known = {name: name for name in tensors}
        # The adapter of a body alone has names without the prefix, and the other way round.
        for name in tensors:
            for spelled in spellings(name, model_format.prefix):
                self._known.setdefault(spelled, name)

    def tensor(self, name: str) -> str | None:
        current = current_name(name, self._format)
        return self._known.get(name, self._known.get(current))

    def of(self, module: str) -> str | None:
        """The weight of a module."""
        return self.tensor(f"{module}.weight")


def check_summable(folders: Collection[Path]) -> None:
    """Checks that each of some adapters has low-rank factors and whole modules of its own.

    Args:
        folders: Those of the adapters.

    Raises:
        ConfigError: One has more than that, or two replace the same module.
    """
    seen: dict[str, Path] = {}
    for folder in folders:
        if not read_peft_config(folder).is_lora:
            raise ConfigError(
                f"{folder}: must have low-rank factors alone to be one of several adapters, or to "
                f'have a weight: merge it by itself, with load(BASE, adapter="{folder}")'
            )
        for name in _sorted(TensorFiles(folder, TENSORS, index=None))[1]:
            if seen.setdefault(name, folder) != folder:
                raise ConfigError(f"{seen[name]} and {folder}: each replaces {name}: choose one")


def _sorted(files: TensorFiles) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The names of the files' tensors: by module and kind, and those that are a tensor's own."""
    modules: dict[str, dict[str, str]] = {}
    whole = {}
    for file in files.tensors:
        name = _INSIDE.sub("", file.removeprefix(ROOT))
        if ".original_module." in name:  # in place of which another one counts
            continue
        end = next((end for end in _PARTS if name.endswith(end)), None)
        if end is None:
            whole[name] = file
        else:
            modules.setdefault(name.removesuffix(end), {})[_PARTS[end]] = file
    return modules, whole


def _all_tied(
    modules: Mapping[str, Mapping[str, str]], whole: Collection[str], names: _Names, base: Base
) -> bool:
    """Whether an adapter leaves a head tied: it changes neither, or tokens of both alike."""
    pair = (base.table, base.tied)
    touched = [parts for module, parts in modules.items() if names.of(module) in pair]
    return not any(names.tensor(own) in pair for own in whole) and all(
        set(parts) == {"tokens"} for parts in touched
    )


def _has_factors(modules: Mapping[str, Mapping[str, str]], names: _Names, tensor: str) -> bool:
    return any("embedding_a" in parts and names.of(m) == tensor for m, parts in modules.items())


def _check_shared(at: str, changed: Collection[str | None], base: Base) -> None:
    """Refuses a change of a table that several modules of transformers share."""
    prefix = base.model_format.prefix
    table = base.table.removeprefix(prefix)
    found = base.model_format.copies.items()
    copies = [x for x, original in found if original.removeprefix(prefix) == table]
    if base.table in changed and any(copy.endswith("embed_tokens.weight") for copy in copies):
        raise DataError(
            f"{at}: it changes {base.table}, which PEFT does in a module that neither the encoder "
            "nor the decoder reads: leave it out of target_modules and modules_to_save"
        )


def _replicated(folder: Path, config: PeftConfig, base: Base) -> dict[str, str]:
    """The names of the tensors of a model whose layers are some of the base's, also repeatedly."""
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
            f"{at}: its table of embeddings has {rows} rows, and {head} has "
            f"{tensors[head].shape[0]}, which the adapter does not hold: resize the base in "
            "transformers (resize_token_embeddings, save_pretrained) as for its training, and load "
            "the adapter onto that"
        )


@dataclass(frozen=True)
class _Change:
    """What an adapter has for one module."""

    at: str
    module: str
    config: PeftConfig
    shape: tuple[int, ...]
    in_out: bool
    parts: Mapping[str, np.ndarray]
    weight: float

    @property
    def rank(self) -> int:
        """The columns of the factors; 0: there are none."""
        first = self.parts.get("a", self.parts.get("embedding_a"))
        return 0 if first is None else len(first)

    @property
    def scale(self) -> np.float32:
        return np.float32(self.weight * self.config.scale_of(self.module, self.rank))

    def of_weight(self) -> Change:
        """The change of the module's weight."""
        if "tokens" in self.parts:
            return self._with_tokens(self.config.tokens_of(self.module))
        if "factors" in self.parts:
            return self._scaled(self.parts["factors"])
        if not self.config.has_factors or self.config.use_dora > ("magnitude" in self.parts):
            raise DataError(
                f"{self.at}: what it has for {self.module} ({', '.join(self.parts)}) is not what "
                "adapter_config.json says of it (peft_type, use_dora): fetch both files again"
            )
        return self._with_factors(*self._factors())

    def of_bias(self) -> Change | None:
        """The change of its bias, if there is one."""
        if (bias := self.parts.get("bias")) is not None:
            return lambda value: value + self.scale * bias
        factors = self.parts.get("factors")
        if factors is None or factors.shape[0] == 1:  # of the inputs
            return None
        return lambda value: value * factors[:, 0]

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """`[rows, r]` and `[r, columns]` of the weight."""
        pair, embeds = ("a", "b"), "embedding_a" in self.parts
        if embeds:
            pair = ("embedding_a", "embedding_b")
        a, b = (self.parts.get(name) for name in pair)
        turned = embeds or self.in_out
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        inputs, outputs = (rows, columns) if turned else (columns, rows)
        # A convolution's inputs are the pixels of a patch.
        flat = [None if side is None else side.reshape(len(side), -1) for side in (a, b)]
        wanted = (self.rank, inputs), (outputs, self.rank)
        if tuple(getattr(side, "shape", None) for side in flat) != wanted:
            shapes = [getattr(side, "shape", None) for side in (a, b)]
            raise DataError(
                f"{self.at}: the factors of {self.module} have the shapes {shapes[0]} and "
                f"{shapes[1]}: must be (r, {inputs}) and ({outputs}, r) for this model"
            )
        a, b = flat
        return (a.T, b.T) if turned else (b, a)

    def _with_factors(self, left: np.ndarray, right: np.ndarray) -> Change:
        magnitude = self.parts.get("magnitude")
        axis = 0 if self.in_out or "embedding_a" in self.parts else 1

        def change(value: np.ndarray) -> np.ndarray:
            moved = value + self.scale * (left @ right).reshape(value.shape)
            if magnitude is None:
                return moved
            flat = moved.reshape(len(moved), -1)
            norm = np.linalg.norm(flat, axis=axis, keepdims=True)
            flat = flat * (np.expand_dims(magnitude.reshape(-1), axis) / norm)
            return flat.reshape(value.shape)

        return change

    def _scaled(self, factors: np.ndarray) -> Change:
        # (1, inputs) of a feed-forward layer, (outputs, 1) of others.
        by = factors.T if self.in_out else factors
        if len(self.shape) != 2 or any(
            size not in (1, whole) for size, whole in zip(by.shape, self.shape, strict=True)
        ):
            raise DataError(
                f"{self.at}: the factors of {self.module} have the shape {factors.shape}, which "
                f"do not fit a weight of {self.shape}; {MERGE}"
            )
        return lambda value: value * by

    def _with_tokens(self, rows: Sequence[int]) -> Change:
        delta = self.parts["tokens"]
        if delta.shape != (len(rows), *self.shape[1:]) or not all(
            0 <= row < self.shape[0] for row in rows
        ):
            raise DataError(
                f"{self.at}: {self.module} has {len(delta)} tokens of width {delta.shape[1:]}: "
                f"must be the {len(rows)} that the config names, of a table of {self.shape}"
            )

        def change(value: np.ndarray) -> np.ndarray:
            value = value.copy()
            value[list(rows)] = delta
            return value

        return change
