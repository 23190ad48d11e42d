"""The files of a model on the hub, in the hub's cache."""

import glob
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, TypeVar

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.remote.errors import (
    HubRequest,
    cache_folder,
    explain_hub_errors,
    hub_library,
    unreachable,
)
from jaxformer.hub.remote.names import HubName
from jaxformer.hub.remote.selection import (
    check_has_weights,
    settings_files,
    weight_files,
    weight_index,
)
from jaxformer.io.files import sha256_of
from jaxformer.io.model_files import ADAPTER_CONFIG, CONFIG, read_object

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_fetched: dict[tuple[Any, ...], Path] = {}
"""The folders of commits that this process has requested from the hub."""
_ATTEMPTS = 3
"""Maximum number of attempts if the hub closes the connection without a response."""


def fetch(
    name: HubName,
    field: str,
    *,
    token: str | None = None,
    cache_dir: str | os.PathLike | None = None,
    weights: bool = True,
    check: Callable[[Path], object] = lambda folder: None,
    subfolder: str = "",
) -> Path:
    """Downloads a model's missing files, and returns their folder in the cache.

    The model may be in a `subfolder`: "text_encoder".

    Each new file is compared with its size and hash on the hub. Without a network, or with
    HF_HUB_OFFLINE, the cached files are used if they are complete.
    """
    request = HubRequest(field, name)
    hub = hub_library(str(request))
    cache_dir = None if cache_dir is None else os.path.expanduser(cache_dir)
    request = request._replace(cache=cache_folder(hub, cache_dir))
    key = (name, request.cache, hub.constants.ENDPOINT, token, weights, subfolder)
    if name.is_commit and key in _fetched and _fetched[key].is_dir():
        return _fetched[key]
    repository = _Repository(hub, request, token, cache_dir, PurePosixPath(subfolder))
    with explain_hub_errors(hub, request):
        folder = repository.folder(weights, check)
    if name.is_commit:
        _fetched[key] = folder
    return folder


@dataclass(frozen=True, repr=False)  # hides the token
class _Repository:
    """A model on the hub."""

    hub: ModuleType
    request: HubRequest
    token: str | None
    cache: str | None
    subfolder: PurePosixPath

    def folder(self, weights: bool, check: Callable[[Path], object]) -> Path:
        """Returns the folder with all required files."""
        try:
            return self._download(weights, check)
        except (OSError, self.hub.errors.HTTPError) as error:
            if not unreachable(self.hub, error):
                raise
            return self._cached(weights, error)

    def _download(self, weights: bool, check: Callable[[Path], object]) -> Path:
        repo, revision = self.request.name
        api = self.hub.HfApi(token=self.token, library_name="jaxformer")
        info = self._with_retries(api.model_info, repo, revision=revision, files_metadata=True)
        own = {PurePosixPath(file.rfilename): file for file in info.siblings or ()}
        files = {
            str(path.relative_to(self.subfolder)): x
            for path, x in own.items()
            if path.is_relative_to(self.subfolder)
        }
        if weights:
            check_has_weights(f"{self.request}: {repo}", files, f'from_pretrained("{repo}")')
        names, index = settings_files(files), weight_index(files)
        folder = self._get([*names, index] if index and weights else names, files, info.sha)
        if weights:
            check(folder)
            self._get(self._weights(folder, files) or [], files, info.sha)
        return folder

    def _with_retries(
        self, ask: Callable[..., _Result], *arguments: Any, **options: Any
    ) -> _Result:
        """Returns the hub's response; retries if the hub closes the connection.

        The hub may close a connection that was kept open since an earlier request. The library
        itself only retries downloads of files.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return ask(*arguments, **options)
            except self.hub.errors.HTTPError as error:
                # The library that defines the class depends on the version of huggingface_hub.
                if type(error).__name__ != "RemoteProtocolError":
                    raise
        return ask(*arguments, **options)

    def _cached(self, weights: bool, error: Exception) -> Path:
        """Returns the cached folder when the hub cannot be reached."""
        folder = self._cached_snapshot()
        if folder is None or not self._complete(folder / self.subfolder, weights):
            raise error
        quiet = isinstance(error, self.hub.errors.OfflineModeIsEnabled)
        if not (quiet or self.request.name.is_commit):
            _log.warning(
                "%s: the hub cannot be reached; the cached commit %s is used",
                self.request, folder.name,
            )  # fmt: skip
        return folder / self.subfolder

    def _cached_snapshot(self) -> Path | None:
        """Returns the cached folder of the revision as of the last request, or None."""
        repo, revision = self.request.name
        for config in (CONFIG, ADAPTER_CONFIG):
            path = self.subfolder / config
            found = self.hub.try_to_load_from_cache(
                repo, str(path), cache_dir=self.cache, revision=revision
            )
            if isinstance(found, str):
                return Path(found).parents[len(path.parts) - 1]
        return None

    def _complete(self, folder: Path, weights: bool) -> bool:
        names = [path.name for path in folder.iterdir() if path.exists()]
        try:
            return not weights or self._weights(folder, names) is not None
        except DataError:
            return False

    def _weights(self, folder: Path, names: Collection[str]) -> list[str] | None:
        try:
            return weight_files(names, lambda name: read_object(folder, name))
        except DataError as error:
            raise DataError(f"{self.request}: {error}") from error

    def _get(self, names: list[str], files: Mapping[str, Any], commit: str) -> Path:
        """Downloads files that are not in the cache; returns the folder of the commit."""
        repo, cache = self.request.name.repo, self.cache
        at_commit = {"cache_dir": cache, "revision": commit}
        paths = {name: str(self.subfolder / name) for name in names}
        new = [
            name
            for name, path in paths.items()
            if not isinstance(self.hub.try_to_load_from_cache(repo, path, **at_commit), str)
        ]
        known = self._cached_snapshot()
        if not new and known is not None and known.name == commit:
            return known / self.subfolder
        folder = Path(
            self._with_retries(
                self.hub.snapshot_download,
                repo,
                # The branch name, so that the cache records its commit for use without a network.
                revision=self.request.name.revision,
                cache_dir=cache,
                token=self.token,
                library_name="jaxformer",
                allow_patterns=[glob.escape(path) for path in paths.values()],
            )
        )
        if folder.name != commit:
            raise ConfigError(f"{self.request}: it changed during the download; run the same again")
        folder /= self.subfolder
        for name in new:
            self._check(folder / name, files[name])
        return folder

    def _check(self, path: Path, expected: Any) -> None:
        """Removes a file from the cache and raises DataError if it differs from the hub's."""
        if not path.exists():
            raise DataError(f"{self.request}: {path.name} was not downloaded; run the same again")
        size = path.stat().st_size
        if expected.size not in (None, size):
            wrong = f"has {size:,} bytes, not {expected.size:,}"
        else:
            kind, found, hash_ = "sha256", None, None
            if expected.lfs is not None:
                found, hash_ = sha256_of(path), expected.lfs.sha256
            elif expected.blob_id is not None:
                kind, hash_ = "git hash", expected.blob_id
                found = self.hub.utils.sha.git_hash(path.read_bytes())
            if found == hash_:
                return
            wrong = f"has the {kind} {found}, not {hash_}"
        _remove(path)
        raise DataError(
            f"{self.request}: {path.name} is damaged: the downloaded file {wrong}; it was removed "
            "from the cache: run the same again"
        )


def _remove(path: Path) -> None:
    """Removes a file of a snapshot and the files that it links to."""
    while path.is_symlink():
        target = path.parent / os.readlink(path)
        path.unlink()
        path = target
    path.unlink(missing_ok=True)
