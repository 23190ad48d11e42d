"""The manifest of a checkpoint: the size and the digest of every file, written as it was saved.

Each process digests the array files that it has written, in the background thread that wrote them;
process 0 adds the few files that belong to all, right before the rename that completes the step.
Whoever reads a checkpoint compares its files with the manifest first, so a byte that has changed
since is found before it is used.
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

from jaxformer.checkpoints.files import COMMIT_FILE, unfinished_step, write_json
from jaxformer.errors import StorageError, system_message
from jaxformer.io.files import sha256_of
from jaxformer.io.paths import AnyPath, any_path

MANIFEST = "files.json"
_PART = "digests.process_{}.json"
# What orbax writes into the step's folder after the manifest; `seal` adds it.
_LATE = ("_CHECKPOINT_METADATA", COMMIT_FILE)
_THREADS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileRecord:
    """One file as it was written."""

    bytes: int
    """Its size."""
    sha256: str | None
    """Its digest; None in checkpoints of before digests were recorded."""

    def problem(self, name: str, path: AnyPath) -> str | None:
        """Says what is wrong with the file now, or None; raises OSError if it cannot be read."""
        try:
            if (size := path.stat().st_size) != self.bytes:
                return f"{name} has {size} bytes instead of {self.bytes}"
            if self.sha256 is not None and sha256_of(path) != self.sha256:
                return f"{name} is not what was saved"
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        return None


class DigestingHandler(ocp.PyTreeCheckpointHandler):
    """Writes arrays as orbax does; then each process digests the files that it has written."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Starts saving; the last of the returned futures writes this process's digests."""
        futures = await super().async_save(directory, *args, **kwargs)
        return [*futures, _ProcessDigests(any_path(directory, "checkpoint"))]


# Orbax wants a handler's arguments registered for both ways; restoring uses its own handler.
@ocp.args.register_with_handler(DigestingHandler, for_save=True, for_restore=True)
@dataclass
class DigestedSave(ocp.args.PyTreeSave):
    """What `DigestingHandler` saves: a pytree of arrays."""


class _ProcessDigests:
    """A future in orbax's sense. Its thread asks for the results in order, so all is written."""

    def __init__(self, directory: AnyPath):
        self._directory = directory

    def result(self, timeout: float | None = None) -> None:
        del timeout
        process = jax.process_index()
        own = self._directory / f"ocdbt.process_{process}"
        records = _records(self._directory, (path for path in own.rglob("*") if path.is_file()))
        write_json(self._directory / _PART.format(process), _as_json(records))

    def cancel(self) -> None:
        """Nothing runs before `result` is asked for."""


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
    """Records the files that complete a checkpoint, which are written after its manifest."""
    path = step_folder / MANIFEST
    late = (step_folder / name for name in _LATE)
    records = _parsed(path.read_text()) | _records(
        step_folder, (file for file in late if file.is_file())
    )
    write_json(path, _as_json(dict(sorted(records.items()))))


def damage(step_folder: AnyPath, part: int = 0, parts: int = 1) -> str | None:
    """Compares a checkpoint with its manifest, byte for byte."""
    with _readable(step_folder):
        return _damage(step_folder, part, parts)


def _damage(step_folder: AnyPath, part: int, parts: int) -> str | None:
    try:
        records = _parsed((step_folder / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return f"{MANIFEST} is missing"
    except (ValueError, RecursionError):
        return f"{MANIFEST} is not readable"
    if any(record.sha256 is None for record in records.values()):
        _log.warning(
            "%s was saved before digests were recorded: only the sizes of its files are checked.",
            step_folder,
        )
    share = sorted(records)[part::parts]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda name: records[name].problem(name, step_folder / name), share)
        return next((problem for problem in found if problem), None)


def read_item(step_folder: AnyPath, item: str) -> dict[str, Any]:
    """Reads the ``config`` or the ``meta`` item of a checkpoint, if it is what was saved."""
    name = f"{item}/metadata"
    with _readable(step_folder):
        record = _parsed((step_folder / MANIFEST).read_text()).get(name)
        problem = "is not listed" if record is None else record.problem(name, step_folder / name)
        if problem:
            raise ValueError(f"{step_folder}: {problem}")
        return json.loads((step_folder / name).read_text())


@contextlib.contextmanager
def _readable(step_folder: AnyPath) -> Iterator[None]:
    """Tells what cannot be read from what is not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(
            f"the checkpoint {step_folder} cannot be read ({system_message(error)}), so nobody can "
            "tell whether it is whole, and nothing was changed; make it readable, or move it out "
            "of its folder to go on from the one before it"
        ) from error


def _files(folder: AnyPath) -> Iterable[AnyPath]:
    late = {folder / name for name in (MANIFEST, *_LATE)}
    return (item for item in folder.rglob("*") if item.is_file() and item not in late)


def _records(home: AnyPath, paths: Iterable[AnyPath]) -> dict[str, FileRecord]:
    """The files as they are now, by their names from `home`."""
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
    """The records in a manifest."""
    data = json.loads(text)
    if not isinstance(data, dict) or not data:
        raise ValueError("a manifest is a JSON object with an entry for each file")
    return {name: _record(value) for name, value in data.items()}


def _record(value: Any) -> FileRecord:
    match value:
        case bool():
            pass
        case int():  # before digests were recorded, a manifest held sizes alone
            return FileRecord(value, None)
        case {"bytes": int(size), "sha256": str(digest)}:
            return FileRecord(size, digest)
    raise ValueError(f"not the record of a file: {value!r}")
