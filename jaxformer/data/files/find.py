"""Finds the files of a path: a file, a folder, a glob, or a saved data set."""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from jaxformer.errors import DataError
from jaxformer.io.files import is_there, object_info, ordinary_file, read_json, sha256_of
from jaxformer.io.paths import AnyPath, any_path, is_remote

if TYPE_CHECKING:
    from jaxformer.io.remote import ObjectInfo

COMPRESSED = (".gz", ".zst")
"""The endings of compressed files, after the ending of the contents."""
_STATE, _DICT = "state.json", "dataset_dict.json"
_ABOUT_DATA = {_STATE, _DICT, "dataset_info.json", "dataset_infos.json"}
# The words that the library `datasets` recognises as splits.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# About two seconds of hashing; each start also hashes the tokens.
_WHOLE = 4 << 30
_SAMPLES, _SAMPLE = 64, 1 << 16
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}.*")


class FoundFile(NamedTuple):
    """A file and its name."""

    name: str
    """Its path below the given folder, with "/" between folders."""
    path: AnyPath
    info: "ObjectInfo | None" = None
    """The store's information about it; None for a file on this machine."""

    def stat(self) -> "os.stat_result | ObjectInfo":
        """Returns its size and other metadata."""
        return self.path.stat() if self.info is None else self.info


def ending_of(path: AnyPath) -> str:
    """Returns the ending that determines a file's format: ".jsonl" of "a.JSONL.zst"."""
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def find_matching(path: str | os.PathLike, pattern: str) -> list[FoundFile]:
    """Returns the files of a folder whose names match a pattern, ordered by name."""
    root = any_path(path, "path")
    if not is_folder(root):
        return _file_or_glob(root)
    if is_remote(root):
        named = {name: info for name, info in root.files().items() if Path(name).match(pattern)}
        found = [FoundFile(name, root / name, info) for name, info in named.items()]
    else:
        files = (file for file in root.rglob(pattern) if file.is_file())
        found = [FoundFile(_below(root, file), file) for file in files]
    if not found:
        raise DataError(f"no file matches {pattern!r} in the folder {path}: change the pattern")
    return sorted(found)


def find_files(path: str | os.PathLike, endings: Iterable[str]) -> list[FoundFile]:
    """Returns the files of a path, ordered by name.

    In a folder, these are the files with a known ending, also compressed, at any depth. Hidden
    files and files that only describe data are left out. In a data set that `datasets.save_to_disk`
    wrote, these are the files that it lists, in its order.
    """
    root, endings = any_path(path, "path"), sorted(endings)
    if not is_folder(root):
        return _file_or_glob(root)
    files = [FoundFile(_below(root, file), file, info) for file, info in _walk(root)]
    found = sorted(file for file in files if ending_of(file.path) in endings)
    if not found:
        others = sorted({Path(file.name).suffix for file in files} - {""})[:4]
        raise DataError(
            f"{path} is a folder without data: the names must end with {', '.join(endings)}, "
            f"or with {' or '.join(COMPRESSED)} after it"
            f"{', and here they end with ' + ', '.join(others) if others else ''}"
        )
    _check_one_split(root, found)
    return found


def digests(files: Iterable[FoundFile]) -> list[tuple[str | int, ...]]:
    """Returns the name, the size and a digest of each file, which moving or touching does not
    change.

    Files of more than `_WHOLE` bytes together are sampled; their paths and modification times
    represent the parts that are not read. The digest of an object is the store's version.
    """
    stats = [(file, file.stat()) for file in files]
    is_whole = sum(stat.st_size for file, stat in stats if file.info is None) <= _WHOLE
    # Hashing and reading release Python's lock for other threads.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        found = threads.map(lambda pair: _digest(*pair, is_whole), stats)
        return [
            (file.name, stat.st_size, *parts)
            for (file, stat), parts in zip(stats, found, strict=True)
        ]


def _digest(
    file: FoundFile, stat: "os.stat_result | ObjectInfo", is_whole: bool
) -> tuple[str | int, ...]:
    if file.info is not None:
        return (file.info.etag,)
    try:
        if is_whole:
            return (sha256_of(file.path),)
        sample = hashlib.sha256()
        with open(file.path, "rb") as stream:
            for start in np.linspace(0, max(stat.st_size - _SAMPLE, 0), _SAMPLES, dtype=int):
                stream.seek(start)
                sample.update(stream.read(_SAMPLE))
    except OSError as error:
        raise DataError(f"{file.path} cannot be read: {error.strerror}") from error
    return sample.hexdigest(), os.path.realpath(file.path), stat.st_mtime_ns


def stamps(files: Iterable[FoundFile]) -> list[tuple[str, int, int | str]]:
    """Returns the name, the size, and the modification time or the store's version of files.

    Earlier versions distinguished files by these.
    """
    stats = [(file.name, file.stat()) for file in files]
    return [
        (name, stat.st_size, getattr(stat, "etag", None) or stat.st_mtime_ns)
        for name, stat in stats
    ]


def is_glob(path: AnyPath) -> bool:
    """Whether a path is a pattern for files, and does not exist itself."""
    return glob.has_magic(str(path)) and not is_there(path)


def is_folder(path: AnyPath) -> bool:
    """Whether a path is a folder; False if it may not be accessed."""
    return path.is_dir() if is_remote(path) else os.path.isdir(path)


def _file_or_glob(path: AnyPath) -> list[FoundFile]:
    if not is_glob(path):
        if not is_remote(path):
            return [FoundFile(path.name, ordinary_file(path))]
        return [FoundFile(path.name, path, object_info(path))]
    root = path
    while glob.has_magic(str(root)):
        root = root.parent
    if is_remote(path):
        files = [(file, info) for file, info in path.matching().items() if not _hidden(root, file)]
    else:
        matches = map(Path, glob.glob(str(path), recursive=True))
        files = [(file, None) for file in matches if file.is_file()]
    found = sorted(FoundFile(_below(root, file), file, info) for file, info in files)
    if not found:
        raise DataError(f"no file matches {path}")
    return found


def _walk(folder: AnyPath) -> Iterator[tuple[AnyPath, "ObjectInfo | None"]]:
    """Yields the files below a folder that may hold data, with the store's information on them."""
    if (folder / _DICT).is_file():
        names = read_json(folder / _DICT).get("splits") or ["train"]
        _refuse_splits(folder, {str(name): str(folder / str(name)) for name in names})
    if (folder / _STATE).is_file():
        yield from ((file, None) for file in _saved_files(folder))
        return
    if is_remote(folder):
        for name, info in folder.entries().items():
            if not (name.startswith(".") or name in _ABOUT_DATA):
                path = folder / name
                yield from _walk(path) if info.is_directory else [(path, info)]
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _ABOUT_DATA:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path), None


def _hidden(root: AnyPath, file: AnyPath) -> bool:
    """Whether the name of a file, or of a folder on the way, begins with a dot."""
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _saved_files(folder: AnyPath) -> list[AnyPath]:
    """Returns the files that a saved data set lists; there may be caches next to them."""
    state = read_json(folder / _STATE)
    try:
        files = [_checked(folder / entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / _STATE}: not as datasets.save_to_disk writes it") from error
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(
            f"{folder} lists its rows by an index, as old versions of datasets did: load and save "
            "it again with a newer one"
        )
    if not files:
        raise DataError(f"{folder} is a data set without rows")
    return files


def _checked(file: AnyPath) -> AnyPath:
    """Returns a file that exists; an object is not copied before it is read."""
    if not is_remote(file):
        return ordinary_file(file)
    object_info(file)
    return file


def _check_one_split(root: AnyPath, found: Iterable[FoundFile]) -> None:
    """Raises DataError if tables are named after several splits, as on the Hugging Face hub."""
    examples: dict[str, str] = {}
    for file in found:
        *folders, last = Path(file.name).parts
        stem = last.removesuffix("".join(Path(last).suffixes))
        if ending_of(file.path) == ".txt":
            continue
        if shard := _SHARD.fullmatch(stem):
            words = re.split(r"[-._\d ]", shard[1].lower())
            if not _SPLITS.keys().isdisjoint(words):
                examples.setdefault(shard[1], str(file.path.with_name(f"{shard[1]}-*")))
        elif stem.lower() in _SPLITS:
            examples.setdefault(_SPLITS[stem.lower()], str(file.path))
        elif named := [depth for depth, name in enumerate(folders) if name.lower() in _SPLITS]:
            folder = root.joinpath(*folders[: named[-1] + 1])
            examples.setdefault(_SPLITS[folder.name.lower()], str(folder))
    if len(examples) > 1:
        _refuse_splits(root, examples)


def check_no_splits(folder: Path, names: Iterable[str]) -> None:
    """Raises DataError if the folders in a folder are the splits of a data set."""
    examples = {_SPLITS.get(name.lower(), ""): str(folder / name) for name in names}
    if examples and "" not in examples:
        _refuse_splits(folder, examples)


def _refuse_splits(folder: AnyPath, examples: dict[str, str]) -> NoReturn:
    first = next((name for name in sorted(examples) if "train" in name), min(examples))
    raise DataError(
        f"{folder} holds the splits {', '.join(sorted(examples))}: name the files of one, such as "
        f"{examples[first]}"
    )


def _below(root: AnyPath, file: AnyPath) -> str:
    return file.relative_to(root).as_posix()
