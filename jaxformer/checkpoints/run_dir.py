"""The folder of a run: one experiment, one writer, and nothing of the user's ever deleted.

A folder that is absent or empty starts a run; one that holds the same experiment continues it; one
that holds another is refused with the fields that differ. Besides its checkpoints a run holds the
files that its model and its data depend on.
"""

import fcntl
import os
import shutil
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
    find_own,
    origins,
)
from jaxformer.data import Data, Datasets
from jaxformer.data.labels import LABEL_FILES
from jaxformer.data.ramp import same_start
from jaxformer.data.text.corpus_files import folders_of_shards
from jaxformer.data.tokenizers.files import TOKENIZER_FILES
from jaxformer.distributed.processes import first_process_only
from jaxformer.errors import ConfigError, DataError, RunError, system_message
from jaxformer.io.files import lock_file, read_json, replacing, sha256_of
from jaxformer.io.mirror import pull, push
from jaxformer.io.model_files import OLD_FOLDER, is_hf_checkpoint
from jaxformer.io.paths import AnyPath, is_remote, run_path
from jaxformer.io.serialization import as_saved, from_json, to_json
from jaxformer.io.staging import staged

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

CONFIG_FILE = "config.json"
CHECKPOINTS = "checkpoints"
METRICS_FILE = "metrics.jsonl"
IMPORTED = "huggingface"
"""The folder of a run with the other files of the checkpoint that it was imported from."""
KEPT = ("tokenizer", IMPORTED, *LABEL_FILES)
"""Files in a run's folder that its model depends on, besides the configuration."""
_ORIGINS = "origins"
"""What config.json says, besides the configuration, of components that are the user's own."""
_LOCK_FILE = ".lock"
_SIZES = {"data.batch_size", "data.ramp"}


def open_run_folder(folder: AnyPath, config: Config) -> None:
    """Makes a folder ready for this experiment and writes its ``config.json``.

    Where the experiment's file defines components, the folder keeps a copy of it.
    """
    as_saved(config)
    text, own = experiment_text(config), origins(config)
    if (folder / CONFIG_FILE).exists():
        _check_same_experiment(folder, config)
    elif folder.exists() and (others := _foreign_items(folder, text)):
        raise ConfigError(
            f"{folder} is not the folder of a run: it has no {CONFIG_FILE} and holds "
            f"{', '.join(others[:5])}. Name an empty or a new folder with --run-dir."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if text is not None:
        with replacing(folder / KEPT_FILE) as aside:
            aside.write_bytes(text)
    write_json(folder / CONFIG_FILE, to_json(config) | ({_ORIGINS: own} if own else {}))


@contextmanager
def moved_away(folder: AnyPath) -> Iterator[AnyPath | None]:
    """Renames a folder to the first free of ``folder-1``, ``folder-2``, ...

    It is renamed back if the start that needed its place fails and leaves nothing there. In an
    object store each object is copied, and no original is deleted before all copies are there.
    """
    target = None
    with accessible(folder):
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
    """Locks a run's folder against a second process; the lock ends with the process.

    In an object store the lock is a `Lease`, which ends soon after the process.

    If training fails before the first checkpoint or row of metrics, the files that it has written
    are removed, so that the next start finds the folder as it was.
    """
    with accessible(folder):
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
                check()  # what is another run's now stays
                if not _has_learned(folder):
                    _take_back(folder, before)
            raise


@contextmanager
def _leased(folder: "RemotePath") -> Iterator[Callable[[], None]]:
    from jaxformer.checkpoints.lease import Lease

    with closing(Lease(folder)) as lease:
        yield lease.check


@contextmanager
def _flocked(folder: Path) -> Iterator[Callable[[], None]]:
    with accessible(folder):
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
    """Checks that a name still leads to the lock that this process holds."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(lock.fileno()), os.lstat(folder / _LOCK_FILE)):
            return
    raise RunError(
        f"stopped: {folder} was removed or replaced while this run trained, or its {_LOCK_FILE} "
        "was; another run may use the name, so this one writes nothing more there. If the folder "
        "is still this run's, the same command continues from its newest checkpoint"
    )


def _refuse_links(folder: AnyPath) -> None:
    """Refuses what a run would write through; a corpus may be a link, it is only read."""
    for item in () if is_remote(folder) else folder.iterdir():
        leads_away = item.is_symlink() and (item.name == _LOCK_FILE or not item.is_file())
        if leads_away and not item.name.startswith("corpus-"):
            raise ConfigError(
                f"{item} is a link to {os.readlink(item)}: a run writes into its own folder alone; "
                "remove the link, or put what it leads to in its place"
            )


class RunConfig:
    """The configuration in a run's folder, read once.

    User-defined components are imported from where the run says that they are.

    Args:
        folder: The run's folder.

    Raises:
        ConfigError: There is no configuration, or it cannot be used.
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
            raise ConfigError(f"{folder} is not the folder of a run: {path} does not exist")
        self.folder, self._origins = folder, {}
        try:
            saved = read_json(path)
            self._origins = saved.pop(_ORIGINS, {})
            self.config = self.build(saved)
        except (ConfigError, DataError) as error:
            at = "" if str(error).startswith(str(folder)) else f"{path}: "
            raise ConfigError(f"{at}{error}") from error

    def build(self, saved: dict[str, Any]) -> Config:
        """The configuration that the run or one of its checkpoints has saved as JSON."""
        kept = self.folder / KEPT_FILE
        return from_json(saved, Config, lambda name: find_own(name, self._origins, kept))


def read_config(folder: AnyPath) -> Config:
    """The configuration that a run was started with; raises ConfigError as `RunConfig` does."""
    return RunConfig(folder).config


def other_fields(before: Config, now: Config, done: int) -> dict[str, tuple[Any, Any]]:
    """Returns what makes a configuration another experiment, as `changed_fields` does."""
    changes = changed_fields(before, now)
    # The batches to come may have another size, not those of the steps that are done.
    if done and _SIZES & changes.keys() and same_start(before.data, now.data, done):
        return {name: pair for name, pair in changes.items() if name not in _SIZES}
    return changes


def _refuse_pretrained(folder: AnyPath) -> None:
    with suppress(DataError):  # a run reports the same damage
        if is_hf_checkpoint(folder):
            raise ConfigError(
                f"{folder} is a model that transformers saved, not a run: import it first: "
                f"python -m jaxformer import {folder} RUN_DIR"
            )


def _other_weights(folder: AnyPath) -> str | None:
    """The sentence about the weights in a folder that is not a run; None if there are none."""
    is_run = (folder / CONFIG_FILE).exists() and not (folder / OLD_FOLDER).exists()
    if is_run or is_remote(folder):
        return None
    from jaxformer.hub.weights.found import other_weights_in

    return other_weights_in(folder)


def _has_learned(folder: AnyPath) -> bool:
    rows = folder / METRICS_FILE
    return bool(saved_steps(folder / CHECKPOINTS)) or (rows.exists() and rows.stat().st_size > 0)


@contextmanager
def accessible(folder: AnyPath) -> Iterator[None]:
    """Turns an OSError about the folder of a run into a ConfigError that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be the folder of a run ({system_message(error)}): name another one "
            "with --run-dir"
        ) from error


def _contents(folder: AnyPath) -> dict[str, bytes | None]:
    """The names in a folder; with the configuration itself, which every start writes anew."""
    return {
        item.name: item.read_bytes() if item.name == CONFIG_FILE else None
        for item in folder.iterdir()
    }


def _take_back(folder: AnyPath, before: dict[str, bytes | None] | None) -> None:
    """Leaves a folder with what was in it before, and removes it if it was not there.

    The shards of a large corpus stay, which the next start goes on with.
    """
    shards = folders_of_shards(folder)
    for item in folder.iterdir() if folder.exists() else ():
        if item.name not in shards.union(before or ()):
            _remove(item)
    if before is None:
        if not (shards or is_remote(folder)):
            folder.rmdir()
    elif CONFIG_FILE in before:
        with replacing(folder / CONFIG_FILE) as aside:
            aside.write_bytes(before[CONFIG_FILE])


def _remove(item: AnyPath) -> None:
    if is_remote(item):
        item.rmtree()
    else:
        shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def _check_same_experiment(folder: AnyPath, config: Config) -> None:
    check_unchanged(config, folder / KEPT_FILE)
    done = max(saved_steps(folder / CHECKPOINTS), default=0)
    if changes := other_fields(read_config(folder), config, done):
        listed = "".join(
            f"  {name}: {old!r} there, {new!r} now\n" for name, (old, new) in changes.items()
        )
        raise ConfigError(
            f"{folder} holds a run with another configuration:\n{listed}"
            "Name another folder with --run-dir, or start anew with --fresh (the old run is kept "
            "under another name)."
        )


def _foreign_items(folder: AnyPath, text: bytes | None) -> list[str]:
    """The files in a folder that no start of this experiment writes."""
    own, kept = {_LOCK_FILE} | folders_of_shards(folder), folder / KEPT_FILE
    if kept.is_file() and kept.read_bytes() == text:
        own.add(KEPT_FILE)
    unfinished = tuple(
        f".{name}." for name in (CONFIG_FILE, KEPT_FILE)
    )  # by a start that was killed
    names = (item.name for item in folder.iterdir())
    return sorted(name for name in names if name not in own and not name.startswith(unfinished))


def kept_files(run: AnyPath) -> Path:
    """Returns a folder with those files of a run that its model depends on: `KEPT`."""
    return staged(run, lambda name: name.partition("/")[0] in KEPT)


def kept_digests(run: AnyPath) -> dict[str, str]:
    """Returns the digests of what gives a run's tokens and labels their meaning, by file."""
    home = kept_files(run)
    names = [*(f"tokenizer/{name}" for name in TOKENIZER_FILES), LABEL_FILES[0]]
    try:
        return {name: sha256_of(home / name) for name in names if (home / name).is_file()}
    except OSError as error:
        raise DataError(f"{run} cannot be read ({system_message(error)})") from error


def prepared_data(data: Data, folder: AnyPath) -> Datasets:
    """Prepares the data of a run, which are kept in its folder.

    Those of a remote run are prepared in its mirror: by the first process, which puts what is new
    into the store, and then by the others, who find it there.
    """
    if not is_remote(folder):
        return data.prepare(folder)
    prepared = []

    def prepare_first() -> None:
        local = pull(folder, KEPT)
        with _named(folder, local):
            prepared.append(data.prepare(local))
        push(local, folder, KEPT)

    first_process_only(prepare_first)
    if prepared:
        return prepared[0]
    local = pull(folder, KEPT)
    with _named(folder, local):
        return data.prepare(local)


@contextmanager
def _named(folder: AnyPath, mirror: Path) -> Iterator[None]:
    """Lets messages name the run's folder, not its mirror."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(str(error).replace(str(mirror), str(folder))) from error
