"""The names of models on the hub, and of the folders in its cache."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from jaxformer.io.model_files import read_object

SOURCE = "source.json"
"""The file of a run's imported folder that names the model on the hub that it came from."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[\w.-]*\w)?(?:/[A-Za-z0-9_](?:[\w.-]*\w)?)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[\w./+-]+", re.ASCII)
_LONGEST = 96


class HubName(NamedTuple):
    """The name of a model on the hub, as users write it: org/name, or org/name@revision."""

    repo: str
    """org/name; a few old models have no organization."""
    revision: str | None = None
    """A branch, a tag or a commit; None: the branch main."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, whose files never change."""
        return self.revision is not None and bool(_COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(text: object) -> HubName | None:
    """Reads the name of a model on the hub; returns None if a text cannot be one.

    A text that begins with a dot, a slash or a tilde, or has two slashes, is the path of a folder;
    so is any `Path`.
    """
    if not isinstance(text, str):
        return None
    repo, at, revision = text.partition("@")
    fits = _NAME.fullmatch(repo) and len(repo) <= _LONGEST
    if not fits or "--" in repo or ".." in repo or repo.endswith(".git"):
        return None
    if at and not (_REVISION.fullmatch(revision) and ".." not in revision):
        return None
    return HubName(repo, revision if at else None)


def source_of(folder: Path) -> HubName | None:
    """Returns the model and the commit whose files a folder of the hub's cache holds."""
    repo, commit = folder.parent.parent.name, folder.name
    if folder.parent.name != "snapshots" or not repo.startswith("models--"):
        return None
    found = hub_name(f"{repo.removeprefix('models--').replace('--', '/')}@{commit}")
    return found if found is not None and found.is_commit else None


def write_source(folder: Path, home: Path) -> None:
    """Stores the name and the commit of the model that a run starts from."""
    source = source_of(home)
    if source is not None:
        text = json.dumps({"repo": source.repo, "commit": source.revision})
        (folder / SOURCE).write_text(text + "\n", encoding="utf-8")


def read_source(folder: Path) -> HubName | None:
    """Returns the name that `write_source` kept; None if there is none."""
    kept = read_object(folder, SOURCE) or {}
    return hub_name(f"{kept.get('repo')}@{kept.get('commit')}") if kept else None
