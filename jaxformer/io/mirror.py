"""The mirror of a remote run: a local folder in which its data is prepared and memory-mapped.

Files of a run are written to the mirror and then uploaded to the store; a machine without a mirror
downloads them from there.
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
    """Returns the local folder in which the data of a run is prepared."""
    if not is_remote(run_dir):
        return Path(run_dir)
    remote = any_path(run_dir, "run_dir")
    name = hashlib.sha256(str(remote).encode()).hexdigest()[:16]
    home = addressed_folder("runs", name, remote) / remote.name
    home.mkdir(exist_ok=True)
    return home


def pull(run_dir: "RemotePath", names: Collection[str]) -> Path:
    """Updates some files of a remote run's mirror from the store."""
    home = mirrored(run_dir)
    files = {n: i for n, i in run_dir.files().items() if n.partition("/")[0] in names}
    with one_at_a_time(home.parent):
        for name in names:
            for path in [home / name, *(home / name).rglob("*")]:
                info = files.get(path.relative_to(home).as_posix())
                if path.is_file() and _has_same_bytes(path, info) is False:
                    path.unlink()
            if not any(file.partition("/")[0] == name for file in files):
                remove_folder(home / name)
        fetch(run_dir, home, files)
    return home


def push(folder: Path, remote: "RemotePath", names: Collection[str] | None = None) -> None:
    """Uploads files that are missing in the store, or whose bytes may differ there.

    Without `names`, uploads all files and folders except hidden ones.
    """
    there = remote.files()

    def wanted(path: Path) -> bool:
        if path.parts[0].startswith(".") or (names is not None and path.parts[0] not in names):
            return False
        return not _has_same_bytes(folder / path, there.get(path.as_posix()))

    upload_folder(folder, remote, wanted)


def _has_same_bytes(path: Path, info: "ObjectInfo | None") -> bool | None:
    """Whether an object has the same bytes as a file; None if the store has no MD5 of it."""
    if info is None or info.st_size != path.stat().st_size:
        return False
    return info.md5 == md5_of(path) if info.md5 else None


def store_path_of(path: Path) -> "RemotePath | None":
    """Returns the remote path of a path in a mirror, or None for other paths."""
    address = address_of(path)
    return None if address is None else any_path(address, "path")
