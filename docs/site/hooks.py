"""Pages of the site from outside docs/: pages of the repository, the reference, the zoo."""

import posixpath
import re
from pathlib import Path

import mathjax
import notebooks
import reference
import tables
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Files of the repository that are pages of the site.
ORIGINS = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
}
# All of MathJax in one file, with its fonts, so that pages work without a network.
MATHJAX = "mathjax/tex-svg-full.js"
# Words of a title count a thousand times; words of a guide's text count more than that.
BOOST_OF_GUIDES = 1e4
_PROJECT = ("architecture.md", "testing.md", "reliability.md", "parity.md", "zoo.md")
BOOST = dict.fromkeys((*_PROJECT, "examples/"), 100.0)
BOOST |= {"api/": 1.0, "benchmarks.md": 0.1, "changelog.md": 0.1}
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_NO_LANGUAGE = re.compile(r"\A```$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the guides, examples and reference pages to the navigation."""
    sections = {title: section for entry in config.nav for title, section in _section(entry)}
    listed = set(_pages(config.nav))
    guides = {path.name for path in (ROOT / "docs").glob("*.md")} - listed
    sections["Guides"].extend(sorted(guides))
    sections["Examples"].extend(notebooks.pages())
    sections["API reference"].extend(reference.navigation())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and the files that pages of the repository link to."""
    made: dict[str, str | bytes] = {
        page: (ROOT / origin).read_text(encoding="utf-8") for page, origin in ORIGINS.items()
    }
    made |= reference.pages() | tables.pages() | notebooks.build()
    made |= {
        f"examples/{path.name}": path.read_text(encoding="utf-8")
        for path in (ROOT / "examples").glob("*.py")
        if path not in notebooks.sources()
    }
    made |= {
        f"results/{path.name}": path.read_bytes()
        for path in (ROOT / "benchmarks" / "results").glob("*.json")
    }
    made[MATHJAX] = mathjax_source().read_bytes()
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between pages.

    Blocks without a language become shell blocks.
    """
    source = page.file.src_uri
    page.meta.setdefault("search", {"boost": boost(source)})
    origin = ORIGINS.get(source) or (f"docs/{source}" if page.file.generated_by is None else None)
    if origin is None:
        return markdown

    def linked(found: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[1]))
        return posixpath.relpath(site_path(target), posixpath.dirname(source) or ".")

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(linked, part) for part in parts[::2]]
    parts[1::2] = [_NO_LANGUAGE.sub("```sh", part) for part in parts[1::2]]
    return "".join(parts)


def on_page_content(html: str, **kwargs) -> str:
    """Removes the copy button from outputs, which are blocks of text."""
    return html.replace('"language-text highlight"', '"language-text highlight no-copy"')


def mathjax_source() -> Path:
    """Returns the original of `MATHJAX`, in its Python package."""
    return Path(mathjax.__path__[0], "static", "mathjax", "es5", Path(MATHJAX).name)


def boost(page: str) -> float:
    """Returns the weight of a page's words in a search."""
    return next((BOOST[kind] for kind in BOOST if page.startswith(kind)), BOOST_OF_GUIDES)


def site_path(path: str) -> str:
    """Returns the path in the site of a file of the repository."""
    pages = {origin: page for page, origin in ORIGINS.items()}
    if path.startswith("examples/"):
        page = path.replace(".py", ".md")
        return page if page in notebooks.pages() else path
    return pages.get(path) or path.removeprefix("docs/").removeprefix("benchmarks/")


def _section(entry) -> list[tuple[str, list]]:
    return (
        [(t, s) for t, s in entry.items() if isinstance(s, list)] if isinstance(entry, dict) else []
    )


def _pages(nav) -> list[str]:
    """Returns every page that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _pages(part)]
