"""Where a corpus is built, and its progress: finished shards survive the building process."""

import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxformer.data.text.corpus_files import is_sharded, read_shards, shard_name, write_record
from jaxformer.data.text.remote_corpus import ARRIVING, fetch_corpus, fetch_shards, share_shards
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError
from jaxformer.io.files import lock_file, move_into_place, remove_folder

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

_LOCK = ".lock"
_log = logging.getLogger(__name__)
_SECONDS_BEFORE_FIRST = 2.0
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_UPDATES = 0.2


class Staging:
    """The shards of a corpus that is being built, next to its final folder.

    Attributes:
        finished: The shards that an earlier process has finished, by number: the documents and
            bytes of text of both sides.
    """

    def __init__(self, home: Path, tokenizer: Tokenizer, kept: "RemotePath | None" = None):
        self._home = home
        self._folder = _staging_of(home)
        self._kept = kept
        for leftover in self._folder.glob(".shard-*"):
            remove_folder(leftover)
        if kept is not None:
            fetch_shards(kept, self._folder)
        self.finished = self._finished(tokenizer)
        self._numbers: set[int] = set()

    def add(self, number: int) -> Path:
        """Returns the folder for a shard, which is written completely or not at all."""
        self._numbers.add(number)
        return self._folder / shard_name(number)

    def share(self, number: int) -> None:
        """Uploads a finished shard to the store, where other machines find it."""
        # The first shard is uploaded with the second: a corpus of one shard has no folders of
        # shards.
        if self._kept is not None and number:
            share_shards(self._kept, self._folder, {0, number})

    def check(self, number: int, documents: int, num_bytes: int) -> None:
        """Checks that a finished shard has the current documents."""
        self._numbers.add(number)
        if (documents, num_bytes) != self.finished[number]:
            raise self._other_documents()

    def complete(self) -> None:
        """Completes the corpus from its shards."""
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
                sides = (shard.train, shard.validation)
                found[int(home.name.removeprefix("shard-"))] = (
                    sum(side.num_documents for side in sides),
                    sum(side.num_bytes for side in sides),
                )
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
    """Removes the unfinished builds of other corpora next to a complete one."""
    for folder in home.parent.glob(".corpus-*"):
        if folder != _staging_of(home):
            remove_folder(folder)


def _staging_of(home: Path) -> Path:
    return home.with_name(f".{home.name}")


def _acquired(folder: Path, home: Path) -> IO | None:
    """Returns the locked file of the building process; None once the corpus exists."""
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
    with suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which tokenises {home}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)


class TokenisingProgress:
    """Shows documents, tokens, speed and the time left if it takes more than a moment.

    It writes to the standard error, since some commands print their results. `total` is the
    approximate number of bytes of text, if it is known.
    """

    def __init__(self, total: int | None, console: Console | None = None):
        self._total = total
        self._console = console or Console(stderr=True)
        self._start = time.monotonic()
        self._next = time.monotonic() + _SECONDS_BEFORE_FIRST
        self._documents = self._tokens = self._bytes = self._known = 0
        self._bar: Progress | None = None
        self._is_shown = False

    def __enter__(self) -> "TokenisingProgress":
        return self

    def skip(self, num_bytes: int) -> None:
        """Counts text that an earlier process tokenised."""
        self._known += num_bytes
        self._start = time.monotonic()
        self._show()

    def add(self, documents: int, tokens: int, num_bytes: int) -> None:
        """Counts text that was tokenised."""
        self._documents += documents
        self._tokens += tokens
        self._bytes += num_bytes
        self._show()

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._is_shown and exception[0] is None:
            took = timedelta(seconds=round(time.monotonic() - self._start))
            self._print(f"tokenised {self._counts()} in {took}")

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._is_shown = True
        if not self._console.is_terminal:
            self._next = now + _SECONDS_BETWEEN_LINES
            self._print(f"tokenising: {self._counts()}  {self._left()}")
            return
        self._next = now + _SECONDS_BETWEEN_UPDATES
        if self._bar is None:
            columns = TextColumn("tokenising"), BarColumn(16), TextColumn("{task.description}")
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        text = f"{self._counts()}  {self._left()}"
        self._bar.update(self._bar.task_ids[0], completed=self._done(), description=text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _done(self) -> int:
        return self._known + self._bytes

    def _rate(self) -> float:
        return self._bytes / max(time.monotonic() - self._start, 1e-9)

    def _counts(self) -> str:
        millions = f"{self._tokens / 1e6:,.1f}M tokens"
        return f"{self._documents:,} documents  {millions}  {self._rate() / 1e6:.1f} MB/s"

    def _left(self) -> str:
        if self._total is None or self._done() >= self._total or not self._bytes:
            return "eta ?"
        seconds = round((self._total - self._done()) / self._rate())
        return f"eta {timedelta(seconds=seconds)}"
