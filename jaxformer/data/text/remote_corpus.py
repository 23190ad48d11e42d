"""A corpus in an object store: put there shard by shard, and copied to each machine to be mapped.

The store has the files of the corpus as a disk has them. The digests of the whole are written last:
without them the corpus is not complete, and only those of its shards count that have digests.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.data.text.corpus_files import shard_name
from jaxformer.io.files import DIGESTS, move_into_place, remove_folder, upload_folder
from jaxformer.io.staging import fetch

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

ARRIVING = ".arriving"
"""Where files are until all of them are there."""


def fetch_corpus(kept: "RemotePath", folder: Path, home: Path) -> bool:
    """Copies a complete corpus from the store; goes on with a copy that was interrupted."""
    files = kept.files()
    if DIGESTS not in files:
        return False
    fetch(kept, folder / ARRIVING, files)
    move_into_place(folder / ARRIVING, home)
    remove_folder(folder)
    return True


def fetch_shards(kept: "RemotePath", folder: Path) -> None:
    """Copies the finished shards of a corpus that is not complete."""
    files = kept.files()
    for name in sorted(files):
        shard, _, file = name.partition("/")
        if file == DIGESTS and not (folder / shard).exists():
            own = {n.partition("/")[2]: i for n, i in files.items() if n.startswith(f"{shard}/")}
            fetch(kept / shard, folder / ARRIVING / shard, own)
            move_into_place(folder / ARRIVING / shard, folder / shard)
    remove_folder(folder / ARRIVING)


def share_shards(kept: "RemotePath", folder: Path, numbers: Iterable[int]) -> None:
    """Puts finished shards into the store, unless they are there."""
    for name in map(shard_name, sorted(numbers)):
        if not (kept / name / DIGESTS).is_file():
            upload_folder(folder / name, kept / name)


def share_corpus(kept: "RemotePath", home: Path) -> None:
    """Puts what the store lacks of a complete corpus there, unless another machine has."""
    files = kept.files()
    if DIGESTS in files:
        return

    def is_missing(name: Path) -> bool:
        info = files.get(name.as_posix())
        return info is None or info.st_size != (home / name).stat().st_size

    upload_folder(home, kept, is_missing)
