"""The weight formats of an export: safetensors, or the msgpack files of a Flax class."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.weights.flax_tree import (
    check_fixed,
    flax_arrays,
    flax_class,
    flax_placements,
    write_flax,
)
from jaxformer.hub.weights.msgpack_tree import Leaf
from jaxformer.hub.weights.tensors import Tensor, write_tensors
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.models.parameters import Parameters

_log = logging.getLogger(__name__)


class ExportFormat:
    """A weight format; this one is the safetensors files of transformers."""

    name: str = "hf"
    """The name in `save`, and the `kind` of the file layouts."""
    max_bytes: int = 5 * 10**9
    """The maximum size of a file, unless the layout of existing files is kept."""

    def check(
        self, checkpoint: HFCheckpoint, parameters: Parameters, placements: list[Placement]
    ) -> None:
        """Raises a ConfigError if the format cannot store a model."""

    def kept(self, checkpoint: HFCheckpoint, placements: list[Placement]) -> list[Placement]:
        """Returns the tensors of PyTorch's file that this format stores."""
        return placements

    def write(
        self,
        folder: Path,
        checkpoint: HFCheckpoint,
        parameters: Parameters,
        placements: list[Placement],
        kinds: Mapping[str, Tensor],
        max_bytes: int,
    ) -> None:
        """Writes the files."""
        # The order of safetensors' own writer: large dtypes first, so that all values are aligned.
        order = sorted(placements, key=lambda p: (-kinds[p.tensor].dtype.itemsize, p.tensor))
        kinds = {placement.tensor: kinds[placement.tensor] for placement in order}
        write_tensors(folder, kinds, tensors_of(parameters, order), max_bytes)


class FlaxMsgpack(ExportFormat):
    """The msgpack files of the Flax classes in transformers 4."""

    name = "flax"
    max_bytes = 10**10

    def check(self, checkpoint, parameters, placements):
        flax_class(checkpoint)
        check_fixed(checkpoint, parameters, placements)

    def kept(self, checkpoint, placements):
        return flax_placements(checkpoint, placements)

    def write(self, folder, checkpoint, parameters, placements, kinds, max_bytes):
        dtypes = {name: kind.dtype for name, kind in kinds.items()}
        usual = max(dtypes.values(), key=list(dtypes.values()).count)
        for note in checkpoint.model_format.flax.notes(checkpoint.hf_config):
            name = flax_class(checkpoint)
            _log.warning("%s will compute something else from this export: %s", name, note)
        leaves = []
        for array in flax_arrays(checkpoint, placements):
            stored = array.placement is not None
            dtype = np.dtype(dtypes[array.placement.tensor] if stored else usual)
            described = Leaf(array.path, Tensor(array.shape, dtype))
            leaves.append((described, partial(array.read, parameters, dtype)))
        write_flax(folder, leaves, max_bytes)


EXPORT_FORMATS: dict[str, ExportFormat] = {
    each.name: each for each in (ExportFormat(), FlaxMsgpack())
}
"""The formats by name."""


def export_format(name: str) -> ExportFormat:
    """Returns a format by name."""
    if name not in EXPORT_FORMATS:
        known = " or ".join(map(repr, EXPORT_FORMATS))
        hint = did_you_mean(name, EXPORT_FORMATS)
        raise ConfigError(f"format = {name!r}: must be {known}{hint}")
    return EXPORT_FORMATS[name]
