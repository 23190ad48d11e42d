"""Copies models from object stores to this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.remote.selection import check_has_weights, settings_files, weight_files
from jaxformer.io.files import read_json
from jaxformer.io.model_files import is_adapter, is_hf_checkpoint
from jaxformer.io.paths import AnyPath
from jaxformer.io.staging import staged

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath


def remote_model(
    folder: "RemotePath", field: str, weights: bool, check: Callable[[Path], object]
) -> AnyPath:
    """Returns the folder of a model in an object store."""
    try:
        is_model = is_adapter(folder) or is_hf_checkpoint(folder)
        files = folder.files() if is_model else folder.entries()
    except FileNotFoundError:  # the bucket does not exist
        files, is_model = {}, False
    if not files:
        raise ConfigError(
            f"{field} = {folder}: must be the folder of a run or of a Hugging Face checkpoint, "
            "but there are no objects below it; check the bucket and the name"
        )
    if not is_model:
        return folder
    wanted = set(settings_files(files))
    if weights:
        convert = f'from_pretrained("a copy of {folder.name}")'
        check_has_weights(f"{field} = {folder}", files, convert)
        check(staged(folder, wanted.__contains__))
        try:
            wanted.update(weight_files(files, lambda name: read_json(folder / name)) or ())
        except DataError as error:
            raise DataError(f"{field} = {folder}: {error}") from error
    return staged(folder, wanted.__contains__)
