"""Renders chats with `renderer.py` in a separate process with limited resources."""

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2.utils

from jaxformer.data.chat import renderer
from jaxformer.io.scripts import run_script

_PATIENCE = 60
"""The number of seconds after which a renderer is stopped even if it gets no processor time."""


def render_in_process(source: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compiles a template and renders chats with it."""
    lines = "".join(json.dumps(value) + "\n" for value in (source, *requests))
    modules = (jinja2, jinja2.utils.markupsafe)
    limit = _PATIENCE + len(requests) * renderer.CPU_SECONDS
    try:
        done = run_script(
            renderer,
            given=lines.encode(),
            patience=limit,
            megabytes=renderer.MEGABYTES,
            paths={str(Path(module.__file__).parents[1]) for module in modules},
        )
    except subprocess.TimeoutExpired:
        return [{"error": f"it has not ended after {limit} seconds"}]
    # Anything after the last newline is incomplete.
    answers = [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]
    if len(answers) <= len(requests):
        answers.append({"error": _reason(done.returncode)})
    return answers


def _reason(returncode: int) -> str:
    if returncode in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL):
        return f"it takes longer than {renderer.CPU_SECONDS} seconds"
    return f"it needs more than {renderer.MEGABYTES} MB of memory, or is nested too deeply"
