"""The pages of the API reference: one for each package, made from the docstrings."""

import ast
import importlib
import itertools
import re
import types
from collections.abc import Iterator
from pathlib import Path

from equations import markdown

import jaxformer

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jaxformer"
# In the order in which packages import each other; others follow.
ORDER = ("functional", "nn", "models", "optim", "data", "distributed", "hub", "zoo", "config",
         "checkpoints", "pretrained", "generation", "training", "parity", "doctor", "lab", "cli",
         "io")  # fmt: skip


def pages() -> dict[str, str]:
    """Returns the Markdown of every page of the reference by its path in the site."""
    found = {"api/index.md": _front()}
    for folder in packages():
        found[path_of(folder)] = _page(folder)
    return found


def navigation() -> list:
    """Returns the entries of the navigation: the packages, with their inner packages."""
    entries: list = ["api/index.md"]
    for folder in packages():
        name, depth = dotted(folder), len(folder.relative_to(PACKAGE).parts)
        if depth == 1:
            inner = [other for other in packages() if folder in other.parents]
            entries.append({name: [path_of(folder), *({dotted(o): path_of(o)} for o in inner)]})
    return entries


def packages() -> list[Path]:
    """Returns the folders of the packages."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}

    def place(folder: Path) -> tuple:
        first = folder.relative_to(PACKAGE).parts[0]
        return (ORDER.index(first) if first in ORDER else len(ORDER), folder)

    return sorted(folders, key=place)


def dotted(path: Path) -> str:
    """`functional.masks` for jaxformer/functional/masks.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def path_of(folder: Path) -> str:
    """The path of a package's page in the site."""
    return f"api/{dotted(folder)}.md"


def _front() -> str:
    """The page of `jaxformer` itself: the public functions, and a list of the packages."""
    lines = ["# API reference", "", "## Packages", "", "| package | contents |", "| --- | --- |"]
    for folder in packages():
        text = sentence(importlib.import_module(f"jaxformer.{dotted(folder)}").__doc__)
        lines.append(f"| [jaxformer.{dotted(folder)}]({dotted(folder)}.md) | {text} |")
    lines += ["", *_contents("jaxformer", members="false"), *_exports(jaxformer), ""]
    for path in sorted(PACKAGE.glob("[a-z]*.py")):
        lines += _contents(f"jaxformer.{path.stem}")
    return "\n".join(lines) + "\n"


def _page(folder: Path) -> str:
    name = f"jaxformer.{dotted(folder)}"
    package = importlib.import_module(name)
    lines = [f"# {name}", "", package.__doc__.strip(), ""]
    exports = list(_exports(package))
    if exports:
        lines += [f"Import these from `{name}`:", "", *exports, ""]
    for path in sorted(folder.glob("*.py")):
        if path.stem == "__init__" and _defines_something(package, exports):
            lines += _contents(name, show_submodules="false")
        elif not path.stem.startswith("_"):
            lines += _contents(f"jaxformer.{dotted(path)}")
    return "\n".join(lines)


def _contents(module: str, **options: str) -> list[str]:
    """The directive of mkdocstrings that shows a module, under a heading with its path."""
    options = {"heading_level": "2", "show_root_full_path": "true"} | options
    listed = (f"      {option}: {value}" for option, value in options.items())
    return [f"::: {module}", "    options:", *listed, ""]


def _exports(package) -> Iterator[str]:
    """A table of what a package exports from its modules, with links."""
    names = [name for name in getattr(package, "__all__", ()) if name != "__version__"]
    rows = []
    for name in names:
        member = getattr(package, name)
        if hasattr(member, "__qualname__") and not isinstance(member, types.GenericAlias):
            path, text = f"{member.__module__}.{member.__qualname__}", member.__doc__
        else:
            path, text = _constant(package, name)
        rows.append(f"| [`{name}`][{path}] | {sentence(text)} |")
    if rows:
        yield from ("| name | |", "| --- | --- |", *rows)


def _constant(package, name: str) -> tuple[str, str]:
    """The path of a constant or type alias, and the docstring below its definition."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _constant(importlib.import_module(node.module), name)
    for node, following in itertools.pairwise(tree.body):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if name in [ast.unparse(target) for target in targets]:
            docstring = getattr(following, "value", None)
            if isinstance(docstring, ast.Constant):
                return f"{package.__name__}.{name}", docstring.value
    raise LookupError(f"{package.__name__}.{name}: no docstring follows its definition")


def _defines_something(package, exports: list[str]) -> bool:
    ours = (
        getattr(member, "__module__", None) == package.__name__
        for name, member in vars(package).items()
        if not name.startswith("_")
    )
    constants = (f"][{package.__name__}.{name}]" for name in getattr(package, "__all__", ()))
    return any(ours) or any(constant in row for constant in constants for row in exports)


def sentence(docstring: str | None) -> str:
    """Returns the first sentence of a docstring, for a cell of a table."""
    paragraph = " ".join(markdown(docstring or "").partition("\n\n")[0].split())
    parts = re.split("(`[^`]+`)", paragraph.partition(". ")[0].rstrip(".:"))
    return "".join([part if part[:1] == "`" else part.replace("|", r"\|") for part in parts]) + "."
