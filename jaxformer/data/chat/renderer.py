"""Renders a chat template in a separate process, with limits of time and memory.

`template.py` runs this file as a script. Each line of standard input and output is a JSON value:
first the template, then one line for each chat. It only imports jinja2 and the standard library,
so it starts in a tenth of a second.
"""

import json
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

CPU_SECONDS = 2
"""The maximum processor time of a template, for each chat."""
MEGABYTES = 128
"""The maximum memory of a template."""
MOST_CHARACTERS = 10**7
"""The maximum length of a text."""
GENERATION = ("\ufdd0", "\ufdd1")
"""Marks for the two ends of a `{% generation %}` block in a rendered text until it is read: two
code points that Unicode reserves for such uses.
"""
MARK = "\ufdd2"
"""The start of a mark that a caller puts into messages to find them in the text."""


def main() -> None:
    """Compiles the template in the first line of input, and renders a chat for each other line."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # this process may have inherited another handler
    for answer in answers(sys.stdin):
        print(json.dumps(answer), flush=True)


def answers(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yields the result for the template, and for each chat."""
    template = None
    for line in lines:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # then SIGPROF ends the process
        request = json.loads(line)
        try:
            if template is None:
                template = environment().from_string(request)
                yield {}
            else:
                yield _rendered(template, request["variables"], request["prefixes"])
        except jinja2.TemplateSyntaxError as error:
            yield {"error": error.message, "line": error.lineno}
        except RecursionError:
            yield {"error": "it is nested too deeply, or calls itself endlessly"}
        except MemoryError:
            yield {"error": f"it needs more than {MEGABYTES} MB of memory"}
        except Exception as error:  # the template is a program, which may raise any error
            yield {"error": str(error) or type(error).__name__}


def _rendered(
    template: jinja2.Template, variables: dict[str, Any], prefixes: list[tuple[int, bool]]
) -> dict[str, Any]:
    text, spans = _without_marks(_render(template, variables))
    lengths: list[int | None] = []
    tails: list[str | None] = []
    for count, prompt in prefixes:
        chosen = {"messages": variables["messages"][:count], "add_generation_prompt": prompt}
        try:
            prefix, _ = _without_marks(_render(template, variables | chosen))
        except Exception:  # a template may refuse messages that others have to follow
            prefix = None
        known = prefix is not None and text.startswith(prefix)
        lengths.append(len(prefix) if known else None)
        has_tail = prefix is not None and MARK in text
        tails.append(prefix[max(prefix.rfind(MARK), 0) :] if has_tail else None)
    return {"text": text, "spans": spans, "prefixes": lengths, "tails": tails}


def _render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    text = template.render(variables)
    if len(text) > MOST_CHARACTERS:
        raise jinja2.TemplateError(f"it writes more than {MOST_CHARACTERS:,} characters")
    return text


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns the text without the marks of `{% generation %}`, and the spans between them."""
    first, last = GENERATION
    parts, spans, length = [], [], 0
    for number, part in enumerate(text.split(first)):
        inside, *outside = part.split(last)
        if len(outside) != (number > 0):
            raise jinja2.TemplateError("a generation block is inside another one, or is left early")
        if number:
            spans.append((length, length + len(inside)))
        parts += [inside, *outside]
        length += len(inside) + len("".join(outside))
    return "".join(parts), spans


def environment() -> ImmutableSandboxedEnvironment:
    """The Jinja environment that templates expect, as a sandbox for untrusted programs."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    found.filters["tojson"] = _to_json
    found.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "namespace": _Namespace,
    }
    return found


class _Generation(Extension):
    """Supports `{% generation %}`, which marks the assistant's text for training."""

    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        first, last = (nodes.Output([nodes.TemplateData(mark)]) for mark in GENERATION)
        return [first, nodes.Scope(body, lineno=line), last]


class _Namespace(Namespace):
    """A namespace that refuses the names of Python's internals."""

    def __init__(*args, **fields):
        self, *given = args
        Namespace.__init__(self)
        for name, value in dict(*given, **fields).items():
            self[name] = value

    def __setitem__(self, name, value):
        if str(name).startswith("_"):
            raise SecurityError(f"the name {name!r} of a namespace begins with an underscore")
        Namespace.__setitem__(self, name, value)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Writes JSON without escaping <, > and &, unlike Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


if __name__ == "__main__":
    main()
