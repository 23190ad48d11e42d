"""Restores checkpoints: the newest intact one onto any mesh, or array by array into host memory."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jaxformer.checkpoints import files
from jaxformer.checkpoints.checkpointer import (
    CheckpointError,
    CheckpointMismatch,
    is_key,
    named_arrays,
)
from jaxformer.checkpoints.manifest import damage, read_item
from jaxformer.checkpoints.run_dir import (
    CHECKPOINTS,
    CONFIG_FILE,
    RunConfig,
    kept_digests,
    other_fields,
)
from jaxformer.config.experiment import Config
from jaxformer.distributed.processes import of_first
from jaxformer.errors import ConfigError, RunError, first_line
from jaxformer.io.paths import AnyPath, any_path, is_remote


def restore_newest(
    folder: AnyPath,
    target: Any,
    warn: Callable[[str], None] = warnings.warn,
    check: Callable[[int], object] = lambda step: None,
) -> tuple[int, Any] | None:
    """Restores the newest intact checkpoint; sets damaged ones aside with a warning."""
    folder = any_path(folder, "folder").absolute()

    def skip(step_folder: AnyPath, problem: str) -> None:
        renamed = files.set_aside(step_folder)
        warn(
            f"Skipped the damaged checkpoint {step_folder} ({problem}); it is now {renamed.name}. "
            "Trying the previous one."
        )

    if (step := newest_whole(folder, skip)) is not None:
        check(step)
        try:
            return step, restore(folder / str(step), target)
        except (RunError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"The checkpoint {folder / str(step)} could not be restored "
                f"({first_line(error)}). Its files match their recorded digests, so nothing was "
                "changed; move it out of its folder to continue from the previous one."
            ) from error
    if files.damaged_checkpoints(folder):
        raise CheckpointError(
            f"Every checkpoint in {folder} is damaged (they are kept, renamed). Start over with "
            "--fresh, which keeps this folder under another name."
        )
    return None


def newest_whole(folder: AnyPath, on_damage: Callable[[AnyPath, str], None]) -> int | None:
    """Finds the newest checkpoint whose files all match its manifest.

    All processes of a job must call this together: each verifies a share of the files, and all get
    the same result.
    """
    steps = files.saved_steps(folder) if jax.process_index() == 0 else []
    while (step := int(of_first(np.int32(steps.pop() if steps else -1)))) >= 0:
        if (problem := damage_of(folder / str(step))) is None:
            return step
        # A checkpoint that the run deleted while it was read here is not damaged.
        if jax.process_index() == 0 and step in files.saved_steps(folder):
            on_damage(folder / str(step), problem)
    return None


def saved_config(run: RunConfig, step: int) -> Config:
    """Returns the configuration that a checkpoint was saved with; it must belong to the run."""
    home = run.folder / CHECKPOINTS / str(step)
    meta = read_item(home, "meta")
    if meta["step"] != step:
        raise ConfigError(
            f"{home} is the checkpoint of step {meta['step']}, which was copied or renamed: move "
            "it out of the run, or restore its name"
        )
    saved = run.build(read_item(home, "config"))
    if saved != run.config and (changes := other_fields(saved, run.config, step)):
        listed = "; ".join(
            f"{name} was {old!r}, is {new!r}" for name, (old, new) in changes.items()
        )
        raise ConfigError(
            f"{run.folder / CONFIG_FILE} differs from the configuration that the checkpoint of "
            f"step {step} was saved with: {listed}. Restore the original file, or move {home} out "
            "of the run if it belongs to another run"
        )
    there = meta.get("kept", {})  # older versions did not record their digests
    now = kept_digests(run.folder) if there else {}
    if others := [name for name, digest in there.items() if now.get(name) != digest]:
        raise ConfigError(
            f"{run.folder / others[0]} has changed since the checkpoint of step {step} was saved, "
            "so token ids or labels would change their meaning. Restore the original file, or "
            f"move {home} out of the run if it belongs to another run"
        )
    return saved


def damage_of(step_folder: AnyPath) -> str | None:
    """Returns the damage of a checkpoint, which all processes look for together, or None."""
    problem = damage(step_folder, jax.process_index(), jax.process_count())
    if jax.process_count() == 1:
        return problem
    words = np.frombuffer((problem or "").encode()[:200].ljust(200), np.uint8)
    rows = multihost_utils.process_allgather(words)
    told = (row.tobytes().decode(errors="ignore").strip() for row in rows)
    return next((text for text in told if text), None)


def restore(step_folder: AnyPath, target: Any) -> Any:
    """Restores one checkpoint into the structure, dtypes and shardings of ``target``."""
    meta = read_item(step_folder, "meta")
    names = named_arrays(target)
    wanted = {name: _raw_key(leaf) for name, leaf in names.items()}
    saved = _array_metadata(step_folder)
    _check_same_arrays(step_folder, wanted, saved)
    arrays = read_sharded(step_folder, wanted)
    for name, kind in meta["key_types"].items():
        arrays[name] = jax.random.wrap_key_data(arrays[name], impl=kind)
    return jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in names])


def saved_log(folder: AnyPath, step: int) -> dict[str, Any]:
    """Returns `RunLogger.state` at a step; empty at step 0 and if it was not saved."""
    return read_item(folder / str(step), "meta").get("log", {}) if step else {}


def parameter_names(arrays: Iterable[str], averaged: bool) -> dict[str, str]:
    """Maps the name of each parameter of a checkpoint to the name of its array."""
    prefixes = ("params/", "ema/") if averaged else ("params/",)
    return {
        name.removeprefix(prefix): name
        for prefix in prefixes
        for name in arrays
        if name.startswith(prefix)
    }


def read_arrays(
    step_folder: AnyPath, prefixes: tuple[str, ...] = ("",)
) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a checkpoint one at a time as NumPy arrays, sorted by name."""
    with _reader(step_folder) as reader:
        for name in sorted(_array_metadata(step_folder)):
            if name.startswith(prefixes):
                arguments = ocp.args.PyTreeRestore(
                    item={name: 0},
                    restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
                    partial_restore=True,
                )
                yield name, reader.restore(step_folder / "state", args=arguments)[name]


def array_shapes(step_folder: AnyPath) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of a checkpoint by name, without reading the arrays."""
    return {name: tuple(array.shape) for name, array in _array_metadata(step_folder).items()}


def read_sharded(
    step_folder: AnyPath, wanted: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Reads some arrays of a checkpoint, each onto its sharding."""
    arguments = {
        name: ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )
        for name, leaf in wanted.items()
    }
    with _reader(step_folder) as reader:
        return reader.restore(
            (step_folder / "state").absolute(),
            args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True),
        )


def _raw_key(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not is_key(leaf):
        return leaf
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=leaf.sharding)


def _array_metadata(step_folder: AnyPath) -> dict[str, Any]:
    with _reader(step_folder) as reader:
        return dict(reader.metadata((step_folder / "state").absolute()).tree)


def _reader(step_folder: AnyPath) -> contextlib.closing[ocp.PyTreeCheckpointHandler]:
    if is_remote(step_folder):
        from jaxformer.checkpoints.remote_arrays import enable_object_stores

        enable_object_stores()
    # The bare handler: a Checkpointer would look for metadata that restoring does not need.
    return contextlib.closing(ocp.PyTreeCheckpointHandler())


def _check_same_arrays(step_folder: AnyPath, wanted: dict[str, Any], saved: dict[str, Any]) -> None:
    problems = [f"{name} is missing in the checkpoint" for name in wanted if name not in saved]
    # Older versions also averaged frozen parameters.
    averages = any(name.startswith("ema/") for name in wanted)
    constant = {f"ema/{name}" for name in parameter_names(wanted, False) if averages}
    unknown = [name for name in saved if name not in wanted and name not in constant]
    problems += [f"{name} is only in the checkpoint" for name in unknown]
    problems += [
        f"{name} has shape {tuple(saved[name].shape)} in the checkpoint and {tuple(leaf.shape)} "
        "here"
        for name, leaf in wanted.items()
        if name in saved and tuple(saved[name].shape) != tuple(leaf.shape)
    ]
    if problems:
        listed = "; ".join(problems[:8]) + (" ..." if len(problems) > 8 else "")
        raise CheckpointMismatch(
            f"The checkpoint {step_folder} does not fit this model and optimizer: {listed}."
        )
