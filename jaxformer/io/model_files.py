"""The files of a model's folder, which strangers made: nothing outside of it is read."""

import os
from pathlib import Path
from typing import Any

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file
from jaxformer.io.json_files import read_json

TOKENIZER = "tokenizer.json"
_LARGEST_SETTINGS = 64 * 2**20
_LARGEST_BESIDES = 512 * 2**20


def file_in(folder: str | os.PathLike, name: str) -> Path | None:
    """Returns the file of a folder by its name; None if there is none.

    Links are followed within the folder, and from a snapshot in a Hugging Face cache to its blobs.
    A link to anywhere else would copy any file of this machine into what is written of the model.

    Raises:
        DataError: It leads out of the folder, or is a folder, a pipe or a device.
    """
    path = Path(folder, name)
    if not os.path.lexists(path):
        return None
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    cached = home.parent.name == "snapshots" and target.parent == home.parents[1] / "blobs"
    if not (target.is_relative_to(home) or cached):
        raise DataError(
            f"{path} is a link to {target}, outside of the model's folder, and is not followed: "
            "put the file itself there"
        )
    return ordinary_file(path)


def small_file_in(folder: str | os.PathLike, name: str) -> Path | None:
    """`file_in` for what is not weights: it may have 512 MiB at most.

    Raises:
        DataError: It is larger, or no file of the folder.
    """
    return _limited(file_in(folder, name), _LARGEST_BESIDES)


def read_object(folder: str | os.PathLike, name: str) -> dict[str, Any] | None:
    """Returns the JSON object in a file of a folder; None if there is no such file.

    Raises:
        DataError: It is something else, too large, or no file of the folder.
    """
    path = file_in(folder, name)
    return None if path is None else read_json_object(path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of settings, wherever the file lies.

    Raises:
        DataError: It is something else, or too large.
    """
    return read_json(_limited(path, _LARGEST_SETTINGS))


def _limited(path: Path | None, most: int) -> Path | None:
    if path is not None and (size := path.stat().st_size) > most:
        raise DataError(
            f"{path} has {size / 2**20:,.0f} MiB: such a file of a model has {most // 2**20} at "
            "most; fetch it again"
        )
    return path
