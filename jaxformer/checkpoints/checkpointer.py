"""Saves checkpoints in the background; a checkpoint becomes visible only once it is complete.

A checkpoint is a folder ``<step>/`` with three items: ``state`` (every array of the training state
under a flat name such as ``params/embed/table``), ``config`` (the whole configuration as JSON) and
``meta`` (step, versions, validation metrics). Step ``n`` means that ``n`` updates are done, so the
next batch is number ``n``: the step is also the data position. `restore` reads checkpoints back.

Retention does not use orbax's `BestN`, which ranks steps by metrics in a separate item: it would
delete the best checkpoint of a run whose steps were saved without that item.
"""

import contextlib
import errno
import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

import jaxformer
from jaxformer.checkpoints import files, manifest
from jaxformer.errors import RunError, StorageError, first_line
from jaxformer.io.paths import AnyPath, any_path, is_remote

FORMAT = 2
BestFn = Callable[[Mapping[str, float]], float | None]


class CheckpointError(RunError):
    """A checkpoint could not be saved or restored; the message names the intact ones."""


class CheckpointMismatch(CheckpointError):
    """An intact checkpoint does not contain the arrays of the state to restore."""


def named_arrays(tree: Any) -> dict[str, Any]:
    """Flattens a pytree to ``{"params/embed/table": leaf, ...}``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def content_hash(arrays: Iterable[tuple[str, Any]]) -> str:
    """Returns a hash of the exact bits of the parameters and the optimizer state."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda pair: pair[0]):
        if name.split("/")[0] in ("params", "opt_state"):
            value = np.asarray(array)
            digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def loss_of(measured: Mapping[str, float]) -> float | None:
    """Returns the validation loss, the default metric for choosing the best checkpoint."""
    return measured.get("loss")


class Checkpointer:
    """Saves the training state in the background and keeps the newest and the best.

    Args:
        folder: Where checkpoints are written. All processes must see the same folder.
        config: The configuration as JSON, saved in every checkpoint.
        keep: How many of the newest checkpoints to keep in addition to the best one.
        best_fn: Maps the metrics of a step to a cost (lower is better); None: not measured.
        before_save: Called before each checkpoint is begun.
        check_owned: Raises RunError if the folder now belongs to another run. Called before
            anything is committed or deleted there.
        kept: Digests of the files that the run's model depends on, by file name.
    """

    def __init__(
        self,
        folder: AnyPath,
        config: dict[str, Any],
        keep: int,
        best_fn: BestFn = loss_of,
        before_save: Callable[[], None] = lambda: None,
        check_owned: Callable[[], None] = lambda: None,
        kept: Mapping[str, str] = MappingProxyType({}),
    ):
        self.folder = any_path(folder, "folder").absolute()
        self._config = config
        self._keep = keep
        self._best_fn = best_fn
        self._before_save = before_save
        self._check_owned = check_owned
        self._kept_digests = dict(kept)
        self._saving: int | None = None
        self._unsealed: int | None = None
        self._expired: list[int] = []
        self._deletions: list[threading.Thread] = []
        if jax.process_index() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(self.folder)
        saved = {step: self.folder / str(step) for step in self.steps()}
        self._costs = {
            step: best_fn(manifest.saved_validation(folder)) for step, folder in saved.items()
        }
        atomicity = None
        if is_remote(self.folder):
            from jaxformer.checkpoints.remote_arrays import COMMIT_BY_FILE, enable_object_stores

            enable_object_stores()
            atomicity = COMMIT_BY_FILE
        handlers = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(atomicity_options=atomicity),
            state=manifest.DigestingHandler(),
            config=ocp.JsonCheckpointHandler(),
            meta=ocp.JsonCheckpointHandler(),
        )
        self._writer = ocp.AsyncCheckpointer(
            handlers,
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._before_commit),
            atomicity_options=atomicity,
        )

    def steps(self) -> list[int]:
        """Returns the steps on disk, ascending."""
        return files.saved_steps(self.folder)

    def save(
        self,
        step: int,
        state: Any,
        validation: Mapping[str, float] | None = None,
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts saving; returns once the arrays are copied, so that the state may be donated.

        `step` is the number of updates done so far; a step that is already saved is skipped.
        Logging resumes from `log`, which is `RunLogger.state`.

        Raises:
            CheckpointError: This save, or the previous one in the background, failed.
        """
        self.wait()
        if step in self._costs:
            return
        self._check_owned()
        self._before_save()
        measured = {k: float(v) for k, v in (validation or {}).items() if math.isfinite(v)}
        self._saving = step
        self._costs[step] = self._best_fn(measured)
        arrays, key_types = _to_savable(state)
        meta = {
            "format": FORMAT,
            "step": step,
            "validation": measured,
            "log": dict(log or {}),
            "key_types": key_types,
            "kept": self._kept_digests,
            "jaxformer": jaxformer.__version__,
            "jax": jax.__version__,
        }
        items = ocp.args.Composite(
            state=manifest.DigestedSave(arrays),
            config=ocp.args.JsonSave(self._config),
            meta=ocp.args.JsonSave(meta),
        )
        with self._explaining_errors():
            self._writer.save(self.folder / str(step), args=items)
        self._unsealed = step

    def check(self) -> None:
        """Raises ``CheckpointError`` if a save in the background has failed."""
        with self._explaining_errors():
            self._writer.check_for_errors()

    def wait(self) -> None:
        """Waits until everything is on disk; raises the same errors as ``check``."""
        unsealed, self._unsealed = self._unsealed, None
        with self._explaining_errors():
            self._writer.wait_until_finished()
            if unsealed is not None and jax.process_index() == 0:
                self._check_owned()
                manifest.seal(self.folder / str(unsealed))
        kept = files.steps_to_keep(self._costs, self._keep)
        for step in [step for step in self._costs if step not in kept]:
            del self._costs[step]
            self._expired.append(step)
        if self._expired and jax.process_index() == 0:
            self._delete_expired()

    def close(self) -> None:
        """Waits for pending saves and stops the background threads."""
        try:
            self.wait()
        finally:
            for deletion in self._deletions:
                deletion.join()
            with contextlib.suppress(Exception):
                self._writer.close()

    def _delete_expired(self) -> None:
        """Deletes the steps that are not kept; steps being read are deleted at a later save."""
        self._check_owned()
        there = set(self.steps()).intersection(self._expired)
        begun = {step: files.delete_step(self.folder / str(step)) for step in there}
        self._expired = [step for step, thread in begun.items() if thread is None]
        self._deletions += filter(None, begun.values())

    def _before_commit(self) -> None:
        """Runs in the background on process 0 before the rename that completes a step."""
        self._check_owned()
        manifest.write_manifest(self.folder, self._saving)

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._costs.pop(self._saving, None)
            self._check_owned()  # a lost folder makes saving fail in many ways
            full = _is_full_disk(error)
            cause = f"the disk is full ({first_line(error)})" if full else first_line(error)
            raise CheckpointError(
                f"Could not save the checkpoint of step {self._saving} in {self.folder}: "
                f"{cause}. {self._recovery_advice(full)}"
            ) from error

    def _recovery_advice(self, full: bool) -> str:
        """Removes half-written files; returns a sentence about where the run can resume."""
        try:
            if jax.process_index() == 0:
                files.remove_leftovers(self.folder)
            newest_first = [(step, self.folder / str(step)) for step in reversed(self.steps())]
            whole = (step for step, folder in newest_first if manifest.damage(folder) is None)
            newest = next(whole, None)
        except StorageError:
            return (
                "The earlier checkpoints were not touched: once the store is reachable again, "
                "rerun the same command to continue from the newest."
            )
        if newest is None:
            return "There is no earlier checkpoint."
        advice = "free some space and start" if full else "start"
        return (
            f"The checkpoint of step {newest} is intact: {advice} the same command again to "
            "continue from there."
        )


def is_key(leaf: Any) -> bool:
    """Whether an array is a typed random key."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_savable(state: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arrays by name, keys as raw data, and the implementation of each random key."""
    arrays = named_arrays(state)
    kinds = {name: str(jax.random.key_impl(key)) for name, key in arrays.items() if is_key(key)}
    for name in kinds:
        arrays[name] = jax.random.key_data(arrays[name])
    return arrays, kinds


def _is_full_disk(error: BaseException) -> bool:
    # Tensorstore, which writes the arrays, has no dedicated exception for this.
    return "RESOURCE_EXHAUSTED" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
