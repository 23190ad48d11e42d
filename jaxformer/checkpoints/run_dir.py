"""The folder of a run: one experiment, one writer; user files are never deleted.

An absent or empty folder starts a run, a folder with the same experiment continues it, and a folder
with another experiment is refused with the fields that differ. In addition to checkpoints, a run
contains the files that its model and its data depend on.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jaxformer.checkpoints.files import saved_steps, write_json
from jaxformer.config.experiment import Config, changed_fields
from jaxformer.config.user_code import (
    KEPT_FILE,
    check_unchanged,
    experiment_text,
    find_user_class,
    origins,
)
from jaxformer.data import Data, Datasets
from jaxformer.data.labels import LABEL_FILES
from jaxformer.data.ramp import same_start
from jaxformer.data.text.corpus_files import folders_of_shards
from jaxformer.data.tokenizers.files import TOKENIZER_FILES
from jaxformer.distributed.processes import first_process_only
from jaxformer.errors import ConfigError, DataError, RunError, system_message
from jaxformer.io.files import lock_file, read_json, remove_folder, replacing, sha256_of
from jaxformer.io.mirror import pull, push
from jaxformer.io.model_files import OLD_FOLDER, is_hf_checkpoint
from jaxformer.io.paths import AnyPath, is_remote, run_path
from jaxformer.io.serialization import from_json, json_round_trip, to_json
from jaxformer.io.staging import staged

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

CONFIG_FILE = "config.json"
CHECKPOINTS = "checkpoints"
METRICS_FILE = "metrics.jsonl"
IMPORTED = "huggingface"
"""The subfolder with the remaining files of the checkpoint that a run was imported from."""
KEPT = ("tokenizer", IMPORTED, *LABEL_FILES)
"""Files in a run's folder, other than the configuration, that its model depends on."""
_ORIGINS = "origins"
"""The key in config.json under which the origins of user-defined components are stored."""
_LOCK_FILE = ".lock"
_SIZES = {"data.batch_size", "data.ramp"}


def open_run_folder(folder: AnyPath, config: Config) -> None:
    """Prepares a folder for an experiment and writes its ``config.json``.

    If the experiment file defines components, a copy of it is kept in the folder.
    """
    json_round_trip(config)
    text, own = experiment_text(config), origins(config)
    if (folder / CONFIG_FILE).exists():
        _check_same_experiment(folder, config)
    elif folder.exists() and (others := _foreign_items(folder, text)):
        raise ConfigError(
            f"{folder} is not a run folder: it has no {CONFIG_FILE} but contains "
            f"{', '.join(others[:5])}. Name an empty or new folder with --run-dir."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if text is not None:
        with replacing(folder / KEPT_FILE) as aside:
            aside.write_bytes(text)
    write_json(folder / CONFIG_FILE, to_json(config) | ({_ORIGINS: own} if own else {}))


@contextmanager
def moved_aside(folder: AnyPath) -> Iterator[AnyPath | None]:
    """Renames a folder to the first free of ``folder-1``, ``folder-2``, ...

    The folder is renamed back if the new run fails to start and does not create another in its
    place. In an object store each object is copied, and the originals are deleted only once all
    copies exist.
    """
    target = None
    with reporting_folder_errors(folder):
        if folder.exists():
            with locked(folder):
                number = 1
                while (target := folder.with_name(f"{folder.name}-{number}")).exists():
                    number += 1
                folder.rename(target)
            if is_remote(target):
                (target / _LOCK_FILE).rmtree()
    try:
        yield target
    except BaseException:
        if target is not None and not folder.exists():
            target.rename(folder)
        raise


@contextmanager
def locked(folder: AnyPath) -> Iterator[Callable[[], None]]:
    """Locks a run's folder against a second process; the lock is released when the process ends.

    In an object store the lock is a `Lease`, which expires soon after the process ends.

    If training fails before the first checkpoint or row of metrics, the files that it wrote are
    removed, so that the folder is as it was.
    """
    with reporting_folder_errors(folder):
        if is_remote(folder):
            from jaxformer.io.remote import check_writable

            check_writable(folder, "run_dir")
        before = _contents(folder) if folder.exists() else None
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(folder)
    with _leased(folder) if is_remote(folder) else _flocked(folder) as check:
        try:
            yield check
        except BaseException:
            with suppress(OSError, RunError):
                check()  # the folder may belong to another run now
                if not _has_learned(folder):
                    _restore_contents(folder, before)
            raise


@contextmanager
def _leased(folder: "RemotePath") -> Iterator[Callable[[], None]]:
    from jaxformer.checkpoints.lease import Lease

    with closing(Lease(folder)) as lease:
        yield lease.check


@contextmanager
def _flocked(folder: Path) -> Iterator[Callable[[], None]]:
    with reporting_folder_errors(folder):
        file = lock_file(folder / _LOCK_FILE)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is training in {folder}: wait for it, or name another folder "
                "with --run-dir"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield lambda: _check_in_place(file, folder)


def _check_in_place(lock: IO, folder: Path) -> None:
    """Checks that the path still refers to the lock that this process holds."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(lock.fileno()), os.lstat(folder / _LOCK_FILE)):
            return
    raise RunError(
        f"stopped: {folder} or its {_LOCK_FILE} was removed or replaced while this run was "
        "training; another run may use the name, so this one stops writing there. If the folder "
        "still belongs to this run, rerun the same command to continue from its newest checkpoint"
    )


def _refuse_links(folder: AnyPath) -> None:
    """Refuses links that a run would write through; a corpus, which is only read, may be one."""
    for item in () if is_remote(folder) else folder.iterdir():
        leads_away = item.is_symlink() and (item.name == _LOCK_FILE or not item.is_file())
        if leads_away and not item.name.startswith("corpus-"):
            raise ConfigError(
                f"{item} is a link to {os.readlink(item)}, but a run writes only into its own "
                "folder: remove the link, or replace it with its target"
            )


class RunConfig:
    """The configuration in a run's folder, read once when created.

    User-defined components are imported from the files or modules recorded in the run.

    Raises:
        ConfigError: The configuration is missing or invalid.
    """

    def __init__(self, folder: AnyPath):
        folder = run_path(folder, "run_dir")
        if is_remote(folder):
            from jaxformer.io.remote import check_readable

            check_readable(folder, "run_dir")
        _refuse_pretrained(folder)
        path = folder / CONFIG_FILE
        if other := _other_weights(folder):
            raise ConfigError(f"{folder} holds {other}")
        if not path.exists():
            raise ConfigError(f"{folder} is not a run folder: {path} does not exist")
        self.folder, self._origins = folder, {}
        try:
            saved = read_json(path)
            self._origins = saved.pop(_ORIGINS, {})
            self.config = self.build(saved)
        except (ConfigError, DataError) as error:
            at = "" if str(error).startswith(str(folder)) else f"{path}: "
            raise ConfigError(f"{at}{error}") from error

    def build(self, saved: dict[str, Any]) -> Config:
        """Builds the configuration from the JSON saved in the run or in one of its checkpoints."""
        kept = self.folder / KEPT_FILE
        return from_json(saved, Config, lambda name: find_user_class(name, self._origins, kept))


def read_config(folder: AnyPath) -> Config:
    """Reads the configuration that a run was started with, like `RunConfig`."""
    return RunConfig(folder).config


def other_fields(before: Config, now: Config, done: int) -> dict[str, tuple[Any, Any]]:
    """Returns the `changed_fields` that make a configuration a different experiment."""
    changes = changed_fields(before, now)
    # The size of future batches may change, but not that of completed steps.
    if done and _SIZES & changes.keys() and same_start(before.data, now.data, done):
        return {name: pair for name, pair in changes.items() if name not in _SIZES}
    return changes


def _refuse_pretrained(folder: AnyPath) -> None:
    with suppress(DataError):  # the run itself reports the damage
        if is_hf_checkpoint(folder):
            raise ConfigError(
                f"{folder} is a model saved by transformers, not a run: import it first with "
                f"python -m jaxformer import {folder} RUN_DIR"
            )


def _other_weights(folder: AnyPath) -> str | None:
    """Describes the weights in a folder that is not a run, or returns None."""
    is_run = (folder / CONFIG_FILE).exists() and not (folder / OLD_FOLDER).exists()
    if is_run or is_remote(folder):
        return None
    from jaxformer.hub.weights.found import unreadable_weights_in

    return unreadable_weights_in(folder)


def _has_learned(folder: AnyPath) -> bool:
    rows = folder / METRICS_FILE
    return bool(saved_steps(folder / CHECKPOINTS)) or (rows.exists() and rows.stat().st_size > 0)


@contextmanager
def reporting_folder_errors(folder: AnyPath) -> Iterator[None]:
    """Turns an OSError about a run's folder into a ConfigError that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be used as a run folder ({system_message(error)}): name another one "
            "with --run-dir"
        ) from error


def _contents(folder: AnyPath) -> dict[str, bytes | None]:
    """Lists the names in a folder, except for the configuration, which every start rewrites."""
    return {
        item.name: item.read_bytes() if item.name == CONFIG_FILE else None
        for item in folder.iterdir()
    }


def _restore_contents(folder: AnyPath, before: dict[str, bytes | None] | None) -> None:
    """Restores the previous contents of a folder, and removes it if it did not exist.

    The shards of a large corpus are kept, since the next start continues with them.
    """
    shards = folders_of_shards(folder)
    for item in folder.iterdir() if folder.exists() else ():
        if item.name not in shards.union(before or ()):
            remove_folder(item)
    if before is None:
        if not (shards or is_remote(folder)):
            folder.rmdir()
    elif CONFIG_FILE in before:
        with replacing(folder / CONFIG_FILE) as aside:
            aside.write_bytes(before[CONFIG_FILE])


def _check_same_experiment(folder: AnyPath, config: Config) -> None:
    check_unchanged(config, folder / KEPT_FILE)
    done = max(saved_steps(folder / CHECKPOINTS), default=0)
    if changes := other_fields(read_config(folder), config, done):
        listed = "".join(
            f"  {name}: {old!r} there, {new!r} now\n" for name, (old, new) in changes.items()
        )
        raise ConfigError(
            f"{folder} contains a run with another configuration:\n{listed}Name another folder "
            "with --run-dir, or start over with --fresh (the old run is kept under another name)."
        )


def _foreign_items(folder: AnyPath, text: bytes | None) -> list[str]:
    """Returns the files in a folder that this experiment does not write."""
    own = {_LOCK_FILE} | folders_of_shards(folder)
    kept = folder / KEPT_FILE
    if kept.is_file() and kept.read_bytes() == text:
        own.add(KEPT_FILE)
    unfinished = tuple(f".{name}." for name in (CONFIG_FILE, KEPT_FILE))  # left by a killed start
    names = (item.name for item in folder.iterdir())
    return sorted(name for name in names if name not in own and not name.startswith(unfinished))


def kept_files(run: AnyPath) -> Path:
    """Returns a local folder with the files that a run's model depends on (`KEPT`)."""
    return staged(run, lambda name: name.partition("/")[0] in KEPT)


def kept_digests(run: AnyPath) -> dict[str, str]:
    """Returns the digests of the tokenizer and label files of a run, by file name."""
    home = kept_files(run)
    names = [*(f"tokenizer/{name}" for name in TOKENIZER_FILES), LABEL_FILES[0]]
    try:
        return {name: sha256_of(home / name) for name in names if (home / name).is_file()}
    except OSError as error:
        raise DataError(f"{run} cannot be read ({system_message(error)})") from error


def prepared_data(data: Data, folder: AnyPath) -> Datasets:
    """Prepares the data of a run, which is kept in its folder, and returns the datasets."""
    if not is_remote(folder):
        return data.prepare(folder)
    prepared = []

    def prepare() -> Path:
        local = pull(folder, KEPT)
        with _named(folder, local):
            prepared.append(data.prepare(local))
        return local

    first_process_only(lambda: push(prepare(), folder, KEPT))
    if not prepared:
        prepare()
    return prepared[0]


@contextmanager
def _named(folder: AnyPath, mirror: Path) -> Iterator[None]:
    """Makes messages name the run's folder instead of its local mirror."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(str(error).replace(str(mirror), str(folder))) from error
