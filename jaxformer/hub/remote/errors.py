"""What the hub refuses, and what goes wrong on the way, in one sentence each."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from jaxformer.errors import ConfigError, DataError, first_line, system_message
from jaxformer.extras import optional_module
from jaxformer.hub.remote.names import HubName

_LOGIN = "set HF_TOKEN, or run: hf auth login"
_BUSY = (408, 429, 500, 502, 503, 504)


class Asked(NamedTuple):
    """What the user asked for, for messages."""

    field: str
    """What the user calls it: "init_from"."""
    name: HubName
    """The model."""
    cache: str = ""
    """The folder of the hub's cache."""
    writes: bool = False
    """Whether it is uploaded."""

    def __str__(self) -> str:
        return f"{self.field} = {str(self.name)!r}"

    @property
    def expected(self) -> str:
        """What may be a folder or a name."""
        folder = f"the folder of a run or of a Hugging Face checkpoint (looked from {os.getcwd()})"
        return f"must be {folder}, or the name of a model"


def hub_library(purpose: str) -> ModuleType:
    """Returns ``huggingface_hub``.

    Args:
        purpose: What needs it, for the message: "--init-from org/name".

    Raises:
        MissingExtra: It is not installed.
    """
    for part in ("constants", "errors", "utils"):
        optional_module(f"huggingface_hub.{part}", purpose)
    return optional_module("huggingface_hub", purpose)


@contextlib.contextmanager
def explained(hub: ModuleType, asked: Asked) -> Iterator[None]:
    """Raises what ``huggingface_hub`` raises as one sentence that says what to do.

    Its warnings of each retry are not shown, nor its progress bars unless a terminal shows them.

    Yields:
        Nothing.

    Raises:
        ConfigError: There is no such model, it may not be read, or the hub cannot be reached.
        DataError: A file did not arrive as it is on the hub, or cannot be written.
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
        problem = _in_words(hub, asked, _cause(hub, error))
        raise problem from error
    finally:
        log.setLevel(level)
        if hides_bars:
            hub.utils.enable_progress_bars()


def unreachable(hub: ModuleType, error: Exception) -> bool:
    """Returns whether an error says nothing about the model: the hub is down, or no network."""
    error = _cause(hub, error)
    if isinstance(error, hub.errors.HfHubHTTPError):
        return error.response.status_code in _BUSY
    return isinstance(error, hub.errors.HTTPError | ConnectionError)


def _cause(hub: ModuleType, error: Exception) -> Exception:
    """What went wrong, where the library says no more than that the cache has no copy."""
    while isinstance(error, hub.errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _in_words(hub: ModuleType, asked: Asked, error: Exception) -> ConfigError | DataError:
    errors, lacking = hub.errors, f"{asked.cache} has no complete copy of {asked.name.repo}"
    if asked.writes and isinstance(error, errors.OfflineModeIsEnabled):
        return ConfigError(f"{asked}: HF_HUB_OFFLINE is set: unset it to upload")
    if isinstance(error, errors.HfHubHTTPError):
        return ConfigError(f"{asked}: {_refusal(hub, asked, error)}")
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"{asked}: must be org/name: {first_line(error)}")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return ConfigError(
            f"{asked}: {asked.expected} in the hub's cache, as HF_HUB_OFFLINE is set: {lacking}"
        )
    if unreachable(hub, error):
        return ConfigError(
            f"{asked}: no connection to {hub.constants.ENDPOINT} ({first_line(error)})"
            f"{'' if asked.writes else f', and {lacking}'}; check the network, and run the same "
            "again"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"{asked}: the disk of {asked.cache} is full: free some space, or set HF_HOME to "
            "a folder with more, and run the same again"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{asked}: {system_message(error)}")
    if isinstance(error, OSError):
        return DataError(
            f"{asked}: a download did not arrive whole and was dropped ({first_line(error)}); run "
            "the same again"
        )
    return DataError(
        f"{asked}: {hub.constants.ENDPOINT} answered what no hub does ({first_line(error)}); "
        "check HF_ENDPOINT and the network"
    )


def _refusal(hub: ModuleType, asked: Asked, error: Exception) -> str:
    """Why the hub answered with an error, and what to do."""
    errors, repo, status = hub.errors, asked.name.repo, error.response.status_code
    page = f"{hub.constants.ENDPOINT}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return f"its licence must be accepted first, at {page}; then {_LOGIN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo} has no such revision: must be a branch, a tag or a commit; see {page}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"a file is missing on the hub: {error.response.url}"
    if isinstance(error, errors.RepositoryNotFoundError) and not asked.writes:
        return (
            f"{asked.expected} that may be read at {hub.constants.ENDPOINT}; check the spelling, "
            f"or for a private model {_LOGIN}"
        )
    if status == 401:
        return f"the hub refused the token; {_LOGIN}"
    if status in (403, 404):
        return f"the token does not allow this; take one that does: {_LOGIN}"
    if status in _BUSY:
        return f"{hub.constants.ENDPOINT} answered {status}; run the same again later"
    return f"{hub.constants.ENDPOINT} answered {status}: {first_line(error)}"


def cache_folder(hub: ModuleType, cache_dir: str | os.PathLike | None = None) -> str:
    """Returns the folder of the hub's cache.

    Args:
        hub: The library.
        cache_dir: The one that was asked for; None: that of HF_HOME or HF_HUB_CACHE.
    """
    return os.fspath(hub.constants.HF_HUB_CACHE if cache_dir is None else cache_dir)
