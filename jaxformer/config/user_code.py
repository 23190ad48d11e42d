"""The user's Python: experiment files, and modules that define components.

A run whose configuration has such components keeps what is needed to find them again: a copy of the
experiment's file if they are defined there, else the folder that their module is imported from.
Opening that run executes the code, and a warning says so. A run of the library's own components
executes nothing.
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
"""The copy of the experiment's file in a run's folder, where that defines components."""
_EXPERIMENT = "experiment@"
"""An experiment's module is named so, and by a digest of its text."""
_LIBRARY = Path(__file__).parents[1]

_log = logging.getLogger(__name__)


class _Experiment(importlib.abc.SourceLoader):
    """Loads a module from a text that is kept: what was executed is what is copied."""

    def __init__(self, path: Path, source: bytes, folder: Path):
        self.path, self.source, self.folder = path, source, folder

    def get_filename(self, fullname):
        return str(self.path)

    def get_data(self, path):
        return self.source


def import_file(path: Path, folder: Path | None = None) -> ModuleType:
    """Imports an experiment's file; the same text is the same module, wherever it is kept."""
    source = _text(path)
    name, folder = _module_name(source), folder or path.absolute().parent
    _search(folder)
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
    """Turns what the user's code raises into one sentence that says where."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place, text = _place(error, path), f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.lineno:
            place, text = f"{error.filename}:{error.lineno}", f"{type(error).__name__}: {error.msg}"
        if isinstance(error, ArgumentError | DataError):
            text = str(error)
        raise ConfigError(f"{place}: {text}") from error


def origins(config: Any) -> dict[str, dict[str, str]]:
    """Says where those components of a configuration come from that are not the library's."""
    return {type_name(kind): _origin(kind) for kind in _own_classes(config)}


def experiment_text(config: Any) -> bytes | None:
    """The text of the experiment's file, if that defines components of a configuration."""
    names = {kind.__module__ for kind in _own_classes(config)}
    loaders = [sys.modules[name].__loader__ for name in names if name.startswith(_EXPERIMENT)]
    if len(loaders) > 1:
        raise ConfigError(
            f"{' and '.join(str(loader.path) for loader in loaders)} both define components of "
            "this run, which can keep one of them: define the components in a module that both "
            "import"
        )
    return loaders[0].source if loaders else None


def check_unchanged(config: Any, kept: AnyPath) -> None:
    """Checks that an experiment defines its components as it did when a run was started."""
    now = experiment_text(config)
    if now is None or not kept.is_file() or kept.read_bytes() == now:
        return
    kinds = [kind for kind in _own_classes(config) if kind.__module__ == _module_name(now)]
    before = kept.read_bytes()
    with in_one_sentence(kept):
        changed = [
            kind.__qualname__
            for kind in kinds
            if _definition(before, kind.__qualname__) != _definition(now, kind.__qualname__)
        ]
    if changed:
        raise ConfigError(
            f"the code of {', '.join(changed)} is not that of {kept}, with which this run was "
            "started, and a changed component makes another run: name another folder with "
            "--run-dir, or, if it computes the same as before, copy the experiment's file there"
        )


def find_own(name: str, known: Mapping[str, Mapping[str, str]], kept: AnyPath) -> Any:
    """Finds a class that is not the library's, which executes the code that defines it."""
    origin = known.get(name) if isinstance(known, Mapping) else None
    if not isinstance(origin, Mapping) or not all(isinstance(x, str) for x in origin.values()):
        raise ConfigError(f"{name} is not of the library, and nothing says where it comes from")
    folder, home = Path(origin.get("folder", "")), origin.get("module", kept.stem)
    is_kept = "module" not in origin
    module = _import_kept(kept, folder, name) if is_kept else _import(home, folder, name)
    found: Any = module
    for part in name.removeprefix(f"{home}.").split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"{module.__file__} does not define {name.removeprefix(f'{home}.')}")
    if "digest" in origin and isinstance(found, type) and origin["digest"] != _digest(found):
        _log.warning(
            "%s is not what it was when this run was started: its code in %s has changed",
            name,
            module.__file__,
        )
    return found


def _import_kept(kept: AnyPath, folder: Path, name: str) -> ModuleType:
    if not kept.is_file():
        raise ConfigError(f"{kept}, which defines {name}, does not exist")
    if _module_name(_text(kept)) not in sys.modules:
        _log.warning("executing %s, which defines %s", kept, name)
    return import_file(staged(kept), folder)


def _import(home: str, folder: Path, name: str) -> ModuleType:
    _search(folder)
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


def _own_classes(config: Any) -> list[type]:
    """The classes of a tree of dataclasses that are not the library's, each once."""
    if isinstance(config, tuple | list):
        return list(dict.fromkeys(kind for item in config for kind in _own_classes(item)))
    if not dataclasses.is_dataclass(config):
        return []
    kind = type(config)
    own = [] if is_library(kind.__module__) else [kind]
    values = [getattr(config, field.name) for field in dataclasses.fields(config) if field.init]
    return list(dict.fromkeys(own + _own_classes(values)))


def _origin(kind: type) -> dict[str, str]:
    name, module = kind.__qualname__, sys.modules[kind.__module__]
    if "<locals>" in name or kind.__module__ == "__main__" or not hasattr(module, "__file__"):
        place = "in a function" if "<locals>" in name else f"in {kind.__module__}"
        raise ConfigError(
            f"{name.rpartition('.')[2]} is defined {place}, where it is not found when the run is "
            "opened again: define it at the top of the experiment's file or in a module"
        )
    if isinstance(module.__loader__, _Experiment):
        return {"folder": str(module.__loader__.folder)}
    is_package = hasattr(module, "__path__")
    root = Path(module.__file__).absolute().parents[kind.__module__.count(".") + is_package]
    return {"module": kind.__module__, "folder": str(root), "digest": _digest(kind)}


def _digest(kind: type) -> str:
    """A digest of the code of a class and of those of the user's that it derives from."""
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
    """The code that a class is made of, without comments: its own, and what that refers to."""
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
    """The names that a statement at the top of a module gives a meaning to."""
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
    """FILE:LINE of the last call in the user's code, or the file."""
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


def _search(folder: Path) -> None:
    """Lets modules be imported from a folder, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
