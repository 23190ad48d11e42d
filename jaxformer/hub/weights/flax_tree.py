"""Builds the parameter tree of a Flax class in transformers 4 from our parameters."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict, unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.errors import ArgumentError, ConfigError, DataError, shortened
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.hub.hf_config import write_hf_config
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.arrays import check_finite
from jaxformer.hub.weights.flax_names import View, view_for, views_of
from jaxformer.hub.weights.layouts import Shape
from jaxformer.hub.weights.msgpack_files import INDEX, SINGLE, write_tree
from jaxformer.hub.weights.msgpack_tree import Leaf
from jaxformer.hub.weights.names import KnownNames
from jaxformer.hub.weights.tensors import Tensor, Tensors, num_bytes, shards_for
from jaxformer.hub.weights.weight_file import spellings, tensor_of
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.model_files import GENERATION
from jaxformer.models.parameters import Parameters

_log = logging.getLogger(__name__)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
_CLASSES = frozenset(name for names in FLAX_CLASSES.values() for name in names)


class FlaxArray(NamedTuple):
    """An array of the tree."""

    path: tuple[str, ...]
    """The path of keys in the tree."""
    shape: Shape
    view: View | None
    """The view of PyTorch's tensor; None for an unused array of zeros."""
    placement: Placement | None
    """The parameters in that tensor; None if unused."""

    def read(self, parameters: Parameters, dtype: Any) -> np.ndarray:
        """Returns the array, as a view of a parameter if possible, or zeros of `dtype`."""
        if self.placement is None:
            return np.zeros(self.shape, dtype)
        return self.view.write(tensor_of(parameters, self.placement))


def flax_class(checkpoint: HFCheckpoint) -> str:
    """Returns the name of a model's Flax class in transformers 4, or raises ConfigError."""
    own = checkpoint.architecture.name
    names = (own, *checkpoint.architecture.aliases)
    name = next((each for each in names if each in _CLASSES), None)
    if name is None:
        raise ConfigError(
            f"format = 'flax': transformers never had a Flax class for {own} that could read "
            "the file: use 'hf'"
        )
    return f"Flax{name}"


def optional_tensors(checkpoint: HFCheckpoint) -> list[str]:
    """Returns the optional tensors of a Flax checkpoint, by PyTorch's names."""
    flax = checkpoint.model_format.flax
    unused = flax.unused(checkpoint.hf_config, checkpoint.architecture.name)
    named = [name for path, shape in unused.items() for name in views_of(path, shape)]
    return [*named, *flax.untied]


def flax_placements(checkpoint: HFCheckpoint, placements: list[Placement]) -> list[Placement]:
    """Returns the placements of the tensors that a Flax checkpoint stores."""
    model_format = checkpoint.model_format
    lacking = model_format.flax.lacking(checkpoint.hf_config, checkpoint.architecture.name)
    unwritten = {spelling for name in lacking for spelling in spellings(name, model_format.prefix)}
    unwritten |= _computed_tables(checkpoint).keys()
    return [each for each in placements if each.places and each.tensor not in unwritten]


def check_fixed(
    checkpoint: HFCheckpoint, parameters: Parameters, placements: list[Placement]
) -> None:
    """Refuses a model whose tables differ from those computed by its Flax class."""
    fixed = _computed_tables(checkpoint)
    for placement in placements:
        if (table := fixed.get(placement.tensor)) is None:
            continue
        own = tensor_of(parameters, placement).astype(np.float32)
        tolerance = 4 * float(jnp.finfo(parameters[placement.places[0].parameter].dtype).eps)
        if own.shape != table.shape or np.abs(own - table).max() > tolerance:
            raise ConfigError(
                f"{placement.tensor}: must be the sinusoids that Flax's class computes, because it "
                "does not read this table; use format = 'hf'"
            )


def _computed_tables(checkpoint: HFCheckpoint) -> dict[str, np.ndarray]:
    """Returns the tables that Flax computes, under every spelling of their names."""
    return {
        spelling: table
        for name, table in checkpoint.model_format.flax.fixed(checkpoint.hf_config).items()
        for spelling in spellings(name, checkpoint.model_format.prefix)
    }


def flax_arrays(checkpoint: HFCheckpoint, placements: list[Placement]) -> list[FlaxArray]:
    """Returns the arrays of a model's tree, in Flax's order."""
    flax_class(checkpoint)
    flax = checkpoint.model_format.flax
    bare = "" if checkpoint.prefix else flax.bare_prefix
    placed = {placement.tensor: placement for placement in flax_placements(checkpoint, placements)}
    views = [
        (view_for(each._replace(tensor=bare + each.tensor), flax.norm), each)
        for each in placed.values()
    ]
    has_logits = any(head.name == "language_model" for head in checkpoint.config.heads)
    for head, table in flax.untied.items():
        if has_logits and head not in placed and table in placed:
            views.append((View(head.removesuffix("weight") + "kernel", (), (1, 0)), placed[table]))
    found: dict[tuple[str, ...], FlaxArray] = {}
    for view, placement in views:
        path = tuple(view.source.split("."))
        shape = tuple(placement.shape[axis] for axis in np.argsort(view.axes)) or placement.shape
        found[path] = FlaxArray(path, shape, view, placement)
    for name, shape in flax.unused(checkpoint.hf_config, checkpoint.architecture.name).items():
        path = tuple(name.split("."))
        found.setdefault(path, FlaxArray(path, shape, None, None))
    return [found[path] for path in sorted(found)]


class FlaxTree:
    """The tree `params` of a model's Flax class, in Flax's order."""

    def __init__(
        self, checkpoint: HFCheckpoint, placements: list[Placement], shapes: Mapping[str, Any]
    ):
        """Finds the arrays; `shapes` are those of our parameters, by name."""
        self.arrays = flax_arrays(checkpoint, placements)
        self._shapes = shapes
        stored = {array.placement.tensor for array in self.arrays if array.placement}
        tables = _computed_tables(checkpoint)
        self._constants = [
            (each, tables.get(each.tensor, np.zeros(each.shape, np.float32)))
            for each in placements
            if each.places and each.tensor not in stored
        ]

    def of(self, parameters: Parameters) -> dict[str, Any]:
        """Returns the tree of some parameters as nested dictionaries; works under `jax.jit`."""
        dtype = next(iter(parameters.values())).dtype
        return unflatten_dict({x.path: jnp.asarray(x.read(parameters, dtype)) for x in self.arrays})

    def read(
        self, files: Tensors, model_format: ModelFormat, ignore_mismatched_sizes: bool = False
    ) -> dict[str, Any]:
        """Reads the arrays in files, in their dtypes, as nested dictionaries.

        Missing arrays, and arrays of wrong shapes, are left out with a warning.

        Raises:
            DataError: An array has a wrong shape, unless `ignore_mismatched_sizes`.
        """
        stored = [array for array in self.arrays if array.placement is not None]
        known = KnownNames(files.tensors, model_format)
        names = known.find_all([array.placement.tensor for array in stored])
        found, missing, changed = {}, [], []
        for array in stored:
            wanted = array.placement.shape
            if (name := names.get(array.placement.tensor)) is None:
                missing.append("/".join(array.path))
                continue
            tensor = files.read(name)
            if tensor.shape == wanted:
                check_finite(f"{files.folder}: {name}", tensor, tensor)
                found[array.path] = jnp.array(array.view.write(tensor))
            else:
                changed.append(f"{name} has shape {tensor.shape}, not {wanted}")
        if changed and not ignore_mismatched_sizes:
            raise DataError(
                f"{files.folder}: {'; '.join(changed[:5])}: give ignore_mismatched_sizes=True for "
                "new values"
            )
        for what, paths in (("the shapes did not match", changed), ("missing", missing)):
            if paths:
                listed = ", ".join(paths[:10]) + " ..." * (len(paths) > 10)
                _log.warning("%s: %s, so these are new: %s", files.folder, what, listed)
        dtype = next((x.dtype for x in found.values()), np.dtype(np.float32))
        unused = (array for array in self.arrays if array.placement is None)
        found |= {array.path: jnp.zeros(array.shape, dtype) for array in unused}
        return unflatten_dict(dict(sorted(found.items())))

    @cached_property
    def shapes(self) -> dict[str, Any]:
        """The tree as shapes and dtypes."""
        return jax.eval_shape(self.of, self._shapes)

    def checked(self, params: Any) -> dict[str, Any]:
        """Returns a tree as nested dictionaries; raises ArgumentError unless it fits the model."""
        if not isinstance(params, Mapping):
            raise ArgumentError(f"params is a {type(params).__name__}: must be nested dictionaries")
        tree = unfreeze(params)
        flat = flatten_dict(tree)
        for path, wanted in flatten_dict(self.shapes).items():
            if path not in flat or jnp.shape(flat[path]) != wanted.shape:
                missing = f"is missing (the tree has {shortened(', '.join(sorted(tree)))})"
                given = f"has the shape {jnp.shape(flat[path])}" if path in flat else missing
                raise ArgumentError(
                    f"params: {'/'.join(path)} {given}: must have the shape {wanted.shape}, as in "
                    "model.params_shape_tree"
                )
        return tree

    def completed(self, params: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tree with the arrays of `params`, and those of `fresh` where missing."""
        found = flatten_dict(fresh) | flatten_dict(unfreeze(params))
        return unflatten_dict({path: found[path] for path in flatten_dict(fresh)})

    def parameters(self, tree: Mapping[str, Any]) -> Parameters:
        """Returns the parameters in a tree; differentiable with respect to its arrays.

        A parameter that occurs twice (a tied head) is read from the first array.
        """
        flat = flatten_dict(tree)
        parts: dict[str, dict[tuple[int, ...], jax.Array]] = {}
        stored = [
            (array.placement, array.view.read(jnp.asarray(flat[array.path])))
            for array in self.arrays
            if array.placement is not None
        ]
        constants = [(each, jnp.asarray(table)) for each, table in self._constants]
        for placement, tensor in (*stored, *constants):
            read = placement.layout.read(tensor, placement.slots)
            for (name, row), part in zip(placement.places, read, strict=True):
                parts.setdefault(name, {}).setdefault(row, part)
        return {name: self._stacked(name, rows) for name, rows in parts.items()}

    def _stacked(self, name: str, rows: Mapping[tuple[int, ...], jax.Array]) -> jax.Array:
        if () in rows:
            return rows[()]
        shape = self._shapes[name].shape
        depth = len(next(iter(rows)))
        ordered = [rows[row] for row in np.ndindex(shape[:depth])]
        return jnp.stack(ordered).reshape(shape)


def cast_tree(params: Mapping[str, Any], dtype: Any, mask: Any = None) -> Mapping[str, Any]:
    """Casts a tree to a floating-point dtype where `mask`, a tree of bool, is true.

    Integers are unchanged. The tree and the mask may be frozen.
    """
    chosen = {} if mask is None else flatten_dict(unfreeze(mask))
    flat = flatten_dict(unfreeze(params))
    for path, x in flat.items():
        if chosen.get(path, mask is None) and jnp.issubdtype(x.dtype, jnp.floating):
            flat[path] = x.astype(dtype)
    tree = unflatten_dict(flat)
    return FrozenDict(tree) if isinstance(params, FrozenDict) else tree


def byte_count(size: int | str) -> int:
    """Parses a size in bytes: a number, or a string such as "200MB" or "1GiB"."""
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise ConfigError(f'max_shard_size = {size!r}: must be bytes, or a text such as "200MB"')
    power = "KMGT".find(found[2].upper()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def write_flax_folder(
    folder: Path,
    params: Mapping[str, Any],
    values: Mapping[str, Any],
    generation: Mapping[str, Any] | None,
    max_bytes: int,
) -> None:
    """Writes a parameter tree as a checkpoint, replacing an older one in the folder.

    `values` are those of config.json; values that JSON does not support are written as strings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob(SINGLE.replace(".", "-*-of-*.")), folder / SINGLE, folder / INDEX):
        old.unlink(missing_ok=True)
    leaves = [
        (Leaf(path, Tensor(tuple(x.shape), np.dtype(x.dtype))), partial(np.asarray, x))
        for path, x in sorted(flatten_dict(unfreeze(params)).items())
    ]
    write_flax(folder, leaves, max_bytes)
    write_hf_config(folder, json.loads(json.dumps(values, default=str)))
    if generation is not None:
        text = json.dumps(generation, indent=2, sort_keys=True)
        (folder / GENERATION).write_text(text + "\n", encoding="utf-8")


def write_flax(
    folder: Path, leaves: Sequence[tuple[Leaf, Callable[[], np.ndarray]]], max_bytes: int
) -> None:
    """Writes flax_model.msgpack, or several files and their index, as transformers 4 did.

    Each array is given with a function that reads it. Only a file with a single array may be larger
    than `max_bytes`.
    """
    named = {"/".join(leaf.path): (leaf, read) for leaf, read in leaves}
    sizes = {name: num_bytes(leaf.tensor) for name, (leaf, _) in named.items()}
    for path, names in shards_for(folder, sizes, max_bytes, SINGLE, INDEX).items():
        shard = [named[name] for name in names]
        write_tree(path, [leaf for leaf, _ in shard], (read() for _, read in shard))
