"""The pages of examples/*.py: each notebook is executed, and its outputs appear under its cells.

A notebook is text in jupytext's percent format. Its outputs are cached in build/notebooks
until it or the library changes. A failure is a warning: the page has the outputs until then.
"""

import base64
import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "notebooks"
# CPU time instead of wall time, so that a page does not fail on a slow or shared machine.
CPU_SECONDS = 1200
_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_CPU, ({0}, {0}))"
_log = logging.getLogger("mkdocs.hooks.notebooks")


def sources() -> list[Path]:
    """Returns the notebooks in order: examples/01_attention.py, ..."""
    return sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def pages() -> list[str]:
    """Returns the paths of their pages in the site."""
    return [f"examples/{source.stem}.md" for source in sources()]


def build() -> dict[str, str | bytes]:
    """Returns their pages and pictures by their paths in the site."""
    with ThreadPoolExecutor(2) as pool:
        executed = dict(zip(sources(), pool.map(execute, sources()), strict=True))
    found: dict[str, str | bytes] = {}
    for source, notebook in executed.items():
        found |= render(source.stem, notebook)
    return found


def execute(source: Path, cpu_seconds: int = CPU_SECONDS) -> nbformat.NotebookNode:
    """Returns a notebook with its outputs, executed if it or the library has changed.

    A notebook that fails has the outputs until then, and the error in `metadata.failure`.
    """
    files = [source, *sorted((ROOT / "jaxformer").rglob("*.py"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    kept = CACHE / f"{source.stem}-{digest}.ipynb"
    if kept.exists():
        return nbformat.reads(kept.read_text(encoding="utf-8"), as_version=4)
    notebook = jupytext.read(source)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=None,
        coalesce_streams=True,
        extra_arguments=[f"--IPKernelApp.exec_lines={_LIMIT.format(cpu_seconds)}"],
        resources={"metadata": {"path": ROOT}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        notebook.metadata.failure = f"{error.ename}: {error.evalue}".partition("\n")[0]
    except DeadKernelError:
        notebook.metadata.failure = f"its process ended; it may use {cpu_seconds} s of CPU time"
    else:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(nbformat.writes(notebook), encoding="utf-8")
        return notebook
    _log.warning(f"{source.name} did not run to its end: {notebook.metadata.failure}")
    return notebook


def render(name: str, notebook: nbformat.NotebookNode) -> dict[str, str | bytes]:
    """Returns the page of an executed notebook, and its pictures."""
    page, pictures = [], {}
    for cell in notebook.cells:
        if "script" in cell.metadata.get("tags", ()):  # for the script only
            continue
        if cell.cell_type == "markdown":
            page.append(cell.source)
            continue
        page.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:  # only printed text and pictures
            if "image/png" in output.get("data", {}):
                path = f"examples/{name}-{len(pictures) + 1}.png"
                pictures[path] = base64.b64decode(output.data["image/png"])
                page.append(f"![A picture that the code above draws]({Path(path).name})")
            elif output.get("name") == "stdout":
                page.append(f"```text\n{output.text.rstrip()}\n```")
    note = (
        f"*This page is `examples/{name}.py`, executed. Run it with `python examples/{name}.py`, "
        "which saves its pictures beside it.*"
    )
    if failure := notebook.metadata.get("failure"):
        note += f"\n\n**When this page was built it did not run to its end:** {failure}"
    page.insert(1, note)
    return {f"examples/{name}.md": "\n\n".join(page) + "\n", **pictures}
