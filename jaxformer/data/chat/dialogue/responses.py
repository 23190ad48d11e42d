"""Parses answers into messages by the `response_template` of a tokenizer, as transformers does."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.data.chat.dialogue import response_process
from jaxformer.data.tokenizers.files import SETTINGS, read_settings
from jaxformer.errors import DataError
from jaxformer.io.notices import warn_once
from jaxformer.io.scripts import run_script

_FIELD = "response_template"
_CPU_SECONDS = 20
"""The maximum processor time for all answers together."""
_PATIENCE = 120
"""The number of seconds after which a process is stopped even if it gets no processor time."""


class Response(NamedTuple):
    """An answer that a model wrote."""

    text: str
    """The answer, special tokens included."""
    prefix: str
    """The prompt, which may end with the beginning of the answer."""
    tools: Sequence[Any] | None = None
    """The tools that it may call, whose schemas give the types of arguments."""


def read_responses(
    folder: Path, responses: Iterable[Response]
) -> list[dict[str, Any] | None] | None:
    """Returns answers as messages, by the response template of the tokenizer in a folder.

    Returns None without such a template, and None for each answer that does not fit it.
    """
    template = read_settings(folder).get(_FIELD)
    if template is None:
        return None
    if not isinstance(template, dict):
        raise DataError(f"{Path(folder, SETTINGS)}: {_FIELD} = {template!r}: must be an object")
    asked = [{**each._asdict(), _FIELD: template} for each in responses]
    try:
        given = json.dumps(asked).encode()
        limits = {"patience": _PATIENCE, "cpu_seconds": _CPU_SECONDS}
        done = run_script(response_process, given=given, **limits)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{folder}: {_FIELD}: it did not finish within {_PATIENCE} seconds"
        ) from None
    if done.returncode:
        raise DataError(
            f"{folder}: {_FIELD}: it computes for longer than {_CPU_SECONDS} seconds, or "
            "needs too much memory"
        )
    found = json.loads(done.stdout)
    if found is None:
        warn_once(f"{folder}: {_FIELD} is ignored: it needs transformers 5.13 or newer")
        return None
    for each in found:
        if "error" in each:
            warn_once(
                f"{folder}: an answer stays text because {_FIELD} does not fit it: {each['error']}"
            )
    return [each.get("message") for each in found]
