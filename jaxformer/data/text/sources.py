"""Sources of documents: each yields named texts, always in the same order."""

import abc
import glob
import hashlib
import json
import os
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file, read_bytes
from jaxformer.io.json_files import json_type, parse_json

_NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)


@dataclass(frozen=True)
class Document:
    """One text and the name it goes by.

    Attributes:
        name: Unique within its source and independent of where the source is on disk, because it
            decides the document's side of the validation split.
        text: The text itself, encodable as UTF-8.
    """

    name: str
    text: str


@dataclass(frozen=True)
class TextSource(abc.ABC):
    """A place that documents come from; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yields every document, in the same order each time.

        Raises:
            DataError: A file is missing or cannot be read as text.
        """

    def parts(self) -> list[Callable[[], Iterator[Document]]]:
        """Returns functions that yield the documents of one piece each, such as one file.

        One after the other they give what `documents` gives. Each can be pickled, so that several
        processes can read at once. The default is one part.

        Raises:
            DataError: There are no files.
        """
        return [self.documents]

    def fingerprint(self) -> str:
        """Returns a string that changes when the documents do.

        The default reads everything; a source with a cheaper way overrides it.
        """
        digest = hashlib.sha256()
        for document in self.documents():
            digest.update(json.dumps([document.name, document.text]).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class StandardLibrary(TextSource):
    """The text in every Python installation: the standard library and the language reference.

    The sources of the running interpreter's standard library (without its test suites, installed
    packages and build settings) and the language reference behind `help()`: about 12 MB of real
    text that needs no download.
    """

    max_bytes: int | None = None
    """Stop before the document that would exceed this many bytes; None takes everything."""

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

    def fingerprint(self) -> str:
        """Returns a digest of the Python version and the names and sizes of its files."""
        root = _library_root()
        files = [(path.relative_to(root).as_posix(), path.stat().st_size) for path in _modules()]
        return _digest(["StandardLibrary", sys.version, self.max_bytes, files])

    def _everything(self) -> Iterator[Document]:
        root = _library_root()
        for path in _modules():
            # A few modules are encoded wrongly on purpose, as fixtures for the library's own tools.
            try:
                with tokenize.open(path) as file:
                    text = file.read()
                text.encode()
            except (UnicodeError, SyntaxError, OSError):
                continue
            yield Document(path.relative_to(root).as_posix(), text)
        try:
            from pydoc_data.topics import topics
        except ImportError:  # minimal installations leave the reference out
            return
        for name, text in sorted(topics.items()):
            yield Document(f"reference/{name}", text)


@dataclass(frozen=True)
class TextFiles(TextSource):
    """UTF-8 text files, one document each: a file, a folder or a glob."""

    path: str
    """A file, a folder (searched recursively), or a glob such as "books/**/*.txt"."""

    pattern: str = "*.txt"
    """Which files of a folder to take; has no effect on a file or a glob."""

    def documents(self) -> Iterator[Document]:
        """Yields the files ordered by their path below `path`."""
        for name, path in _find(self.path, self.pattern):
            yield Document(name, _read_text(path))

    def fingerprint(self) -> str:
        """Returns a digest of the files' names, sizes and modification times."""
        return _digest(["TextFiles", *_stamps(self.path, self.pattern)])


@dataclass(frozen=True)
class JsonLines(TextSource):
    """JSON lines: each line an object that holds one document's text in a field."""

    path: str
    """A file, a folder (searched recursively for `pattern`), or a glob."""

    field: str = "text"
    """The key under which a line holds its text."""

    pattern: str = "*.jsonl"
    """Which files of a folder to take; has no effect on a file or a glob."""

    def documents(self) -> Iterator[Document]:
        """Yields the lines of each file in order, named "file:line"; blank lines are skipped.

        Raises:
            DataError: A line is not a JSON object with a string under `field`; names the file,
                the line and what is wrong.
        """
        for name, path in _find(self.path, self.pattern):
            for number, line in enumerate(_lines(path), start=1):
                if line := line.strip():
                    yield Document(f"{name}:{number}", self._text(line, f"{path}:{number}"))

    def fingerprint(self) -> str:
        """Returns a digest of the field and the files' names, sizes and modification times."""
        return _digest(["JsonLines", self.field, *_stamps(self.path, self.pattern)])

    def _text(self, line: bytes, where: str) -> str:
        record = parse_json(line, where)
        if self.field not in record:
            held = ", ".join(map(repr, record)) or "none"
            raise DataError(f"{where}: no field {self.field!r}; the fields are: {held}")
        text = record[self.field]
        if not isinstance(text, str):
            raise DataError(
                f"{where}: field {self.field!r} holds {json_type(type(text))}, not a string"
            )
        return encodable(text, f"{where}: field {self.field!r}")


def encodable(text: str, what: str) -> str:
    """Returns a text that UTF-8 can hold.

    Args:
        text: The text.
        what: What it is, for the message.

    Raises:
        DataError: It holds half of a surrogate pair, which JSON can write.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} holds half of a surrogate pair at character {error.start}, which no UTF-8 "
            "text can contain"
        ) from error
    return text


def _library_root() -> Path:
    return Path(sysconfig.get_path("stdlib") or Path(os.__file__).parent)


def _modules() -> list[Path]:
    """Returns the library's own .py files, ordered by their path below its root."""
    root = _library_root()
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _NOT_LIBRARY]
        found += [Path(folder, name) for name in files if _is_text_module(folder, name)]
    if not found:
        raise DataError(
            f"no .py files in {root}: this Python carries its library in another form; "
            "give a source of your own, such as TextFiles(path)"
        )
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _is_text_module(folder: str, name: str) -> bool:
    # _sysconfigdata holds one machine's compiler flags. The topics come as documents of their own.
    topics = name == "topics.py" and Path(folder).name == "pydoc_data"
    return name.endswith(".py") and not name.startswith("_sysconfigdata") and not topics


def _find(path: str, pattern: str) -> list[tuple[str, Path]]:
    """Returns (name below the root, file) for a file, a folder or a glob, ordered by name."""
    root = Path(os.path.expanduser(path))
    if os.path.isdir(root):
        files = list(root.rglob(pattern))
        wanted = f"no file matches {pattern!r} in the folder {path}: change the pattern"
    elif glob.has_magic(path) and not os.path.exists(root):
        files = [Path(match) for match in glob.glob(str(root), recursive=True)]
        wanted = f"no file matches {path}"
        root = _fixed_part(root)
    else:
        return [(root.name, ordinary_file(root))]
    named = sorted((file.relative_to(root).as_posix(), file) for file in files if file.is_file())
    if not named:
        raise DataError(wanted)
    return named


def _fixed_part(path: Path) -> Path:
    """Returns the leading folders of a glob that hold no wildcard."""
    while glob.has_magic(str(path)):
        path = path.parent
    return path


def _read_text(path: Path) -> str:
    # Every byte of zeros is valid UTF-8, and none is text.
    remedy = "convert the file, or leave it out with `pattern`"
    content = read_bytes(path)
    if (place := content.find(b"\0")) >= 0:
        raise DataError(f"{path}: not text: byte {place} is null; {remedy}")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; {remedy}") from error


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(ordinary_file(path), "rb") as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def _stamps(path: str, pattern: str) -> list[tuple[str, int, int]]:
    stats = [(name, file.stat()) for name, file in _find(path, pattern)]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
