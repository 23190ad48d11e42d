"""The mirror of a remote run: a folder on this machine in which its data are prepared and mapped.

What a run keeps is written into the mirror as into any folder, and then into the store; a machine
that has no mirror yet fills its own from there.
"""

import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.io.files import md5_of, remove_folder, upload_folder
from jaxformer.io.paths import any_path, is_remote
from jaxformer.io.staging import address_of, addressed_folder, fetch, one_at_a_time

if TYPE_CHECKING:
    from jaxformer.io.remote import ObjectInfo, RemotePath


def mirrored(run_dir: str | os.PathLike) -> Path:
    """Returns the folder on this machine in which the data of a run are prepared."""
    if not is_remote(run_dir):
        return Path(run_dir)
    remote = any_path(run_dir, "run_dir")
    name = hashlib.sha256(str(remote).encode()).hexdigest()[:16]
    home = addressed_folder("runs", name, remote) / remote.name
    home.mkdir(exist_ok=True)
    return home


def pull(run_dir: "RemotePath", names: Collection[str]) -> Path:
    """Makes some of the mirror of a remote run the same as in the store."""
    home = mirrored(run_dir)
    files = {n: i for n, i in run_dir.files().items() if n.partition("/")[0] in names}
    with one_at_a_time(home.parent):
        for name in names:
            for path in [home / name, *(home / name).rglob("*")]:
                info = files.get(path.relative_to(home).as_posix())
                if path.is_file() and _same(path, info) is False:
                    path.unlink()
            if not any(file.partition("/")[0] == name for file in files):
                remove_folder(home / name)
        fetch(run_dir, home, files)
    return home


def push(folder: Path, remote: "RemotePath", names: Collection[str] | None = None) -> None:
    """Uploads what the store does not have yet, or does not say it has with the same bytes.

    Args:
        folder: A folder on this machine.
        remote: Where the store keeps it.
        names: The files and folders in it that are wanted; None: all but hidden ones.

    Raises:
        StorageError: The store cannot be reached, or refuses.
    """
    there = remote.files()

    def wanted(path: Path) -> bool:
        if path.parts[0].startswith(".") or (names is not None and path.parts[0] not in names):
            return False
        return not _same(folder / path, there.get(path.as_posix()))

    upload_folder(folder, remote, wanted)


def _same(path: Path, info: "ObjectInfo | None") -> bool | None:
    """Whether an object has the bytes of a file; None where the store does not say."""
    if info is None or info.st_size != path.stat().st_size:
        return False
    return info.md5 == md5_of(path) if info.md5 else None


def store_path_of(path: Path) -> "RemotePath | None":
    """Returns where the store keeps what is in a mirror; None for a path in no mirror."""
    address = address_of(path)
    return None if address is None else any_path(address, "path")
