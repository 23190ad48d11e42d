"""Uploads a model's folder to the hub."""

import os
from pathlib import Path
from typing import Any

from jaxformer.hub.remote.errors import HubRequest, explain_hub_errors, hub_library
from jaxformer.hub.remote.names import HubName
from jaxformer.hub.remote.selection import files_to_push, replaced_weight_files
from jaxformer.io.model_files import file_in, read_object


def upload(
    folder: Path, name: HubName, *, private: bool, message: str, token: str | None = None
) -> str:
    """Uploads the files of a Hugging Face checkpoint to the hub in one commit.

    The repository and the branch are created if they do not exist. Weights in other files are
    removed in the same commit, since readers might prefer them.
    """
    request = HubRequest("NAME", name, writes=True)
    hub = hub_library(str(request))
    found = (path for path in folder.rglob("*") if os.path.isfile(path))
    local = sorted(path.relative_to(folder).as_posix() for path in found)
    names = files_to_push(local, lambda index: read_object(folder, index))
    with explain_hub_errors(hub, request):
        api = hub.HfApi(token=token, library_name="jaxformer")
        repo = api.create_repo(name.repo, private=private or None, exist_ok=True).repo_id
        if name.revision is not None:
            api.create_branch(repo, branch=name.revision, exist_ok=True)
        there = api.list_repo_files(repo, revision=name.revision)
        operations: list[Any] = [
            hub.CommitOperationAdd(path_in_repo=each, path_or_fileobj=file_in(folder, each))
            for each in names
        ]
        operations += [
            hub.CommitOperationDelete(path_in_repo=each)
            for each in replaced_weight_files(there, names)
        ]
        api.create_commit(repo, operations, commit_message=message, revision=name.revision)
    page = f"{hub.constants.ENDPOINT}/{repo}"
    return page if name.revision is None else f"{page}/tree/{name.revision}"
