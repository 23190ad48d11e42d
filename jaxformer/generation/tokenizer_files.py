"""The JSON files beside a tokenizer."""

import json
from pathlib import Path

from jaxformer.errors import DataError

SETTINGS = "tokenizer_config.json"


def read_json_object(file: Path) -> dict:
    """Returns what a file of JSON says; nothing if there is no such file.

    Raises:
        DataError: It cannot be read, or is not a JSON object.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file}: must be a JSON object, got {type(values).__name__}")
    return values
