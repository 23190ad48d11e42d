"""The folder of a model that a user names: one on this machine, or one of the hub's cache."""

import os
from functools import partial
from pathlib import Path

from jaxformer.errors import ConfigError, shortened
from jaxformer.hub.peft.files import is_adapter
from jaxformer.hub.remote.download import fetch
from jaxformer.hub.remote.names import hub_name
from jaxformer.hub.remote.stores import remote_model
from jaxformer.io.paths import AnyPath, folder_path, is_remote
from jaxformer.zoo.folders import read_folder


def model_folder(
    model: str | Path,
    field: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
    architecture: str | None = None,
) -> AnyPath:
    """Returns the folder of a model; a model of the hub is downloaded to its cache.

    A folder on this machine comes first. Where there is none, "org/name" and "org/name@revision"
    are names of the hub; a `Path`, or what begins with a dot or a slash, never is. Of gs:// and
    s3:// URLs, a model's files are copied to this machine; a run is read where it is.

    Args:
        model: The folder of a run, of one of its checkpoints, of a Hugging Face checkpoint or of an
            adapter of PEFT; or the name of a model on the hub.
        field: What the user calls it, for messages: "init_from".
        revision: A branch, tag or commit of the hub; None: that in the name, or main.
        token: Who asks the hub; None: HF_TOKEN, or that of `hf auth login`.
        cache_dir: The hub's cache; None: that of HF_HOME.
        weights: Whether the weights are needed, besides the configuration and the tokenizer.
        architecture: The class that the model is to be; None: the one that it names.

    Returns:
        The folder, which exists.

    Raises:
        ConfigError: There is no such folder and no such model on the hub, it may not be read, or
            its system is not known.
        DataError: A file did not arrive as it is on the hub.
    """
    folder = folder_path(model, field)
    check = partial(_check_known, architecture=architecture)
    if is_remote(folder):
        return remote_model(folder, field, weights, check)
    named = None if os.path.isdir(folder) else hub_name(model)
    if named is None:
        if not os.path.isdir(folder):
            raise ConfigError(
                f"{field} = {shortened(model)}: must be the folder of a run or of a Hugging Face "
                f"checkpoint, or the name of a model on the hub; looked from {Path.cwd()}"
            )
        if revision is not None:
            raise ConfigError(
                f"revision = {revision!r}: must be None for {folder}, a folder on this machine"
            )
        return folder
    if revision is not None:
        if named.revision not in (None, revision):
            raise ConfigError(f"revision = {revision!r}: {model} names another one; leave one out")
        named = hub_name(f"{named.repo}@{revision}")
        if named is None:
            raise ConfigError(f"revision = {revision!r}: must be a branch, a tag or a commit")
    return fetch(named, field, token=token, cache_dir=cache_dir, weights=weights, check=check)


def _check_known(folder: Path, architecture: str | None) -> None:
    """Checks that a model can be read, before its weights are downloaded."""
    if not is_adapter(folder):
        read_folder(folder, architecture=architecture)
