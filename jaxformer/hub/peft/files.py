"""PEFT's files of low-rank adapters: adapter_config.json and adapter_model.safetensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save

from jaxformer.errors import ConfigError
from jaxformer.hub.peft import experts
from jaxformer.hub.peft.config import PeftConfig
from jaxformer.hub.weights.layouts import Slot
from jaxformer.hub.weights.weight_map import Placement

TENSORS = "adapter_model.safetensors"
ROOT = "base_model.model."
_WEIGHT = ".weight"
_SIDES = (".lora_A.weight", ".lora_B.weight")


class Factors(NamedTuple):
    """The low-rank factors of a kernel, which becomes `W + scale A B`."""

    a: np.ndarray
    """`[*layers, *inputs, r]`."""
    b: np.ndarray
    """`[*layers, r, *outputs]`."""
    scale: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """The changes of an adapter to a model, by our parameter names."""

    factors: Mapping[str, Factors]
    """The low-rank factors by kernel."""
    replaced: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Replaced parameters, such as newly trained heads."""


def write_adapter(
    folder: Path, adapter: Adapter, placements: Sequence[Placement], config: PeftConfig
) -> PeftConfig:
    """Writes an adapter in PEFT's format, and returns its configuration.

    If one tensor of the file stores several of our kernels (GPT-2's c_attn), their factors are
    joined: A has the columns of each, and B is zero outside of their blocks. The same applies to
    the gate and up kernels of experts, which are one parameter in transformers.
    """
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    transposed = False
    of_experts: dict[str, list[Placement]] = {}
    for placement in placements:
        if not any(place.parameter in adapter.factors for place in placement.places):
            continue
        if parameter := experts.parameter_with(placement):
            of_experts.setdefault(parameter, [])
            continue
        module = _module(placement)
        a, b = _joined(placement, adapter.factors)
        ranks[_target(placement)], transposed = a.shape[0], transposed or is_in_out(placement)
        tensors |= zip((f"{ROOT}{module}{side}" for side in _SIDES), (a, b), strict=True)
    for placement in placements:
        if (parameter := experts.parameter_with(placement)) in of_experts:
            of_experts[parameter].append(placement)
    for parameter, own in of_experts.items():
        pair = experts.joined(own, adapter.factors)
        ranks[parameter] = pair.b.shape[2]
        module = experts.module_of(parameter, of_experts)
        tensors |= zip((f"{ROOT}{module}{side}" for side in _SIDES), pair.of_all, strict=True)
    saved = _saved_modules(adapter, placements)
    for placement in placements:
        if placement.tensor.startswith(tuple(f"{module}." for module in saved)):
            arrays = [adapter.replaced[p.parameter][p.row] for p in placement.places]
            written = placement.layout.write(arrays, placement.slots)
            tensors[ROOT + placement.tensor] = np.ascontiguousarray(written)
    modules = [experts.parameter_with(each) or _target(each) for each in placements]
    config = config.of_modules(ranks, modules, saved, fan_in_fan_out=transposed)
    (folder / TENSORS).write_bytes(save(tensors, metadata={"format": "pt"}))
    config.write(folder)
    return config


def _joined(placement: Placement, factors: Mapping[str, Factors]) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[R, inputs]` and `[outputs, R]` for a tensor with kernels that have factors."""
    columns, rows = [], []
    for index, (name, row) in enumerate(placement.places):
        if name not in factors:
            continue
        a, b = (np.asarray(side[row], np.float32) for side in factors[name][:2])
        columns.append(a.reshape(-1, a.shape[-1]).T)
        slots = _low_rank_slots(placement.slots, b.shape[0])
        parts = [b if i == index else np.zeros(s.shape, b.dtype) for i, s in enumerate(slots)]
        written = placement.layout.write(parts, slots)
        rows.append(written.T if is_in_out(placement) else written)
    a = np.concatenate(columns, axis=0)
    b = np.concatenate(rows, axis=1)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def _low_rank_slots(slots: Sequence[Slot], rank: int) -> tuple[Slot, ...]:
    """Returns the kernels of a tensor with `rank` inputs."""
    return tuple(Slot((rank, *slot.shape[slot.inputs :]), 1) for slot in slots)


def is_in_out(placement: Placement) -> bool:
    """Returns whether a tensor is `[inputs, outputs]`, as in GPT-2's Conv1D."""
    if len(placement.shape) != 2 or not all(slot.inputs for slot in placement.slots):
        return False
    rank = max(placement.shape) + 1
    return placement.layout.shape(_low_rank_slots(placement.slots, rank))[0] == rank


def _module(placement: Placement) -> str:
    if not placement.tensor.endswith(_WEIGHT) or len(placement.shape) != 2:
        raise ConfigError(
            f"{placement.places[0].parameter}: its tensor {placement.tensor} is not the weight of "
            "a linear layer, as PEFT requires: export without --adapter"
        )
    return placement.tensor.removesuffix(_WEIGHT)


def _target(placement: Placement) -> str:
    """Returns the name of the adapted linear layer, or of a router's parameter."""
    router = any(place.parameter.endswith(".router.kernel") for place in placement.places)
    return placement.tensor if router else placement.tensor.removesuffix(_WEIGHT)


def _saved_modules(adapter: Adapter, placements: Iterable[Placement]) -> list[str]:
    """Returns the fully trained modules, which contain all replaced parameters."""
    heads = {
        place.parameter: placement.tensor
        for placement in placements
        for place in placement.places
        if place.parameter in adapter.replaced
    }
    modules = dict.fromkeys(
        tensor.split(".")[0] if name.startswith("heads.") else tensor.rpartition(".")[0]
        for name, tensor in heads.items()
    )
    for placement in placements:
        for module in modules:
            inside = placement.tensor.startswith(f"{module}.")
            learned = all(place.parameter in adapter.replaced for place in placement.places[:1])
            if inside and not learned:
                raise ConfigError(
                    f"{module}: PEFT saves whole modules, but {placement.tensor} was not "
                    "trained with the rest of it: export without --adapter"
                )
    return list(modules)
