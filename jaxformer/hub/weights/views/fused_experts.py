"""The kernels of experts as in transformers 5: one tensor for all experts."""

import re
from collections.abc import Mapping
from itertools import product

import numpy as np

from jaxformer.hub.weights.tensors import Tensor, Tensors
from jaxformer.hub.weights.weight_map import WeightMap

FUSED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
"""Parameter of an experts module -> our kernels in it, in order."""
_APART = re.compile(r"(.*\.experts)\.\{\}\.([^.]+)")
_TOGETHER = re.compile(rf"(.*\.experts)\.({'|'.join(FUSED)})")


def names_of_experts(weight_map: WeightMap) -> dict[str, tuple[str, ...]]:
    """Returns the names of an expert's linear layers by the keys of `FUSED`: {"down_proj":
    ("w2",)}.

    The result is empty for a model without experts, or with fused kernels in its files.
    """
    found = {
        path.rpartition(".")[2]: match[2]
        for path, tensor in weight_map.names.items()
        if (match := _APART.fullmatch(tensor))
    }
    if not found:
        return {}
    return {fused: tuple(found[own] for own in parts) for fused, parts in FUSED.items()}


class SplitExperts:
    """The `Tensors` of a folder, with fused tensors split into the kernels of each expert.

    `NAME.experts.gate_up_proj` `[E, 2 F, D]` is `NAME.experts.0.gate_proj.weight` `[F, D]` and so
    on, and `NAME.experts.down_proj` `[E, D, F]` is `NAME.experts.0.down_proj.weight` `[D, F]`.
    """

    def __init__(self, files: Tensors, names: Mapping[str, tuple[str, ...]]):
        """Finds the tensors to split; `names` come from `names_of_experts`."""
        self._files = files
        self.folder, self.unused, self.computed = files.folder, files.unused, files.computed
        self.tensors: dict[str, Tensor] = {}
        # Name of a kernel -> its tensor, and its expert and rows in it.
        self._slices: dict[str, tuple[str, int, slice]] = {}
        for name, tensor in files.tensors.items():
            match = _TOGETHER.fullmatch(name)
            if not names or match is None or len(tensor.shape) != 3:
                self.tensors[name] = tensor
                continue
            experts, rows, columns = tensor.shape
            parts = names[match[2]]
            size = rows // len(parts)
            for expert, (place, part) in product(range(experts), enumerate(parts)):
                own = f"{match[1]}.{expert}.{part}.weight"
                self.tensors[own] = Tensor((size, columns), tensor.dtype)
                self._slices[own] = name, expert, slice(place * size, (place + 1) * size)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as a view of the file if possible."""
        if name not in self._slices:
            return self._files.read(name)
        tensor, expert, rows = self._slices[name]
        return self._files.read(tensor)[expert, rows]
