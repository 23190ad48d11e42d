"""Checkpoints read back: the newest whole one, on any mesh; or array by array, on none."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxformer.training import checkpoint_files as files
from jaxformer.training.checkpoint import (
    CheckpointError,
    CheckpointMismatch,
    first_line,
    is_key,
    item_handlers,
    named_arrays,
)


def restore_newest(
    folder: Path, target: Any, warn: Callable[[str], None] = warnings.warn
) -> tuple[int, Any] | None:
    """Restores the newest checkpoint that is whole; sets damaged ones aside with a warning.

    Args:
        folder: The folder of a ``Checkpointer``.
        target: Pytree of ``jax.ShapeDtypeStruct`` with the shardings to restore to, on whatever
            mesh.
        warn: Receives one message per damaged checkpoint.

    Returns:
        The step and the state, or None where the folder holds no checkpoint.

    Raises:
        CheckpointMismatch: The checkpoint is whole and does not fit ``target``.
        CheckpointError: There are checkpoints and all of them are damaged.
    """
    folder = Path(folder).absolute()
    tried = False
    while (step := _newest_step(folder, warn)) is not None:
        tried = True
        try:
            return step, restore(folder / str(step), target)
        except CheckpointMismatch:
            raise
        except Exception as error:
            # Several processes could disagree about what is readable; one process cannot.
            if jax.process_count() > 1:
                raise
            _skip(folder / str(step), first_line(error), warn)
    if tried or _damaged_ones(folder):
        raise CheckpointError(
            f"Every checkpoint in {folder} is damaged (they are kept, renamed). Start again with "
            "--fresh, which keeps this folder under another name."
        )
    return None


def restore(step_folder: Path, target: Any) -> Any:
    """Restores one checkpoint into the structure, dtypes and shardings of ``target``."""
    meta = files.read_item(step_folder, "meta")
    names = named_arrays(target)
    wanted = {name: _raw_key(leaf) for name, leaf in names.items()}
    saved = _array_metadata(step_folder)
    _check_same_arrays(step_folder, wanted, saved)
    arguments = jax.tree.map(
        lambda leaf: ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        ),
        wanted,
    )
    with ocp.Checkpointer(item_handlers()) as reader:
        arrays = reader.restore(
            step_folder,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments)
            ),
        ).state
    for name, kind in meta["key_types"].items():
        arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
    return jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in names])


def read_arrays(step_folder: Path, prefixes: tuple[str, ...] = ("",)) -> Iterator[tuple[str, Any]]:
    """Reads the arrays of a checkpoint one at a time as numpy, in the order of their names."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        for name in sorted(_array_metadata(step_folder)):
            if name.startswith(prefixes):
                arguments = ocp.args.PyTreeRestore(
                    item={name: 0},
                    restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
                    partial_restore=True,
                )
                yield name, reader.restore(step_folder / "state", args=arguments)[name]


def array_shapes(step_folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of a checkpoint by its name, without reading any."""
    return {name: tuple(array.shape) for name, array in _array_metadata(step_folder).items()}


def _raw_key(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not is_key(leaf):
        return leaf
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=leaf.sharding)


def _array_metadata(step_folder: Path) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return dict(reader.metadata(step_folder / "state").item_metadata.tree)


def _check_same_arrays(step_folder: Path, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
    problems = [f"{name} is not in it" for name in wanted if name not in saved]
    problems += [f"{name} is only in it" for name in saved if name not in wanted]
    problems += [
        f"{name} has shape {tuple(saved[name].shape)} there and {tuple(leaf.shape)} here"
        for name, leaf in wanted.items()
        if name in saved and tuple(saved[name].shape) != tuple(leaf.shape)
    ]
    if problems:
        listed = "; ".join(problems[:8]) + (" ..." if len(problems) > 8 else "")
        raise CheckpointMismatch(
            f"The checkpoint {step_folder} does not fit this model and optimizer: {listed}."
        )


def _newest_step(folder: Path, warn: Callable[[str], None]) -> int | None:
    """The newest step that its manifest calls whole; decided by process 0 for everyone."""
    step = -1
    if jax.process_index() == 0:
        for candidate in reversed(files.saved_steps(folder)):
            problem = files.damage(folder / str(candidate))
            if problem is None:
                step = candidate
                break
            _skip(folder / str(candidate), problem, warn)
    if jax.process_count() > 1:
        step = int(multihost_utils.broadcast_one_to_all(np.asarray(step)))
    return None if step < 0 else step


def _skip(step_folder: Path, problem: str, warn: Callable[[str], None]) -> None:
    renamed = files.set_aside(step_folder)
    warn(
        f"Skipped the damaged checkpoint {step_folder} ({problem}); it is now {renamed.name}. "
        "Trying the one before it."
    )


def _damaged_ones(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.damaged*")) if folder.is_dir() else []
