"""User-defined Python code: experiment files, and modules that define components.

A run whose configuration contains user-defined components records where to find them: a copy of the
experiment file if they are defined there, otherwise the folder that their module is imported from.
Opening such a run executes this code and logs a warning. A run that uses only library components
executes no user code.
"""

import ast
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.abc
import importlib.util
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.io.components import is_library, type_name
from jaxformer.io.paths import AnyPath
from jaxformer.io.staging import staged

KEPT_FILE = "experiment.py"
"""The copy of an experiment file that defines components, in a run's folder."""
_EXPERIMENT = "experiment@"
"""Prefix of the module name of an experiment, followed by a digest of its source."""
_LIBRARY = Path(__file__).parents[1]

_log = logging.getLogger(__name__)


class _Experiment(importlib.abc.SourceLoader):
    """Loads a module from source bytes that it keeps, so that the copy is the executed source."""

    def __init__(self, path: Path, source: bytes, folder: Path):
        self.path = path
        self.source = source
        self.folder = folder

    def get_filename(self, fullname):
        return str(self.path)

    def get_data(self, path):
        return self.source


def import_file(path: Path, folder: Path | None = None) -> ModuleType:
    """Imports an experiment file; files with the same source become the same module."""
    source = _text(path)
    name = _module_name(source)
    folder = folder or path.absolute().parent
    _append_to_path(folder)
    if name not in sys.modules:
        loader = _Experiment(path.absolute(), source, folder)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        sys.modules[name] = module
        try:
            with in_one_sentence(path):
                loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextlib.contextmanager
def in_one_sentence(path: Path) -> Iterator[None]:
    """Turns exceptions of user code into a one-sentence error with the file and line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = _place(error, path)
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.lineno:
            place = f"{error.filename}:{error.lineno}"
            text = f"{type(error).__name__}: {error.msg}"
        if isinstance(error, ArgumentError | DataError):
            text = str(error)
        raise ConfigError(f"{place}: {text}") from error


def origins(config: Any) -> dict[str, dict[str, str]]:
    """Returns the origins of the user-defined components of a configuration."""
    return {type_name(kind): _origin(kind) for kind in _user_classes(config)}


def experiment_text(config: Any) -> bytes | None:
    """Returns the source of the experiment file if it defines components of a configuration."""
    names = {kind.__module__ for kind in _user_classes(config)}
    loaders = [sys.modules[name].__loader__ for name in names if name.startswith(_EXPERIMENT)]
    if len(loaders) > 1:
        raise ConfigError(
            f"{' and '.join(str(loader.path) for loader in loaders)} both define components of "
            "this run, but a run can keep only one experiment file: define the components in a "
            "module that both import"
        )
    return loaders[0].source if loaders else None


def check_unchanged(config: Any, kept: AnyPath) -> None:
    """Checks that the components of an experiment are unchanged since the run was started."""
    now = experiment_text(config)
    if now is None or not kept.is_file() or kept.read_bytes() == now:
        return
    kinds = [kind for kind in _user_classes(config) if kind.__module__ == _module_name(now)]
    before = kept.read_bytes()
    with in_one_sentence(kept):
        changed = [
            kind.__qualname__
            for kind in kinds
            if _definition(before, kind.__qualname__) != _definition(now, kind.__qualname__)
        ]
    if changed:
        raise ConfigError(
            f"the code of {', '.join(changed)} differs from {kept}, with which this run was "
            "started, and a changed component makes a different run: name another folder with "
            "--run-dir, or, if it computes the same as before, copy the experiment file there"
        )


def find_user_class(name: str, known: Mapping[str, Mapping[str, str]], kept: AnyPath) -> Any:
    """Finds a user-defined class by name, which executes the code that defines it."""
    origin = known.get(name) if isinstance(known, Mapping) else None
    if not isinstance(origin, Mapping) or not all(isinstance(x, str) for x in origin.values()):
        raise ConfigError(f"{name} is not a library class, and its origin is not recorded")
    folder = Path(origin.get("folder", ""))
    home = origin.get("module", kept.stem)
    is_kept = "module" not in origin
    module = _import_kept(kept, folder, name) if is_kept else _import(home, folder, name)
    found: Any = module
    for part in name.removeprefix(f"{home}.").split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"{module.__file__} does not define {name.removeprefix(f'{home}.')}")
    if "digest" in origin and isinstance(found, type) and origin["digest"] != _digest(found):
        _log.warning(
            "%s has changed since this run was started: see its code in %s", name, module.__file__
        )
    return found


def _import_kept(kept: AnyPath, folder: Path, name: str) -> ModuleType:
    if not kept.is_file():
        raise ConfigError(f"{kept}, which defines {name}, does not exist")
    if _module_name(_text(kept)) not in sys.modules:
        _log.warning("executing %s, which defines %s", kept, name)
    return import_file(staged(kept), folder)


def _import(home: str, folder: Path, name: str) -> ModuleType:
    _append_to_path(folder)
    if home not in sys.modules:
        _log.warning("importing %s (it was in %s), which defines %s", home, folder, name)
    try:
        with in_one_sentence(folder / home):
            return importlib.import_module(home)
    except ConfigError as error:
        raise ConfigError(
            f"the module {home}, which defines {name}, was in {folder} when this run was started "
            f"and cannot be imported: {error}"
        ) from error


def _user_classes(config: Any) -> list[type]:
    """Returns the distinct user-defined classes in a tree of dataclasses."""
    if isinstance(config, tuple | list):
        return list(dict.fromkeys(kind for item in config for kind in _user_classes(item)))
    if not dataclasses.is_dataclass(config):
        return []
    kind = type(config)
    own = [] if is_library(kind.__module__) else [kind]
    values = [getattr(config, field.name) for field in dataclasses.fields(config) if field.init]
    return list(dict.fromkeys(own + _user_classes(values)))


def _origin(kind: type) -> dict[str, str]:
    name = kind.__qualname__
    module = sys.modules[kind.__module__]
    if "<locals>" in name or kind.__module__ == "__main__" or not hasattr(module, "__file__"):
        place = "in a function" if "<locals>" in name else f"in {kind.__module__}"
        raise ConfigError(
            f"{name.rpartition('.')[2]} is defined {place}, where it cannot be found when the run "
            "is opened again: define it at the top level of the experiment file or of a module"
        )
    if isinstance(module.__loader__, _Experiment):
        return {"folder": str(module.__loader__.folder)}
    is_package = hasattr(module, "__path__")
    root = Path(module.__file__).absolute().parents[kind.__module__.count(".") + is_package]
    return {"module": kind.__module__, "folder": str(root), "digest": _digest(kind)}


def _digest(kind: type) -> str:
    """Returns a digest of the code of a class and its user-defined base classes."""
    own = [
        (base.__qualname__, Path(sys.modules[base.__module__].__file__))
        for base in kind.__mro__
        if not is_library(base.__module__)
        and base.__module__.partition(".")[0] not in sys.stdlib_module_names
    ]
    with in_one_sentence(own[0][1]):
        text = "\n".join(_definition(_text(file), name) for name, file in own)
    return hashlib.sha256(text.encode()).hexdigest()


def _definition(source: bytes, name: str) -> str:
    """Returns the code of a class and of all names that it refers to, without comments."""
    statements: dict[str, list[ast.stmt]] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [item for item in node.body if not _is_docstring(item)]
    for node in tree.body:
        for bound in _bound(node):
            statements.setdefault(bound, []).append(node)
    wanted, found = [name.partition(".")[0]], {}
    while wanted:
        word = wanted.pop()
        if word in statements and word not in found:
            found[word] = "\n".join(ast.unparse(node) for node in statements[word])
            parts = [part for node in statements[word] for part in ast.walk(node)]
            wanted += [part.id for part in parts if isinstance(part, ast.Name)]
    return "\n".join(found[word] for word in sorted(found))


def _bound(statement: ast.stmt) -> set[str]:
    """Returns the names that a top-level statement binds."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _place(error: BaseException, path: Path) -> str:
    """Returns FILE:LINE of the last frame in user code, or the file."""
    file, own = path.absolute(), [f"{path}"]
    for call in traceback.extract_tb(error.__traceback__):
        name = Path(call.filename)
        foreign = _LIBRARY in name.parents or "site-packages" in name.parts
        if file.parent in name.parents and not foreign:
            own.append(f"{path if name == file else name}:{call.lineno}")
    return own[-1]


def _module_name(source: bytes) -> str:
    return f"{_EXPERIMENT}{hashlib.sha256(source).hexdigest()[:16]}"


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _append_to_path(folder: Path) -> None:
    """Appends a folder to the import path."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
