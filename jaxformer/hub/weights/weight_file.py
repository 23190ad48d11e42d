"""Reads parameters from the tensors of a folder, and makes tensors of parameters."""

import fnmatch
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.arrays import aligned_empty, check_finite, copy_into, only_zeros
from jaxformer.hub.weights.tensors import Tensor, Tensors
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.models.parameters import AbstractModel, Parameters

_log = logging.getLogger(__name__)

Shardings = Mapping[str, jax.sharding.Sharding]
Reader = Callable[[tuple[slice, ...]], np.ndarray]
"""Reads the part of a parameter at an index, for `jax.make_array_from_callback`."""


def named_placements(
    model_format: ModelFormat, config: Any, abstract_model: AbstractModel, prefix: str
) -> list[Placement]:
    """Returns the tensors of a model's file.

    Args:
        model_format: The system, whose weight map has the names of a model with heads.
        config: The model.
        abstract_model: Its structure.
        prefix: The prefix of the body's tensors in this file.
    """

    def named(tensor: str) -> str:
        bare = tensor.removeprefix(model_format.prefix)
        return tensor if bare == tensor else prefix + bare

    placements = model_format.weight_map(config).placements(abstract_model)
    return [placement._replace(tensor=named(placement.tensor)) for placement in placements]


def absent_parts(
    model_format: ModelFormat, config: Any, abstract_model: AbstractModel
) -> list[str]:
    """Returns the tensors of heads, and of a pooler, that other classes of the system have.

    A file may have them beside those of the model: that of a pre-trained BERT has both heads of
    pre-training, whatever class its config.json names.

    Args:
        model_format: The system.
        config: The model.
        abstract_model: Its structure.

    Returns:
        Patterns of names: "cls.seq_relationship" and "cls.seq_relationship.*".
    """
    own = {("heads", head.name) for head in config.heads}
    own |= {(path.split(".")[0],) for path in abstract_model.shapes}
    absent = []
    for path, tensor in model_format.weight_map(config).names.items():
        first, *rest = path.split(".")
        part = (first, rest[0]) if first == "heads" else (first,)
        if first in ("heads", "pooler") and part not in own:
            for name in spellings(tensor.replace("{}", "*"), model_format.prefix):
                absent += [name, f"{name}.*"]
    return absent


class WeightFile:
    """The tensors of a folder, and the parameters in them.

    Attributes:
        names: The name of a tensor in the weight map -> its name in the file.
    """

    def __init__(
        self,
        files: Tensors,
        model_format: ModelFormat,
        placements: list[Placement],
        absent: Sequence[str],
    ):
        """Finds every tensor.

        Args:
            files: The tensors.
            model_format: The system.
            placements: The parameters in each tensor.
            absent: Patterns of tensors that may be there and are left out, see `absent_parts`.

        Raises:
            DataError: Tensors are missing, have a wrong shape, are integers, or are not used (lists
                them).
        """
        self._files = files
        known = {current_name(name, model_format): name for name in files.tensors}
        self.names: dict[str, str] = {}
        for placement in placements:
            for name in spellings(placement.tensor, model_format.prefix):
                if name in known:
                    self.names[placement.tensor] = known[name]
        problems = [f"{p.tensor} is missing" for p in placements if p.tensor not in self.names]
        problems += [
            f"{p.tensor} has shape {files.tensors[self.names[p.tensor]].shape}, not {p.shape}"
            for p in placements
            if p.tensor in self.names and files.tensors[self.names[p.tensor]].shape != p.shape
        ]
        problems += [
            f"{name} holds {files.tensors[name].dtype}, no floating-point numbers: weights that "
            "were quantised cannot be read"
            for name in self.names.values()
            if not jnp.issubdtype(files.tensors[name].dtype, jnp.floating)
        ]
        used = set(self.names.values())
        unused = {
            name: current
            for current, name in known.items()
            if name not in used and not self._superfluous(current, model_format)
        }
        self._left_out = sorted(
            name
            for name, current in unused.items()
            if any(fnmatch.fnmatchcase(current, pattern) for pattern in absent)
        )
        problems += [f"{name} is used by nothing" for name in unused if name not in self._left_out]
        if problems:
            more = f" ... ({len(problems)} in all)" if len(problems) > 12 else ""
            raise DataError(
                f"{files.folder}: the tensors do not fit the model that config.json describes: "
                f"{'; '.join(problems[:12])}{more}"
            )
        self._zeros: set[str] = set()
        self._rows: dict[str, dict[tuple[int, ...], Placement]] = {}
        for placement in placements:
            for parameter, row in placement.places:
                self._rows.setdefault(parameter, {})[row] = placement

    def warn(self) -> None:
        """Warns of tensors that were left out, and of kernels that were read and are all zeros."""
        if self._left_out:
            _log.warning(
                "%s: left out, because the model has no such head or pooler: %s",
                self._files.folder, ", ".join(self._left_out),
            )  # fmt: skip
        if self._zeros:
            names = sorted(self._zeros)
            _log.warning(
                "%s: %d kernels hold nothing but zeros, as where a file was fetched in part: %s%s",
                self._files.folder, len(names), ", ".join(names[:4]), " ..." if names[4:] else "",
            )  # fmt: skip

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the tensors that are used, by their names in the weight map, as views."""
        for name, kept in self.names.items():
            yield name, self._files.read(kept)

    def read(self, parameter: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a whole parameter, in the dtype of most of its tensors."""
        return self.reader(parameter, shape)(tuple(slice(None) for _ in shape))

    def reader(self, parameter: str, shape: tuple[int, ...], dtype: Any = None) -> Reader:
        """Returns a function that reads a part of one parameter.

        Args:
            parameter: Its name.
            shape: Its shape.
            dtype: The dtype it is cast to; None: that of most of its tensors.
        """
        rows = self._rows[parameter]
        kernel = any(slot.inputs for slot in next(iter(rows.values())).slots)
        depth = len(next(iter(rows)))
        dtype = self._dtype(rows.values()) if dtype is None else np.dtype(dtype)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            kept = [range(size)[part] for size, part in zip(shape, index, strict=True)]
            part = aligned_empty(tuple(len(numbers) for numbers in kept), dtype)

            def copy(place: tuple[int, ...], row: tuple[int, ...]) -> None:
                held = self._part(rows[row], parameter)[(*index[depth:], ...)]
                copied = part[(*place, ...)]
                copy_into(copied, held)
                name = self.names[rows[row].tensor]
                check_finite(f"{self._files.folder}: {name}", copied, held)
                if kernel and copied.shape == shape[depth:] and only_zeros(copied):
                    self._zeros.add(name)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(copy, np.ndindex(part.shape[:depth]), product(*kept[:depth])))
            return part

        return read

    def _dtype(self, placements: Iterable[Placement]) -> np.dtype:
        """The dtype of most of these tensors."""
        dtypes = [self._files.tensors[self.names[each.tensor]].dtype for each in placements]
        # JAX converts float64 to float32.
        return jax.dtypes.canonicalize_dtype(max(dtypes, key=dtypes.count))

    def _part(self, placement: Placement, parameter: str) -> np.ndarray:
        """The part of a parameter in a tensor."""
        tensor = self._files.read(self.names[placement.tensor])
        parts = placement.layout.read(tensor, placement.slots)
        return parts[[place.parameter for place in placement.places].index(parameter)]

    def _superfluous(self, name: str, model_format: ModelFormat) -> bool:
        """Whether an unused tensor is a buffer, or a copy of another tensor."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in model_format.buffers):
            return True
        original = next(
            (
                self.names[spelling]
                for copy, source in model_format.copies.items()
                if name in spellings(copy, model_format.prefix)
                for spelling in spellings(source, model_format.prefix)
                if spelling in self.names
            ),
            None,
        )
        return original is not None and np.array_equal(
            self._files.read(original), self._files.read(name)
        )


def load_parameters(
    file: WeightFile, abstract_model: AbstractModel, shardings: Shardings, dtype: Any = None
) -> Parameters:
    """Returns the parameters of a file, read one at a time, each directly into its sharding.

    Args:
        file: The tensors.
        abstract_model: The structure of the model.
        shardings: The shardings of the parameters by name.
        dtype: The dtype they are cast to; None keeps the files' own.

    Raises:
        DataError: A weight is not finite, perhaps only in the new dtype; names its tensor.
    """
    parameters = {
        name: jax.make_array_from_callback(
            shape.shape, shardings[name], file.reader(name, shape.shape, dtype)
        )
        for name, shape in abstract_model.shapes.items()
    }
    file.warn()
    return parameters


def described(
    parameters: Parameters, placements: list[Placement], dtype: Any = None
) -> dict[str, Tensor]:
    """Returns the shapes and dtypes of the tensors that `tensors_of` yields, in its order."""
    return {
        placement.tensor: Tensor(
            placement.shape,
            np.dtype(parameters[placement.places[0].parameter].dtype if dtype is None else dtype),
        )
        for placement in placements
    }


def tensors_of(
    parameters: Parameters, placements: list[Placement]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and tensors of a file, as views of the parameters if possible.

    Args:
        parameters: The parameters of a model, or their gradients.
        placements: The parameters in each tensor.

    Yields:
        Pairs of name and tensor.
    """
    for placement in placements:
        yield placement.tensor, tensor_of(parameters, placement)


def tensor_of(parameters: Parameters, placement: Placement) -> np.ndarray:
    """Returns the tensor of a file that holds some parameters, as a view if possible."""
    arrays = [_row(parameters[parameter], row) for parameter, row in placement.places]
    return placement.layout.write(arrays, placement.slots)


def _row(array: jax.Array, row: tuple[int, ...]) -> np.ndarray:
    """One row of an array, or all of it for (), in the host's memory."""
    devices = array.sharding.device_set
    if row and (len(devices) > 1 or next(iter(devices)).platform != "cpu"):
        array, row = array[row], ()  # so that no more than this is transferred
    return np.asarray(jax.device_get(array))[row]


def current_name(name: str, model_format: ModelFormat) -> str:
    """Returns the current name of a tensor, which may have an old one in a file."""
    for old, new in model_format.aliases.items():
        name = re.sub(old, new, name)
    return name


def spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Returns a name with and without the prefix of models with heads."""
    if not prefix:
        return (name,)
    bare = name.removeprefix(prefix)
    return (name, prefix + bare, bare)
