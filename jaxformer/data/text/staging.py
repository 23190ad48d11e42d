"""Where a corpus is built: finished shards survive the process that builds it."""

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from jaxformer.data.text.corpus_files import is_sharded, read_shards, shard_name, write_record
from jaxformer.data.text.packing import TokenStream
from jaxformer.data.text.remote_corpus import ARRIVING, fetch_corpus, fetch_shards, share_shards
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError
from jaxformer.io.files import lock_file, move_into_place, remove_folder

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

_LOCK = ".lock"
_log = logging.getLogger(__name__)


class Staging:
    """The shards of a corpus that is being built, beside the folder that it will have.

    Attributes:
        finished: The shards that an earlier process has finished, by number: documents and bytes
            of the text of both sides together.
    """

    def __init__(self, home: Path, tokenizer: Tokenizer, kept: "RemotePath | None" = None):
        self._home, self._folder, self._kept = home, _staging_of(home), kept
        for leftover in self._folder.glob(".shard-*"):
            remove_folder(leftover)
        if kept is not None:
            fetch_shards(kept, self._folder)
        self.finished = self._finished(tokenizer)
        self._numbers: set[int] = set()

    def add(self, number: int) -> Path:
        """Returns the folder of a shard, to be written whole."""
        self._numbers.add(number)
        return self._folder / shard_name(number)

    def share(self, number: int) -> None:
        """Puts a shard that is finished into the store, where other machines find it.

        The first shard waits for the second, because a corpus of one shard has no folders of
        shards.
        """
        if self._kept is not None and number:
            share_shards(self._kept, self._folder, {0, number})

    def check(self, number: int, documents: int, num_bytes: int) -> None:
        """Checks that a finished shard has the current documents."""
        self._numbers.add(number)
        if (documents, num_bytes) != self.finished[number]:
            raise self._other_documents()

    def complete(self) -> None:
        """Makes the shards the corpus."""
        if self._numbers != set(range(len(self._numbers))) | self.finished.keys():
            raise self._other_documents()
        if len(self._numbers) == 1:
            move_into_place(self._folder / shard_name(0), self._home)
            remove_folder(self._folder)
        else:
            write_record(self._folder, len(self._numbers))
            (self._folder / _LOCK).unlink(missing_ok=True)
            move_into_place(self._folder, self._home)

    def _other_documents(self) -> DataError:
        return DataError(
            f"{self._folder} holds tokens of other documents, although their fingerprint is "
            "the same: delete the folder to tokenise them again"
        )

    def _finished(self, tokenizer: Tokenizer) -> dict[int, tuple[int, int]]:
        homes = sorted(self._folder.glob("shard-*"))
        found = {}
        for home, shard in zip(homes, read_shards(homes, tokenizer), strict=True):
            if isinstance(shard, DataError):
                _log.warning("%s; tokenising this part again", shard)
                remove_folder(home)
            else:
                found[int(home.name.removeprefix("shard-"))] = _size(shard.train, shard.validation)
        return found


@contextmanager
def staging(
    home: Path, tokenizer: Tokenizer, kept: "RemotePath | None" = None
) -> Iterator[Staging | None]:
    """Lets one process at a time build a corpus.

    A process that finds another at work waits until it is done, or takes over its shards if it
    ends. Without file locks, processes may do the same work twice.
    """
    folder = _staging_of(home)
    lock = _acquired(folder, home)
    try:
        there = lock is None or (kept is not None and fetch_corpus(kept, folder, home))
        yield None if there else Staging(home, tokenizer, kept)
    finally:
        if lock is not None:
            if not any(chain(folder.glob("shard-*"), folder.glob(ARRIVING))):
                remove_folder(folder)
            lock.close()


def set_aside(home: Path) -> None:
    """Removes a damaged corpus, but keeps its shards for the next build."""
    if is_sharded(home) and not home.is_symlink():
        with suppress(OSError):  # another process is building it already
            home.rename(_staging_of(home))
    remove_folder(home)


def remove_others(home: Path) -> None:
    """Removes the unfinished builds of other corpora beside a complete one."""
    for folder in home.parent.glob(".corpus-*"):
        if folder != _staging_of(home):
            remove_folder(folder)


def _staging_of(home: Path) -> Path:
    return home.with_name(f".{home.name}")


def _size(*sides: TokenStream) -> tuple[int, int]:
    return sum(side.num_documents for side in sides), sum(side.num_bytes for side in sides)


def _acquired(folder: Path, home: Path) -> IO | None:
    """Returns the locked file of the only process that builds; None once the corpus is there."""
    while not home.is_dir():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = lock_file(folder / _LOCK)
        except FileNotFoundError:
            continue  # another process has just completed the corpus, or given up
        except OSError as error:
            raise DataError(f"{home} cannot be written: {error.strerror or error}") from error
        _wait_for(lock, home)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (folder / _LOCK).stat()):
                return lock
        lock.close()
    return None


def _wait_for(lock: IO, home: Path) -> None:
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which tokenises {home}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks
