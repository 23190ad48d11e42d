"""Turns errors of the hub and the connection into one-sentence messages."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import NamedTuple

from jaxformer.errors import ConfigError, DataError, first_line, system_message
from jaxformer.extras import optional_module
from jaxformer.hub.remote.names import HubName

_LOGIN = "set HF_TOKEN, or run: hf auth login"
_OFFLINE = "HF_HUB_OFFLINE is set: unset it to upload"
_NO_REVISION = "has no such revision: must be a branch, a tag or a commit"
_SPELLING = f"check the spelling, or for a private model {_LOGIN}"
_INCOMPLETE_DOWNLOAD = "a download was incomplete and was discarded"
_FREE_SPACE = "free some space, or set HF_HOME to a folder with more, and run the same again"
_RETRY_STATUSES = (408, 429, 500, 502, 503, 504)


class HubRequest(NamedTuple):
    """The user's request, for messages."""

    field: str
    """The field that names the model: "init_from"."""
    name: HubName
    """The model."""
    cache: str = ""
    """The folder of the hub's cache."""
    writes: bool = False
    """Whether the model is uploaded."""

    def __str__(self) -> str:
        return f"{self.field} = {str(self.name)!r}"

    @property
    def expected(self) -> str:
        """The accepted values of a field that names a folder or a model, for messages."""
        folder = f"the folder of a run or of a Hugging Face checkpoint (looked from {os.getcwd()})"
        return f"must be {folder}, or the name of a model"


def hub_library(purpose: str) -> ModuleType:
    """Imports ``huggingface_hub``."""
    for part in ("constants", "errors", "utils.sha"):
        optional_module(f"huggingface_hub.{part}", purpose)
    return optional_module("huggingface_hub", purpose)


@contextlib.contextmanager
def explain_hub_errors(hub: ModuleType, request: HubRequest) -> Iterator[None]:
    """Turns errors of ``huggingface_hub`` into one-sentence errors with a remedy.

    Hides its warnings about retries, and its progress bars unless stderr is a terminal.
    """
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    hides_bars = not (sys.stderr.isatty() or hub.utils.are_progress_bars_disabled())
    try:
        if hides_bars:
            hub.utils.disable_progress_bars()
        yield
    except (ConfigError, DataError):
        raise
    except (OSError, RuntimeError, ValueError, hub.errors.HTTPError) as error:
        problem = _explanation(hub, request, _cause(hub, error))
        raise problem from error
    finally:
        log.setLevel(level)
        if hides_bars:
            hub.utils.enable_progress_bars()


def unreachable(hub: ModuleType, error: Exception) -> bool:
    """Whether an error is independent of the model: the hub or the network is down."""
    error = _cause(hub, error)
    if isinstance(error, hub.errors.HfHubHTTPError):
        return error.response.status_code in _RETRY_STATUSES
    return isinstance(error, hub.errors.HTTPError | ConnectionError)


def _cause(hub: ModuleType, error: Exception) -> Exception:
    """Returns the underlying error, if the library only reports that the cache has no copy."""
    while isinstance(error, hub.errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _explanation(hub: ModuleType, request: HubRequest, error: Exception) -> ConfigError | DataError:
    """Returns the error of the first row whose condition is true."""
    errors = hub.errors
    endpoint = hub.constants.ENDPOINT
    repo = request.name.repo
    is_a = partial(isinstance, error)
    status = error.response.status_code if is_a(errors.HfHubHTTPError) else None
    number = error.errno if is_a(OSError) else None
    reason = first_line(error)
    where = reason if status is None else error.response.url
    page = f"{endpoint}/{repo}"
    expected = f"{request.expected} that may be read at {endpoint}"
    lacking = f"{request.cache} has no complete copy of {repo}"
    offline = f"{request.expected} in the hub's cache, as HF_HUB_OFFLINE is set: {lacking}"
    lost = f"no connection to {endpoint} ({reason}){'' if request.writes else f', and {lacking}'}"
    refused = [
        (is_a(errors.OfflineModeIsEnabled) and request.writes, _OFFLINE),
        (is_a(errors.OfflineModeIsEnabled), offline),
        (
            is_a(errors.GatedRepoError),
            f"its licence must be accepted first, at {page}; then {_LOGIN}",
        ),
        (is_a(errors.RevisionNotFoundError), f"{repo} {_NO_REVISION}; see {page}"),
        (is_a(errors.RemoteEntryNotFoundError), f"a file is missing on the hub: {where}"),
        (is_a(errors.RepositoryNotFoundError) and not request.writes, f"{expected}; {_SPELLING}"),
        (status == 401, f"the hub refused the token; {_LOGIN}"),
        (status in (403, 404), f"the token does not allow this; take one that does: {_LOGIN}"),
        (status in _RETRY_STATUSES, f"{endpoint} answered {status}; run the same again later"),
        (status is not None, f"{endpoint} answered {status}: {reason}"),
        (is_a(errors.HFValidationError), f"must be org/name: {reason}"),
        (unreachable(hub, error), f"{lost}; check the network, and run the same again"),
    ]
    failed = [
        (
            number in (errno.ENOSPC, errno.EDQUOT),
            f"the disk of {request.cache} is full: {_FREE_SPACE}",
        ),
        (number is not None, system_message(error) if is_a(OSError) else ""),
        (is_a(OSError), f"{_INCOMPLETE_DOWNLOAD} ({reason}); run the same again"),
        (True, f"{endpoint} gave an unexpected response ({reason}); check HF_ENDPOINT"),
    ]
    kinds = [*((ConfigError, row) for row in refused), *((DataError, row) for row in failed)]
    kind, sentence = next((kind, sentence) for kind, (holds, sentence) in kinds if holds)
    return kind(f"{request}: {sentence}")


def cache_folder(hub: ModuleType, cache_dir: str | os.PathLike | None = None) -> str:
    """Returns the folder of the hub's cache."""
    return os.fspath(hub.constants.HF_HUB_CACHE if cache_dir is None else cache_dir)
