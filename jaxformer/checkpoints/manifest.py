"""The manifest of a checkpoint: the size and digest of every file at the time of saving.

Each process digests the array files that it wrote, in the background thread that wrote them;
process 0 adds the few shared files right before the rename that completes the step. Readers compare
the files of a checkpoint with its manifest first, so any changed byte is found before it is used.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxformer.checkpoints.files import COMMIT_FILE, unfinished_step, validation_of, write_json
from jaxformer.errors import StorageError, system_message
from jaxformer.io.files import sha256_of
from jaxformer.io.paths import AnyPath, any_path

MANIFEST = "files.json"
_PART = "digests.process_{}.json"
# Files that orbax writes into the step's folder after the manifest; `seal` adds them.
_LATE = ("_CHECKPOINT_METADATA", COMMIT_FILE)
_THREADS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """The size and digest of one file when it was written."""

    bytes: int
    """Its size."""
    sha256: str | None
    """SHA-256 digest; None in checkpoints saved before digests were recorded."""

    def problem(self, name: str, path: AnyPath) -> str | None:
        """Describes what is wrong with the file, if anything; OSError if it cannot be read."""
        try:
            if (size := path.stat().st_size) != self.bytes:
                return f"{name} has {size} bytes instead of {self.bytes}"
            if self.sha256 is not None and sha256_of(path) != self.sha256:
                return f"{name} has changed since it was saved"
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        return None


class DigestingHandler(ocp.PyTreeCheckpointHandler):
    """Writes arrays with orbax; each process then digests the files that it wrote."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Starts saving; the last of the returned futures writes this process's digests."""
        futures = await super().async_save(directory, *args, **kwargs)
        return [*futures, _ProcessDigests(any_path(directory, "checkpoint"))]


# Orbax requires arguments to be registered for saving and restoring, although restoring uses
# another handler.
@ocp.args.register_with_handler(DigestingHandler, for_save=True, for_restore=True)
@dataclass
class DigestedSave(ocp.args.PyTreeSave):
    """Arguments of `DigestingHandler`: a pytree of arrays."""


class _ProcessDigests:
    """An orbax future; orbax waits for results in order, so the arrays are written when it runs."""

    def __init__(self, directory: AnyPath):
        self._directory = directory

    def result(self, timeout: float | None = None) -> None:
        process = jax.process_index()
        own = self._directory / f"ocdbt.process_{process}"
        records = _records(self._directory, (path for path in own.rglob("*") if path.is_file()))
        write_json(self._directory / _PART.format(process), _as_json(records))

    def cancel(self) -> None:
        """Does nothing, since no work starts before `result` is called."""


def write_manifest(folder: AnyPath, step: int) -> None:
    """Records every file of a checkpoint that is about to be renamed into place."""
    unfinished = unfinished_step(folder, step)
    records: dict[str, FileRecord] = {}
    for part in sorted(unfinished.glob(f"*/{_PART.format('*')}")):
        home = part.parent.relative_to(unfinished)
        found = _parsed(part.read_text())
        records |= {str(home / name): record for name, record in found.items()}
        part.unlink()
    rest = (path for path in _files(unfinished) if str(path.relative_to(unfinished)) not in records)
    records |= _records(unfinished, rest)
    write_json(unfinished / MANIFEST, _as_json(dict(sorted(records.items()))))


def seal(step_folder: AnyPath) -> None:
    """Adds the files that orbax writes after the manifest."""
    path = step_folder / MANIFEST
    late = (step_folder / name for name in _LATE)
    records = _parsed(path.read_text()) | _records(
        step_folder, (file for file in late if file.is_file())
    )
    write_json(path, _as_json(dict(sorted(records.items()))))


def damage(step_folder: AnyPath, part: int = 0, parts: int = 1) -> str | None:
    """Compares a checkpoint with its manifest byte by byte; returns the first difference."""
    with _readable(step_folder), ThreadPoolExecutor(_THREADS) as threads:
        try:
            records = _parsed((step_folder / MANIFEST).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return f"{MANIFEST} is missing"
        except (ValueError, RecursionError):
            return f"{MANIFEST} is not readable"
        if any(record.sha256 is None for record in records.values()):
            _log.warning(
                "%s was saved before digests were recorded: only the sizes of its files are "
                "checked.",
                step_folder,
            )
        share = sorted(records)[part::parts]
        found = threads.map(lambda name: records[name].problem(name, step_folder / name), share)
        return next((problem for problem in found if problem), None)


def read_item(step_folder: AnyPath, item: str) -> dict[str, Any]:
    """Reads the ``config`` or ``meta`` item of a checkpoint after verifying it."""
    name = f"{item}/metadata"
    with _readable(step_folder):
        record = _parsed((step_folder / MANIFEST).read_text()).get(name)
        problem = "is not listed" if record is None else record.problem(name, step_folder / name)
        if problem:
            raise ValueError(f"{step_folder}: {problem}")
        return json.loads((step_folder / name).read_text())


def saved_validation(step_folder: AnyPath) -> dict[str, float]:
    """Returns the validation metrics measured at a step; empty if they cannot be read."""
    try:
        return validation_of(read_item(step_folder, "meta"))
    except (FileNotFoundError, ValueError, KeyError):
        return {}


@contextlib.contextmanager
def _readable(step_folder: AnyPath) -> Iterator[None]:
    """Distinguishes an unreadable checkpoint from a missing one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(
            f"the checkpoint {step_folder} cannot be read ({system_message(error)}), so it cannot "
            "be verified; nothing was changed; make it readable, or move it out of its folder to "
            "continue from the previous one"
        ) from error


def _files(folder: AnyPath) -> Iterable[AnyPath]:
    late = {folder / name for name in (MANIFEST, *_LATE)}
    return (item for item in folder.rglob("*") if item.is_file() and item not in late)


def _records(home: AnyPath, paths: Iterable[AnyPath]) -> dict[str, FileRecord]:
    """Returns records of the current files by their paths relative to `home`."""
    paths = list(paths)
    with ThreadPoolExecutor(_THREADS) as threads:
        digests = threads.map(sha256_of, paths)
        return {
            str(path.relative_to(home)): FileRecord(path.stat().st_size, digest)
            for path, digest in zip(paths, digests, strict=True)
        }


def _as_json(records: Mapping[str, FileRecord]) -> dict[str, Any]:
    return {name: asdict(record) for name, record in records.items()}


def _parsed(text: str) -> dict[str, FileRecord]:
    """Parses the records in a manifest."""
    data = json.loads(text)
    if not isinstance(data, dict) or not data:
        raise ValueError("a manifest must be a JSON object with an entry for each file")
    return {name: _record(value) for name, value in data.items()}


def _record(value: Any) -> FileRecord:
    match value:
        case bool():
            pass
        case int():  # older manifests contain only sizes
            return FileRecord(value, None)
        case {"bytes": int(size), "sha256": str(digest)}:
            return FileRecord(size, digest)
    raise ValueError(f"not the record of a file: {value!r}")
