"""The JSON files beside a tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer

from jaxformer.errors import DataError
from jaxformer.model_files import TOKENIZER, read_object, small_file_in

SETTINGS = "tokenizer_config.json"


def read_json_object(file: Path) -> dict:
    """Returns what a file of JSON says; nothing if there is no such file.

    Raises:
        DataError: It cannot be read, is not a JSON object, or no file of its folder.
    """
    return read_object(file.parent, file.name) or {}


def read_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Returns the tokenizer in a folder; None if it has none.

    Raises:
        DataError: It cannot be read, or is no file of the folder.
    """
    file = small_file_in(folder, TOKENIZER)
    try:
        return None if file is None else Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises bare Exception
        reason = str(error)[:300]
        raise DataError(f"{file}: not a tokenizer.json that can be loaded: {reason}") from error
