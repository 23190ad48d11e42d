"""Checkpoints: saved in the background, complete or invisible, restored on any mesh.

A checkpoint is a folder ``<step>/`` with three items: ``state`` (every array of the training state
under a flat name such as ``params/embed/table``), ``config`` (the whole configuration as JSON) and
``meta`` (step, versions, validation loss). Step ``n`` means that ``n`` updates are done, hence the
next batch is number ``n``: the data position is the step.
"""

import contextlib
import errno
import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

import jaxformer
from jaxformer.training import checkpoint_files as files

FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, or none can be restored; says which ones are good."""


class CheckpointMismatch(CheckpointError):
    """A whole checkpoint holds other arrays than the state it is to fill."""


def named_arrays(tree: Any) -> dict[str, Any]:
    """Flattens a pytree to ``{"params/embed/table": leaf, ...}``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def content_hash(arrays: Iterable[tuple[str, Any]]) -> str:
    """Hashes the parameters and the optimizer state, bit for bit.

    Args:
        arrays: Pairs of flat name and array, as ``named_arrays(state).items()`` or ``read_arrays``
            give them. Only names under ``params`` and ``opt_state`` count.

    Returns:
        The SHA-256 over name, dtype, shape and bytes of each array, in the order of the names.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda pair: pair[0]):
        if name.split("/")[0] in ("params", "opt_state"):
            value = np.asarray(array)
            digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


class Checkpointer:
    """Saves the training state in the background and keeps the newest and the best.

    Args:
        folder: Where the checkpoints go; created if absent. All processes see the same folder.
        config: JSON form of the configuration, saved within every checkpoint.
        keep: How many of the newest checkpoints to keep, besides the best one.
    """

    def __init__(self, folder: Path, config: dict[str, Any], keep: int):
        self.folder = Path(folder).absolute()
        self._config = config
        self._keep = keep
        self._saving: int | None = None
        self._deletions: list[threading.Thread] = []
        if jax.process_index() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(self.folder)
        self._losses = {step: _validation_loss(self.folder / str(step)) for step in self.steps()}
        self._writer = ocp.AsyncCheckpointer(
            _item_handlers(),
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._before_commit),
        )

    def steps(self) -> list[int]:
        """Returns the steps on disk, ascending."""
        return files.saved_steps(self.folder)

    def save(self, step: int, state: Any, validation_loss: float | None = None) -> None:
        """Starts saving; returns when the arrays are copied, so that the state may be donated.

        Args:
            step: Updates done so far. Nothing happens where this step is saved already.
            state: Pytree of arrays (and typed random keys).
            validation_loss: Measured at this very step, if it was.

        Raises:
            CheckpointError: This save, or the previous one in the background, failed.
        """
        self.wait()
        if step in self._losses:
            return
        self._saving, self._losses[step] = step, validation_loss
        arrays, key_types = _to_savable(state)
        meta = {
            "format": FORMAT,
            "step": step,
            "validation_loss": validation_loss,
            "key_types": key_types,
            "jaxformer": jaxformer.__version__,
            "jax": jax.__version__,
        }
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(arrays),
            config=ocp.args.JsonSave(self._config),
            meta=ocp.args.JsonSave(meta),
        )
        with self._reporting():
            self._writer.save(self.folder / str(step), args=items)

    def check(self) -> None:
        """Raises ``CheckpointError`` if a save in the background has failed since."""
        with self._reporting():
            self._writer.check_for_errors()

    def wait(self) -> None:
        """Waits until everything is on disk; raises as ``check`` does."""
        with self._reporting():
            self._writer.wait_until_finished()
        kept = files.steps_to_keep(self._losses, self._keep)
        for step in [step for step in self._losses if step not in kept]:
            del self._losses[step]
            if jax.process_index() == 0:
                self._deletions.append(files.delete_step(self.folder / str(step)))

    def close(self) -> None:
        """Waits, and ends the background threads."""
        try:
            self.wait()
        finally:
            for deletion in self._deletions:
                deletion.join()
            with contextlib.suppress(Exception):
                self._writer.close()

    def _before_commit(self) -> None:
        """Runs in the background on process 0, before the rename that completes a step."""
        files.write_manifest(self.folder, self._saving)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._losses.pop(self._saving, None)
            if jax.process_index() == 0:
                files.remove_leftovers(self.folder)
            good = [step for step in self.steps() if files.damage(self.folder / str(step)) is None]
            kept = (
                f"The checkpoint of step {good[-1]} is whole: free some space and start the same "
                "command again to continue from there."
                if good
                else "There is no earlier checkpoint."
            )
            raise CheckpointError(
                f"Could not save the checkpoint of step {self._saving} in {self.folder}: "
                f"{_cause(error)}. {kept}"
            ) from error


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
            _skip(folder / str(step), _first_line(error), warn)
    if tried or _damaged_ones(folder):
        raise CheckpointError(
            f"Every checkpoint in {folder} is damaged (they are kept, renamed). Start again with "
            "--fresh, which keeps this folder under another name."
        )
    return None


def restore(step_folder: Path, target: Any) -> Any:
    """Restores one checkpoint into the structure, dtypes and shardings of ``target``."""
    meta = read_json(step_folder, "meta")
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
    with ocp.Checkpointer(_item_handlers()) as reader:
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


def read_json(step_folder: Path, item: str) -> dict[str, Any]:
    """Reads the ``config`` or the ``meta`` item of a checkpoint."""
    return json.loads((step_folder / item / "metadata").read_text())


def _item_handlers() -> ocp.CompositeCheckpointHandler:
    return ocp.CompositeCheckpointHandler(
        state=ocp.PyTreeCheckpointHandler(),
        config=ocp.JsonCheckpointHandler(),
        meta=ocp.JsonCheckpointHandler(),
    )


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_savable(state: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Flattens the state; random keys become their words, and their kind is noted by name."""
    arrays = named_arrays(state)
    kinds = {name: str(jax.random.key_impl(key)) for name, key in arrays.items() if _is_key(key)}
    for name in kinds:
        arrays[name] = jax.random.key_data(arrays[name])
    return arrays, kinds


def _raw_key(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not _is_key(leaf):
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


def _validation_loss(step_folder: Path) -> float | None:
    try:
        return read_json(step_folder, "meta")["validation_loss"]
    except (OSError, ValueError, KeyError):
        return None


def _cause(error: BaseException) -> str:
    # The library that writes the arrays has no exception of its own for this.
    full = "RESOURCE_EXHAUSTED" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
    return f"the disk is full ({_first_line(error)})" if full else _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
