"""Sources of documents: each yields named texts, always in the same order."""

import abc
import hashlib
import json
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.dataset import ExampleSource
from jaxformer.errors import DataError

_NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)


@dataclass(frozen=True)
class Document:
    """A text and its name.

    Attributes:
        name: Unique within its source and independent of where the source is on disk, because it
            determines the document's side of the validation split.
        text: The text itself, encodable as UTF-8.
    """

    name: str
    text: str


@dataclass(frozen=True)
class TextSource(abc.ABC):
    """A source of documents; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yields every document, in the same order each time.

        Raises:
            DataError: A file is missing or cannot be read as text.
        """

    def mixed(self) -> tuple["TextSource", ...]:
        """Returns the sources of a mixture, or this source alone."""
        return (self,)

    def mix(self, examples: Sequence[ExampleSource]) -> ExampleSource:
        """Returns the examples of training, given those of each source in `mixed`."""
        (own,) = examples
        return own

    def num_bytes(self) -> int | None:
        """Returns the approximate bytes of text, or None if the text would have to be read."""
        return None

    def fingerprint(self) -> str:
        """Returns a string that changes with the documents.

        The default reads everything; a source with a cheaper way overrides it.
        """
        digest = hashlib.sha256()
        for document in self.documents():
            digest.update(json.dumps([document.name, document.text]).encode())
        return digest.hexdigest()

    def former_fingerprint(self) -> str:
        """Returns the fingerprint by which runs of earlier versions find their tokens."""
        return self.fingerprint()


@dataclass(frozen=True)
class StandardLibrary(TextSource):
    """The text in every Python installation: the standard library and the language reference.

    The sources of the running interpreter's standard library (without its test suites, installed
    packages and build settings) and the language reference behind `help()`: about 12 MB of real
    text that needs no download.
    """

    max_bytes: int | None = None
    """The maximum number of bytes; stops before the document that would exceed it; None: all."""

    def __post_init__(self):
        check_fields(self, max_bytes=optional(at_least(1)))

    def documents(self) -> Iterator[Document]:
        """Yields the modules by path, then the topics of the language reference by name."""
        total = 0
        for document in self._everything():
            total += len(document.text.encode())
            if self.max_bytes is not None and total > self.max_bytes:
                return
            yield document

    def num_bytes(self):
        total = sum(path.stat().st_size for path in _modules())
        return total if self.max_bytes is None else min(total, self.max_bytes)

    def fingerprint(self) -> str:
        """Returns a digest of the Python version and the names and sizes of its files."""
        root = _library_root()
        files = [(path.relative_to(root).as_posix(), path.stat().st_size) for path in _modules()]
        return digest_of(["StandardLibrary", sys.version, self.max_bytes, files])

    def _everything(self) -> Iterator[Document]:
        root = _library_root()
        for path in _modules():
            # A few modules are wrongly encoded on purpose, as fixtures for the library's tools.
            try:
                with tokenize.open(path) as file:
                    text = file.read()
                text.encode()
            except (UnicodeError, SyntaxError, OSError):
                continue
            yield Document(path.relative_to(root).as_posix(), text)
        try:
            from pydoc_data.topics import topics
        except ImportError:  # minimal installations lack the reference
            return
        for name, text in sorted(topics.items()):
            yield Document(f"reference/{name}", text)


def _library_root() -> Path:
    return Path(sysconfig.get_path("stdlib") or Path(os.__file__).parent)


def _modules() -> list[Path]:
    """Returns the library's .py files, ordered by their path below its root."""
    root = _library_root()
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NOT_LIBRARY]
        found += [Path(folder, name) for name in files if _is_text_module(folder, name)]
    if not found:
        raise DataError(
            f"no .py files in {root}: this Python has its library in another form; give another "
            "source, such as TextFiles(path)"
        )
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _is_text_module(folder: str, name: str) -> bool:
    # _sysconfigdata holds one machine's compiler flags; the topics are separate documents.
    topics = name == "topics.py" and Path(folder).name == "pydoc_data"
    return name.endswith(".py") and not name.startswith("_sysconfigdata") and not topics


def digest_of(value: object) -> str:
    """Returns a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
