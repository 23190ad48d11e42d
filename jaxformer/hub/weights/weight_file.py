"""Reads parameters from the tensors of a folder, and converts parameters to tensors."""

import fnmatch
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.tasks.classes import Task
from jaxformer.hub.weights.arrays import aligned_empty, check_finite, copy_into, only_zeros
from jaxformer.hub.weights.names import KnownNames, spellings
from jaxformer.hub.weights.parts import parts_without, tensor_parts, tensors_in
from jaxformer.hub.weights.tensors import Tensor, Tensors, same, warn_about_unused_biases
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.models.parameters import AbstractModel, Parameters

_log = logging.getLogger(__name__)

Shardings = Mapping[str, jax.sharding.Sharding]
Reader = Callable[[tuple[slice, ...]], np.ndarray]
"""Reads a slice of a parameter, for `jax.make_array_from_callback`."""


def named_placements(
    model_format: ModelFormat, config: Any, abstract_model: AbstractModel, prefix: str
) -> list[Placement]:
    """Returns the tensors of a model's file, with `prefix` as the prefix of the body."""

    def named(tensor: str) -> str:
        bare = tensor.removeprefix(model_format.prefix)
        return tensor if bare == tensor else prefix + bare

    placements = model_format.weight_map(config).placements(abstract_model)
    return [placement._replace(tensor=named(placement.tensor)) for placement in placements]


class WeightFile:
    """The tensors of a folder, and the parameters in them.

    Attributes:
        names: Name of a tensor in the weight map -> its name in the file.
        missing_parts: The heads and poolers without a tensor in the files, such as "heads.label".
    """

    def __init__(
        self,
        files: Tensors,
        model_format: ModelFormat,
        placements: list[Placement],
        absent: Sequence[str],
        *,
        may_lack_parts: bool = False,
    ):
        """Finds every tensor."""
        self._files = files
        known = KnownNames(files.tensors, model_format)
        self.names = known.find_all([each.tensor for each in placements])
        overruled = self._use_copied_biases(known, model_format)
        self._rows: dict[str, dict[tuple[int, ...], Placement]] = {}
        self._found = [placement for placement in placements if placement.tensor in self.names]
        for placement in self._found:
            for parameter, row in placement.places:
                self._rows.setdefault(parameter, {}).setdefault(row, placement)
        self.missing_parts = parts_without(placements, lambda each: each.tensor in self.names)
        used = {*self.names.values(), *overruled}
        unused = {
            name: current
            for current, name in known.current.items()
            if name not in used and not self._is_redundant(current, model_format)
        }
        self._left_out = sorted(
            name
            for name, current in unused.items()
            if any(fnmatch.fnmatchcase(current, pattern) for pattern in absent)
        )
        optional = tensors_in(placements, self.missing_parts) if may_lack_parts else []
        problems = [
            *self._missing([each for each in placements if each not in optional]),
            *self._mismatches(),
            *(f"{name} is not part of the model" for name in unused if name not in self._left_out),
        ]
        if problems:
            more = f" ... ({len(problems)} in all)" if len(problems) > 12 else ""
            raise DataError(
                f"{files.folder}: the tensors do not fit the model that config.json describes: "
                f"{'; '.join(problems[:12])}{more}{self._advice(model_format)}"
            )
        self._zeros: set[str] = set()
        self._overruled = [*overruled, *(p.tensor for p in self._found if self._is_overruled(p))]

    def _use_copied_biases(self, known: KnownNames, model_format: ModelFormat) -> list[str]:
        """Uses the second of two biases that should be equal, and returns the unused ones."""
        overruled = []
        for copy, original in model_format.copies.items():
            name = known.find(copy)
            first = self.names.get(original)
            if name is None or first in (None, name) or copy in self.names:
                continue
            if copy.endswith(".bias") and not same(self._files, name, first):
                overruled.append(first)
                self.names[original] = name
        return overruled

    def _missing(self, placements: Sequence[Placement]) -> list[str]:
        """Lists the missing tensors whose parameters are in no other tensor."""

        def lacks(placement: Placement) -> bool:
            rows = ((self._rows.get(name, {}), row) for name, row in placement.places)
            return any(row not in found for found, row in rows)

        return [f"{p.tensor} is missing" for p in placements if lacks(p)]

    def _mismatches(self) -> list[str]:
        """Lists the tensors with a wrong shape, dtype or constant value."""
        tensors = self._files.tensors
        problems = [
            f"{p.tensor} has shape {tensors[self.names[p.tensor]].shape}, not {p.shape}"
            for p in self._found
            if tensors[self.names[p.tensor]].shape != p.shape
        ]
        problems += [
            f"{name} holds {tensors[name].dtype}: must be floating-point; quantised weights "
            "cannot be read"
            for name in self.names.values()
            if not jnp.issubdtype(tensors[name].dtype, jnp.floating)
        ]
        problems += [
            f"{self.names[p.tensor]} differs from the table that transformers computes"
            for p in self._found
            if not p.places and not self._is_constant(p)
        ]
        return problems

    def _advice(self, model_format: ModelFormat) -> str:
        """Returns the remedy for a file without the heads of its class."""
        if not self.missing_parts:
            return ""
        bodies = (x.name for x in model_format.architectures if type(x.task) is Task)
        bare = next(bodies, None)
        named = f', such as {bare} (load(architecture="{bare}"), --architecture {bare})'
        parts = ", ".join(part.removeprefix("heads.") for part in self.missing_parts)
        return (
            f". The file lacks whole parts ({parts}): choose the class that it was saved from"
            f"{named if bare else ''}; or train them, from this folder with --init-from, where "
            "they start fresh"
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that are at least partly in the files."""
        return tuple(self._rows)

    def other_parts(
        self, model_format: ModelFormat, placements: Sequence[Placement]
    ) -> "WeightFile | None":
        """Returns the heads and poolers of another model that are complete in these files.

        `placements` are the tensors of those parts; returns None if no part is complete.
        """
        used = set(self.names.values())
        unused = [name for name in self._files.tensors if name not in used]
        known = KnownNames(unused, model_format)

        def fits(placement: Placement) -> bool:
            name = known.find(placement.tensor)
            return name is not None and self._files.tensors[name].shape == placement.shape

        lacking = tensor_parts(each for each in placements if not fits(each))
        kept = tensors_in(placements, tensor_parts(placements) - lacking)
        return WeightFile(self._files, model_format, kept, ("*",)) if kept else None

    def warn(self) -> None:
        """Warns about tensors that were left out, and about kernels that are all zeros."""
        if self._left_out:
            _log.warning(
                "%s: left out, because the model has no such part: %s",
                self._files.folder, ", ".join(self._left_out),
            )  # fmt: skip
        warn_about_unused_biases(self._files, self._overruled)
        if self._zeros:
            names = sorted(self._zeros)
            _log.warning(
                "%s: %d kernels contain only zeros, perhaps from an incomplete download: %s%s",
                self._files.folder, len(names), ", ".join(names[:4]), " ..." if names[4:] else "",
            )  # fmt: skip

    def tensor(self, name: str) -> np.ndarray:
        """Returns a used tensor as a view, by its name in the weight map."""
        return self._files.read(self.names[name])

    @property
    def described(self) -> dict[str, Tensor]:
        """The shapes and dtypes of the used tensors, by their names in the weight map."""
        return {name: self._files.tensors[kept] for name, kept in self.names.items()}

    def read(self, parameter: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a parameter in the dtype of most of its tensors."""
        return self.reader(parameter, shape)(tuple(slice(None) for _ in shape))

    def reader(self, parameter: str, shape: tuple[int, ...], dtype: Any = None) -> Reader:
        """Returns a function that reads a slice of a parameter.

        Values are cast to `dtype`; None: the dtype of most of its tensors.
        """
        rows = self._rows[parameter]
        kernel = any(slot.inputs for slot in next(iter(rows.values())).slots)
        depth = len(next(iter(rows)))
        dtype = self._dtype(rows.values()) if dtype is None else np.dtype(dtype)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            kept = [range(size)[part] for size, part in zip(shape, index, strict=True)]
            part = aligned_empty(tuple(len(numbers) for numbers in kept), dtype)

            def copy(place: tuple[int, ...], row: tuple[int, ...]) -> None:
                source = self._part(rows[row], parameter)[(*index[depth:], ...)]
                copied = part[(*place, ...)]
                copy_into(copied, source)
                name = self.names[rows[row].tensor]
                check_finite(f"{self._files.folder}: {name}", copied, source)
                whole = kernel and copied.shape == shape[depth:]
                if whole and name not in self._files.computed and only_zeros(copied):
                    self._zeros.add(name)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(copy, np.ndindex(part.shape[:depth]), product(*kept[:depth])))
            return part

        return read

    def _dtype(self, placements: Iterable[Placement]) -> np.dtype:
        """Returns the most common dtype of these tensors."""
        dtypes = [self._files.tensors[self.names[each.tensor]].dtype for each in placements]
        # JAX converts float64 to float32.
        return jax.dtypes.canonicalize_dtype(max(dtypes, key=dtypes.count))

    def _part(self, placement: Placement, parameter: str) -> np.ndarray:
        """Reads a parameter from the tensor that contains it."""
        tensor = self._files.read(self.names[placement.tensor])
        parts = placement.layout.read(tensor, placement.slots)
        return parts[[place.parameter for place in placement.places].index(parameter)]

    def _is_overruled(self, placement: Placement) -> bool:
        """Whether the parameters are read from another tensor with different values."""
        counts = [self._rows[name][row].tensor for name, row in placement.places]
        tensor = self._files.read(self.names[placement.tensor])
        return any(
            other != placement.tensor
            and not np.array_equal(self._files.read(self.names[other]), tensor)
            for other in counts
        )

    def _is_constant(self, placement: Placement) -> bool:
        """Whether a tensor without parameters equals the expected table."""
        table = self._files.read(self.names[placement.tensor])
        if table.shape != placement.shape or not jnp.issubdtype(table.dtype, jnp.floating):
            return True  # reported separately
        error = max(1e-3, 2 * float(jnp.finfo(table.dtype).eps))
        wanted = placement.layout.write((), ())
        return bool(np.all(np.abs(table.astype(np.float32) - wanted) <= error))

    def _is_redundant(self, name: str, model_format: ModelFormat) -> bool:
        """Whether an unused tensor is a buffer or a copy of another tensor."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in model_format.buffers):
            return True
        original = next(
            (
                self.names[spelling]
                for copy in model_format.copies
                if name in spellings(copy, model_format.prefix)
                for source in model_format.originals(copy)
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
    """Reads the parameters one by one into their shardings; a dtype of None keeps the files'."""
    shapes = {name: abstract_model.shapes[name].shape for name in shardings}
    parameters = {
        name: jax.make_array_from_callback(shape, shardings[name], file.reader(name, shape, dtype))
        for name, shape in shapes.items()
    }
    file.warn()
    return parameters


def described(
    parameters: Parameters, placements: list[Placement], dtype: Any = None
) -> dict[str, Tensor]:
    """Returns the shapes and dtypes of the tensors that `tensors_of` yields, in its order."""
    usual = next(iter(parameters.values())).dtype

    def dtype_of(placement: Placement) -> np.dtype:
        own = [parameters[place.parameter].dtype for place in placement.places] or [usual]
        return np.dtype(own[0] if dtype is None else dtype)

    return {
        placement.tensor: Tensor(placement.shape, dtype_of(placement)) for placement in placements
    }


def tensors_of(
    parameters: Parameters, placements: list[Placement]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and tensor of each placement, as views of the parameters if possible."""
    for placement in placements:
        yield placement.tensor, tensor_of(parameters, placement)


def tensor_of(parameters: Parameters, placement: Placement) -> np.ndarray:
    """Returns the tensor that stores some parameters, as a view if possible."""
    arrays = [_row(parameters[parameter], row) for parameter, row in placement.places]
    return placement.layout.write(arrays, placement.slots)


def _row(array: jax.Array, row: tuple[int, ...]) -> np.ndarray:
    """Copies a row of an array, or all of it for (), to host memory unless it is traced."""
    if isinstance(array, jax.core.Tracer):
        return array[row]
    devices = array.sharding.device_set
    if row and (len(devices) > 1 or next(iter(devices)).platform != "cpu"):
        array, row = array[row], ()  # transfers this row only
    return np.asarray(jax.device_get(array))[row]
