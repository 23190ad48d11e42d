"""The site: what the build makes of docstrings, links and notebooks; and that notebooks run."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
NOTEBOOKS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


@pytest.fixture
def on_site(monkeypatch):
    """The modules of the build can be imported, where what they need is installed."""
    for library in ("griffe", "mkdocs", "jupytext", "nbclient"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(SITE))


def test_equations_of_docstrings_become_markdown(on_site):
    from equations import markdown

    assert markdown("A map :math:`x^2`.") == r"A map \(x^2\)."
    one_line = "First.\n\n.. math:: a = b,\n          c = d\n\nwhere a is b."
    assert markdown(one_line) == "First.\n\n$$\na = b, c = d\n$$\n\nwhere a is b."
    aligned = "First.\n\n.. math::\n  a &= b \\\\\n  c &= d\n\nArgs:\n    x: X."
    assert r"\begin{aligned} a &= b \\ c &= d \end{aligned}" in markdown(aligned)
    assert markdown(aligned).endswith("$$\n\nArgs:\n    x: X.")
    assert markdown("Like this::\n\n    code") == "Like this:\n\n    code"


def test_no_equation_of_the_library_is_left_as_it_was(on_site):
    from equations import markdown

    for path in (ROOT / "jaxformer").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not any(word in markdown(text) for word in (".. math", ":math:")), path


def test_every_package_has_a_page_with_all_its_modules(on_site):
    import reference

    pages = reference.pages()
    shown = {
        line[4:] for page in pages.values() for line in page.splitlines() if line[:4] == "::: "
    }
    for path in (ROOT / "jaxformer").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not path.stem.startswith("_"):
            assert module in shown
    assert (
        "[`attention`][jaxformer.functional.attention.api.attention]" in pages["api/functional.md"]
    )


def test_the_reference_lists_all_that_is_public(on_site):
    import reference

    pages = reference.pages()
    packages = {"api/index.md": "jaxformer"} | {
        reference.path_of(folder): f"jaxformer.{reference.dotted(folder)}"
        for folder in reference.packages()
    }
    for page, name in packages.items():
        public = set(getattr(importlib.import_module(name), "__all__", ())) - {"__version__"}
        rows = re.findall(r"^\| \[`(\w+)`\]\[[\w.]+\] \| \S.+ \|$", pages[page], re.MULTILINE)
        assert set(rows) == public, name


def test_a_search_finds_guides_first(on_site):
    import hooks

    pages = ("finetuning.md", "examples/05_fine_tuning.md", "api/models.md", "changelog.md")
    guide, example, reference, changes = map(hooks.boost, pages)
    assert guide > 1000 * reference  # a title's words count a thousand times those of a text
    assert guide > example > reference > changes


def test_a_page_needs_no_network(on_site):
    import hooks
    import yaml
    from mkdocs.utils.yaml import get_yaml_loader

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = yaml.load(text, get_yaml_loader())
    scripts = [*config["extra_javascript"], *config["extra_css"]]
    assert hooks.MATHJAX in scripts
    assert not any("//" in script for script in scripts)
    assert config["theme"]["font"] is False
    assert hooks.mathjax_source().stat().st_size > 1e6


def test_outputs_have_no_copy_button(on_site):
    import hooks

    html = '<div class="language-{} highlight"><pre>'
    assert "no-copy" in hooks.on_page_content(html.format("text"))
    assert "no-copy" not in hooks.on_page_content(html.format("sh"))


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("while True: pass", "4 s of CPU time")],
)
@pytest.mark.quick("1 / 0-*")
def test_a_notebook_that_fails_is_a_warning_and_a_page(cell, sentence, on_site, tmp_path, caplog):
    import notebooks

    source = tmp_path / "01_name.py"
    source.write_text(f"# %% [markdown]\n# # Title\n# %%\nprint(2)\n# %%\n{cell}\n")
    page = notebooks.render("01_name", notebooks.execute(source, cpu_seconds=4))
    assert sentence in caplog.text
    assert caplog.records[-1].name.startswith("mkdocs.")  # so that mkdocs counts it
    assert sentence in page["examples/01_name.md"]
    assert "```text\n2\n```" in page["examples/01_name.md"]
    assert not list(notebooks.CACHE.glob("01_name-*"))


def test_links_between_files_become_links_between_pages(on_site):
    import hooks

    assert hooks.site_path("README.md") == "index.md"
    assert hooks.site_path("docs/training.md") == "training.md"
    assert hooks.site_path("benchmarks/results/cpu_lora.json") == "results/cpu_lora.json"
    assert hooks.site_path("examples/01_attention.py") == "examples/01_attention.md"


def test_a_page_shows_what_a_notebook_prints_and_draws(on_site):
    import nbformat.v4 as nbf
    import notebooks

    outputs = [
        nbf.new_output("stream", name="stdout", text="2\n"),
        nbf.new_output("stream", name="stderr", text="a warning"),
        nbf.new_output("display_data", data={"image/png": "aGVsbG8=", "text/plain": "<Figure>"}),
        nbf.new_output("execute_result", data={"text/plain": "<Legend>"}),
    ]
    cells = [nbf.new_markdown_cell("# Title"), nbf.new_code_cell("1 + 1", outputs=outputs)]
    cells.append(nbf.new_code_cell("save()", metadata={"tags": ["script"]}))
    made = notebooks.render("01_name", nbf.new_notebook(cells=cells))
    assert made["examples/01_name-1.png"] == b"hello"
    page = made["examples/01_name.md"]
    assert page.startswith("# Title\n\n")
    assert "```python\n1 + 1\n```\n\n```text\n2\n```\n\n![" in page
    assert not any(word in page for word in ("warning", "Figure", "Legend", "save()"))


def test_the_tables_have_systems_and_configs(on_site):
    import tables

    from jaxformer.zoo import SYSTEMS

    systems = [SYSTEMS["llama-7b"], SYSTEMS["clip-vit-base-patch32"]]
    zoo, configs = tables.zoo(systems), tables.configs()
    assert "| llama-7b | decoder | RoPE | PreNorm, RMSNorm | 6.7B | 6,738,415,616 |" in zoo
    assert "| clip-vit-base-patch32 | " in zoo
    assert all(f"| `{path.stem}` |" in configs for path in (ROOT / "configs").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_saves_its_pictures(path, tmp_path):
    folder = shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    command = [sys.executable, str(folder / path.name)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    pictures = re.findall(r"^  ([\w-]+\.png)$", done.stdout.decode(), re.MULTILINE)
    assert pictures
    assert all((folder / name).stat().st_size > 5_000 for name in pictures)
