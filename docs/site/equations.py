r"""Converts reStructuredText in docstrings to Markdown, for the site.

Equations become `$$...$$` and `\(...\)`, which MathJax renders; `::` before an indented block
becomes a colon.
"""

import re
import textwrap

import griffe

_BLOCK = re.compile(r"^( *)\.\. math::(.*\n?(?:(?:\1 +\S.*)?(?:\n|$))*)", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_LITERAL = re.compile(r"(?<=\w)::(?=\n\n? +\S)")


class Equations(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Rewrites the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """Returns a docstring with its equations and literal blocks in Markdown."""
    docstring = _BLOCK.sub(_display, docstring)
    docstring = _INLINE.sub(lambda found: rf"\({' '.join(found[1].split())}\)", docstring)
    return _LITERAL.sub(":", docstring)


def _display(found: re.Match) -> str:
    """An indented equation; lines aligned at & share one environment."""
    indent, equation = found[1], " ".join(textwrap.dedent(found[2]).split())
    if "&" in equation and r"\begin" not in equation:
        equation = rf"\begin{{aligned}} {equation} \end{{aligned}}"
    return f"{indent}$$\n{indent}{equation}\n{indent}$$\n\n"
