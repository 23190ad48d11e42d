"""PEFT's files of low-rank adapters: adapter_config.json and adapter_model.safetensors."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.peft_config import CONFIG, PeftConfig, read_peft_config
from jaxformer.hub.weights.layouts import Slot
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.paths import any_path
from jaxformer.models.lora import adapted
from jaxformer.models.parameters import Parameters

TENSORS = "adapter_model.safetensors"
ROOT = "base_model.model."
_WEIGHT = ".weight"
_SIDES = (".lora_A.weight", ".lora_B.weight")


class Factors(NamedTuple):
    """The low-rank factors of a kernel: it becomes `W + scale A B`."""

    a: np.ndarray
    """`[*layers, *inputs, r]`."""
    b: np.ndarray
    """`[*layers, r, *outputs]`."""
    scale: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """What an adapter changes in a model, by our names."""

    factors: Mapping[str, Factors]
    """Of the kernels that have some."""
    whole: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Parameters that replace those of the model: heads that learned besides."""

    def applied(self, name: str, value: np.ndarray, weight: float = 1.0) -> np.ndarray:
        """A parameter of the model with the adapter in it.

        Args:
            name: The parameter's name.
            value: Its value in the model.
            weight: What multiplies the product of the factors besides their scale.

        Returns:
            The value in the dtype of `value`; the very array where the adapter changes nothing.
        """
        if name in self.whole:
            return self.whole[name].astype(value.dtype)
        if name not in self.factors:
            return value
        a, b, scale = self.factors[name]
        wide = jnp.asarray(value.astype(np.float32))
        return np.asarray(adapted(wide, a, b, scale * weight)).astype(value.dtype)


def is_adapter(folder: str | os.PathLike) -> bool:
    """Whether a folder holds an adapter of PEFT, and no model."""
    folder = any_path(folder, "folder")
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def with_adapters(
    parameters: Parameters, adapters: Mapping[str, Adapter], weights: Mapping[str, float]
) -> Parameters:
    r"""The parameters of a model with the weighted sum of adapters in them.

    .. math:: W' = W + \sum_n w_n \lambda_n A_n B_n

    Args:
        parameters: Of the model; those that no adapter changes are shared, not copied.
        adapters: By name.
        weights: w, by the name of the adapter.

    Returns:
        The parameters, each where it was.

    Raises:
        ConfigError: There is no adapter of a name, or several replace the same parameters.
    """
    if not weights or not weights.keys() <= adapters.keys():
        raise ConfigError(
            f"adapters = {list(weights)}: must be among {', '.join(adapters) or 'none'}; "
            "jaxformer.load(folder, adapters={NAME: ADAPTER}) reads them"
        )
    chosen = {adapters[name]: weight for name, weight in weights.items()}
    whole = [name for adapter in chosen for name in adapter.whole]
    if len(set(whole)) < len(whole):
        raise ConfigError(f"adapters {', '.join(weights)}: each replaces {whole[0]}: choose one")
    changed = dict(parameters)
    for adapter, weight in chosen.items():
        for name in (*adapter.factors, *adapter.whole):
            value = adapter.applied(name, np.asarray(changed[name]), weight)
            changed[name] = jax.device_put(value, parameters[name].sharding)
    return changed


# Writing ----------------------------------------------------------------------------------------


def write_adapter(
    folder: Path, adapter: Adapter, placements: Sequence[Placement], config: PeftConfig
) -> PeftConfig:
    """Writes an adapter as PEFT does.

    Where one tensor of the file has several of our kernels (GPT-2's c_attn), its factors are those
    of the kernels side by side: A has the columns of each, and B is zero outside of their blocks.

    Args:
        folder: An existing folder.
        adapter: The adapter.
        placements: The tensors of the model and our parameters in each.
        config: What the file says of the rest: base, task, dropout, rank and alpha of a kernel.

    Returns:
        What was written, with the modules.

    Raises:
        ConfigError: PEFT cannot express a change.
    """
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    transposed = False
    for placement in placements:
        adapted = [place.parameter in adapter.factors for place in placement.places]
        if any(adapted):
            module = _module(placement)
            a, b = _joined(placement, adapter.factors)
            ranks[module], transposed = a.shape[0], transposed or is_in_out(placement)
            tensors |= zip((f"{ROOT}{module}{side}" for side in _SIDES), (a, b), strict=True)
    saved = _saved_modules(adapter, placements)
    for placement in placements:
        if placement.tensor.startswith(tuple(f"{module}." for module in saved)):
            arrays = [adapter.whole[p.parameter][p.row] for p in placement.places]
            written = placement.layout.write(arrays, placement.slots)
            tensors[ROOT + placement.tensor] = np.ascontiguousarray(written)
    modules = [p.tensor.removesuffix(_WEIGHT) for p in placements]
    config = config.of_modules(ranks, modules, saved, fan_in_fan_out=transposed)
    (folder / TENSORS).write_bytes(save(tensors, metadata={"format": "pt"}))
    config.write(folder)
    return config


def _joined(placement: Placement, factors: Mapping[str, Factors]) -> tuple[np.ndarray, np.ndarray]:
    """`[R, inputs]` and `[outputs, R]` of the kernels in a tensor, of which some have factors."""
    columns, rows = [], []
    for index, (name, row) in enumerate(placement.places):
        if name not in factors:
            continue
        a, b = (np.asarray(side[row], np.float32) for side in factors[name][:2])
        columns.append(a.reshape(-1, a.shape[-1]).T)
        slots = _low(placement.slots, b.shape[0])
        parts = [b if i == index else np.zeros(s.shape, b.dtype) for i, s in enumerate(slots)]
        written = placement.layout.write(parts, slots)
        rows.append(written.T if is_in_out(placement) else written)
    a, b = np.concatenate(columns, axis=0), np.concatenate(rows, axis=1)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def _low(slots: Sequence[Slot], rank: int) -> tuple[Slot, ...]:
    """The kernels of a tensor with `rank` inputs in place of their own."""
    return tuple(Slot((rank, *slot.shape[slot.inputs :]), 1) for slot in slots)


def is_in_out(placement: Placement) -> bool:
    """Returns whether a tensor is `[inputs, outputs]`, as those of GPT-2's Conv1D."""
    if len(placement.shape) != 2 or not all(slot.inputs for slot in placement.slots):
        return False
    rank = max(placement.shape) + 1
    return placement.layout.shape(_low(placement.slots, rank))[0] == rank


def _module(placement: Placement) -> str:
    if not placement.tensor.endswith(_WEIGHT) or len(placement.shape) != 2:
        raise ConfigError(
            f"{placement.places[0].parameter}: its tensor {placement.tensor} is no weight of a "
            "linear layer, and PEFT adapts nothing else: export without --adapter"
        )
    return placement.tensor.removesuffix(_WEIGHT)


def _saved_modules(adapter: Adapter, placements: Iterable[Placement]) -> list[str]:
    """The modules that PEFT saves whole, which contain all parameters that learned."""
    heads = {
        place.parameter: placement.tensor
        for placement in placements
        for place in placement.places
        if place.parameter in adapter.whole
    }
    modules = dict.fromkeys(
        tensor.split(".")[0] if name.startswith("heads.") else tensor.rpartition(".")[0]
        for name, tensor in heads.items()
    )
    for placement in placements:
        for module in modules:
            inside = placement.tensor.startswith(f"{module}.")
            learned = all(place.parameter in adapter.whole for place in placement.places[:1])
            if inside and not learned:
                raise ConfigError(
                    f"{module}: PEFT saves whole modules, but {placement.tensor} did not "
                    "learn with the rest of it: export without --adapter"
                )
    return list(modules)


# Reading ----------------------------------------------------------------------------------------


def read_adapter(folder: Path, placements: Sequence[Placement]) -> Adapter:
    """Reads an adapter that PEFT wrote.

    Args:
        folder: The folder with both files.
        placements: The tensors of its base model and our parameters in each.

    Returns:
        The adapter. Layers without factors have zeros, and smaller ranks are filled up with them.

    Raises:
        ConfigError: It is no LoRA, or has a setting that is not supported.
        DataError: The tensors do not fit the model.
    """
    config, files = read_peft_config(folder), TensorFiles(folder, TENSORS, index=None)
    if not config.is_lora:
        raise ConfigError(
            f"{folder / CONFIG}: one of several adapters must have low-rank factors alone; load "
            f'this one by itself: load(folder, adapter="{folder}")'
        )
    known = {name.removeprefix(ROOT): name for name in files.tensors}
    pieces: dict[str, dict[tuple[int, ...], Factors]] = {}
    whole: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for placement in placements:
        module = placement.tensor.removesuffix(_WEIGHT)
        names = [known.pop(module + side, None) for side in _SIDES]
        if all(names):
            a, b = (files.read(name).astype(np.float32) for name in names)
            _check_shapes(folder, placement, a, b)
            parts = _split(placement, a, b)
            for (name, row), factors in zip(placement.places, parts, strict=True):
                scaled = Factors(*factors, config.scale_of(module, a.shape[0]))
                pieces.setdefault(name, {})[row] = scaled
        elif (name := known.pop(placement.tensor, None)) is not None:
            parts = _whole(folder, placement, files.read(name))
            for (name, row), part in zip(placement.places, parts, strict=True):
                whole.setdefault(name, {})[row] = part
    if known or not pieces:
        listed = ", ".join(sorted(known)[:4]) or "no lora_A and lora_B"
        raise DataError(
            f"{folder / TENSORS}: does not fit the model: {listed}{' ...' if known else ''} "
            f"have no place in it; the adapter was trained on {config.base or 'another model'}"
        )
    modules = {
        placement.tensor.removesuffix(_WEIGHT): placement.places[0] for placement in placements
    }
    adapted = {m for m, (name, row) in modules.items() if row in pieces.get(name, ())}
    config.check_depth(f"{folder / TENSORS}", adapted, modules)
    rows: dict[str, list[tuple[int, ...]]] = {}
    for name, row in (place for placement in placements for place in placement.places):
        rows.setdefault(name, []).append(row)
    return Adapter(
        {name: _stacked(found, rows[name]) for name, found in pieces.items()},
        {name: _in_rows(found) for name, found in whole.items()},
    )


def _check_shapes(folder: Path, placement: Placement, a: np.ndarray, b: np.ndarray) -> None:
    inputs, outputs = placement.shape if is_in_out(placement) else placement.shape[::-1]
    if a.shape != (len(a), inputs) or b.shape != (outputs, len(a)):
        raise DataError(
            f"{folder / TENSORS}: the factors of {_module(placement)} have the shapes "
            f"{a.shape} and {b.shape}: must be (r, {inputs}) and ({outputs}, r) for this model"
        )


def _split(
    placement: Placement, a: np.ndarray, b: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """`[*inputs, R]` and `[R, *outputs]` of each kernel in a tensor; A is that of them all."""
    rank, slots = len(a), placement.slots
    parts = placement.layout.read(b.T if is_in_out(placement) else b, _low(slots, rank))
    return [
        (a.T.reshape(*slot.shape[: slot.inputs], rank), part)
        for slot, part in zip(slots, parts, strict=True)
    ]


def _whole(folder: Path, placement: Placement, tensor: np.ndarray) -> list[np.ndarray]:
    if tensor.shape != placement.shape:
        raise DataError(
            f"{folder / TENSORS}: {placement.tensor} has shape {tensor.shape}: must be "
            f"{placement.shape} for this model"
        )
    return placement.layout.read(tensor.astype(np.float32), placement.slots)


def _stacked(found: Mapping[tuple[int, ...], Factors], rows: Sequence[tuple[int, ...]]) -> Factors:
    """The factors of all layers, with one scale and the largest rank."""
    first = next(iter(found.values()))
    rank = max(factors.a.shape[-1] for factors in found.values())
    sides: list[dict[tuple[int, ...], np.ndarray]] = [{}, {}]
    for row in rows:
        a, b, scale = found.get(row, first)
        b = b * np.float32(scale / first.scale if row in found else 0.0)
        missing = rank - a.shape[-1]
        sides[0][row] = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, missing)])
        sides[1][row] = np.pad(b, [(0, missing)] + [(0, 0)] * (b.ndim - 1))
    return Factors(*map(_in_rows, sides), first.scale)


def _in_rows(found: Mapping[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """One array of all rows."""
    if () in found:
        return found[()]
    sizes = [max(numbers) + 1 for numbers in zip(*found, strict=True)]
    return np.stack([found[row] for row in np.ndindex(*sizes)]).reshape(
        *sizes, *next(iter(found.values())).shape
    )
