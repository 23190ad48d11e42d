"""The names of models on the hub, and of the folders in its cache."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from jaxformer.io.model_files import read_object

SOURCE = "source.json"
"""The file in a run's imported folder with the hub name of the original model."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[\w.-]*\w)?(?:/[A-Za-z0-9_](?:[\w.-]*\w)?)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[\w./+-]+", re.ASCII)
_LONGEST = 96


class HubName(NamedTuple):
    """The name of a model on the hub as entered by users: org/name, or org/name@revision."""

    repo: str
    """org/name; a few old models have no organization."""
    revision: str | None = None
    """A branch, tag or commit; None is the branch main."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, whose files never change."""
        return self.revision is not None and bool(_COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(text: object) -> HubName | None:
    """Parses the name of a model on the hub; returns None for anything else.

    A string that begins with a dot, a slash or a tilde, or has two slashes, is a folder path; so is
    any `Path`.
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
    """Returns the model and commit of a folder in the hub's cache."""
    repo, commit = folder.parent.parent.name, folder.name
    if folder.parent.name != "snapshots" or not repo.startswith("models--"):
        return None
    found = hub_name(f"{repo.removeprefix('models--').replace('--', '/')}@{commit}")
    return found if found is not None and found.is_commit else None


def write_source(folder: Path, home: Path) -> None:
    """Stores the name and commit of a run's original model."""
    source = source_of(home)
    if source is not None:
        text = json.dumps({"repo": source.repo, "commit": source.revision})
        (folder / SOURCE).write_text(text + "\n", encoding="utf-8")


def read_source(folder: Path) -> HubName | None:
    """Returns the name that `write_source` stored, or None."""
    kept = read_object(folder, SOURCE) or {}
    return hub_name(f"{kept.get('repo')}@{kept.get('commit')}") if kept else None
