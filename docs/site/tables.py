"""The pages with tables of the zoo and of the configs."""

import ast
from collections.abc import Sequence
from pathlib import Path

from reference import sentence

from jaxformer.zoo import SYSTEMS, System

ROOT = Path(__file__).parents[2]


def pages() -> dict[str, str]:
    """Returns the Markdown of the pages by their paths in the site."""
    return {"zoo.md": zoo(tuple(SYSTEMS.values())), "configs.md": configs()}


def zoo(systems: Sequence[System]) -> str:
    """Returns the table of published systems that `jaxformer zoo` prints."""
    titles = ("system", "family", "positions", "norm", "published", "computed", "config")
    lines = [
        "# Published systems",
        "",
        "The models that the library builds at their published sizes, made from "
        "`jaxformer.zoo.SYSTEMS` as `jaxformer zoo` prints them. *Published* is the authors' "
        "number, *computed* the number of parameters of the model that the config builds; notes "
        "below explain the differences. "
        "[Parity](parity.md) compares every class with transformers.",
        "",
        f"| {' | '.join(titles)} |",
        "| --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for system in systems:
        stack = system.config.stacks[0]
        cells = (
            system.name + ("*" if system.note else ""),
            system.family,
            type(system.config.position).__name__,
            f"{type(stack.residual).__name__}, {type(stack.norm).__name__}",
            system.published,
            f"{system.count_parameters():,}",
            f"`{system.recipe.replace('.py', '')}`" if system.recipe else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Where they differ, the published number counts:", ""]
    lines += [f"- {system.name}: {system.note}" for system in systems if system.note]
    return "\n".join(lines) + "\n"


def configs() -> str:
    """Returns the table of the shipped configs with their descriptions."""
    lines = [
        "# Configs",
        "",
        "Each is one Python file that builds an experiment from the library's classes, and part of "
        "the wheel: `jaxformer train NAME`, with any field as an option. `jaxformer train NAME "
        "--help` lists the fields.",
        "",
        "| name | description |",
        "| --- | --- |",
    ]
    for path in sorted((ROOT / "configs").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines.append(f"| `{path.stem}` | {sentence(ast.get_docstring(tree))} |")
    return "\n".join(lines) + "\n"
