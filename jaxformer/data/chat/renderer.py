"""Renders a chat template in a separate process, with limits of time and memory.

`template.py` runs this file as a script: it reads a JSON object from standard input and writes one
to standard output. It only imports jinja2 and the standard library, so it starts in a tenth of a
second.
"""

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 2
"""The maximum processor time of a template."""
MEGABYTES = 128
"""The maximum memory of a template."""
MOST_CHARACTERS = 10**7
"""The maximum length of a text."""


def main() -> None:
    """Answers one request: {"source", "variables"} with {"text"} or {"error", "line"}.

    Without variables the template is only compiled, and the text is empty.
    """
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _limit(resource.RLIMIT_DATA, MEGABYTES << 20)
    json.dump(answer_to(json.load(sys.stdin)), sys.stdout)


def _limit(kind: int, most: int) -> None:
    """Sets a limit of this process, unless there is a stricter one."""
    given = resource.getrlimit(kind)[1]
    most = most if given == resource.RLIM_INFINITY else min(most, given)
    resource.setrlimit(kind, (most, most))


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, see `main`."""
    try:
        template = environment().from_string(request["source"])
        variables = request["variables"]
        text = "" if variables is None else template.render(variables)
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message, "line": error.lineno}
    except RecursionError:
        return {"error": "it is nested too deeply, or calls itself without end"}
    except MemoryError:
        return {"error": f"it needs more than {MEGABYTES} MB of memory"}
    except Exception as error:  # the template is a program, and may fail like any other
        return {"error": str(error) or type(error).__name__}
    if len(text) > MOST_CHARACTERS:
        return {"error": f"it writes more than {MOST_CHARACTERS:,} characters"}
    return {"text": text}


def environment() -> ImmutableSandboxedEnvironment:
    """The Jinja environment that templates expect, as a sandbox for untrusted programs."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    found.filters["tojson"] = _to_json
    found.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return found


class _Generation(Extension):
    """Supports `{% generation %}`, which marks the assistant's text for training."""

    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


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


def _now(format: str) -> str:
    return datetime.now().strftime(format)


if __name__ == "__main__":
    main()
