"""Which files a path names: a file, a folder, a glob, or a saved data set."""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file
from jaxformer.io.json_files import read_json

COMPRESSED = (".gz", ".zst")
"""The endings of compressed files, after the ending of what they hold."""
_STATE, _DICT = "state.json", "dataset_dict.json"
_ABOUT_DATA = {_STATE, _DICT, "dataset_info.json", "dataset_infos.json"}
# The words that the library `datasets` takes for splits.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}.*")


class FoundFile(NamedTuple):
    """A file and the name it goes by."""

    name: str
    """Its path below the folder that was named, with "/" between folders."""
    path: Path


def ending_of(path: Path) -> str:
    """Returns the ending that tells a file's format: ".jsonl" of "a.JSONL.zst"."""
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def find_matching(path: str | os.PathLike, pattern: str) -> list[FoundFile]:
    """Returns the files of a folder whose names match a pattern, ordered by name.

    Args:
        path: A file, a folder (searched recursively) or a glob.
        pattern: Which files of a folder to take; has no effect on a file or a glob.

    Raises:
        DataError: There are none.
    """
    root = Path(os.path.expanduser(path))
    if not os.path.isdir(root):
        return _file_or_glob(root)
    found = [FoundFile(_below(root, file), file) for file in root.rglob(pattern) if file.is_file()]
    if not found:
        raise DataError(f"no file matches {pattern!r} in the folder {path}: change the pattern")
    return sorted(found)


def find_files(path: str | os.PathLike, endings: Iterable[str]) -> list[FoundFile]:
    """Returns the files that a path names, ordered by name.

    Of a folder, these are the files with a known ending, also compressed, at any depth. Hidden
    files and files that only describe data are left out. Of a data set that
    `datasets.save_to_disk` wrote, these are the files that it lists, in its order.

    Args:
        path: A file, a folder or a glob.
        endings: The known endings, such as ".jsonl".

    Raises:
        DataError: There are none, or they belong to several splits.
    """
    root, endings = Path(os.path.expanduser(path)), sorted(endings)
    if not os.path.isdir(root):
        return _file_or_glob(root)
    files = [file for file in _walk(root) if ending_of(file) in endings]
    found = sorted(FoundFile(_below(root, file), file) for file in files)
    if not found:
        raise DataError(
            f"{path} is a folder without data: the names must end with {', '.join(endings)}, "
            f"or with {' or '.join(COMPRESSED)} after it"
        )
    _check_one_split(root, found)
    return found


def stamps(files: Iterable[FoundFile]) -> list[tuple[str, int, int]]:
    """Returns the name, the size and the modification time of files."""
    stats = [(file.name, file.path.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def is_glob(path: Path) -> bool:
    """Whether a path stands for the files that match it, and is not one that exists."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def _file_or_glob(path: Path) -> list[FoundFile]:
    if not is_glob(path):
        return [FoundFile(path.name, ordinary_file(path))]
    root = path
    while glob.has_magic(str(root)):
        root = root.parent
    files = [Path(match) for match in glob.glob(str(path), recursive=True)]
    found = sorted(FoundFile(_below(root, file), file) for file in files if file.is_file())
    if not found:
        raise DataError(f"no file matches {path}")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder that may hold data."""
    if (folder / _DICT).is_file():
        names = read_json(folder / _DICT).get("splits") or ["train"]
        _refuse_splits(folder, {str(name): str(folder / str(name)) for name in names})
    if (folder / _STATE).is_file():
        yield from _saved_files(folder)
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
            yield Path(entry.path)


def _saved_files(folder: Path) -> list[Path]:
    """Returns the files that a saved data set lists; beside them may be caches."""
    state = read_json(folder / _STATE)
    try:
        files = [ordinary_file(folder / entry["filename"]) for entry in state["_data_files"]]
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


def _check_one_split(root: Path, found: Iterable[FoundFile]) -> None:
    """Raises DataError where tables are named for several splits, as on the Hugging Face hub."""
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


def _refuse_splits(folder: Path, examples: dict[str, str]) -> NoReturn:
    first = next((name for name in sorted(examples) if "train" in name), min(examples))
    raise DataError(
        f"{folder} holds the splits {', '.join(sorted(examples))}: name the files of one, such as "
        f"{examples[first]}"
    )


def _below(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()
