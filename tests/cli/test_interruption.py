"""Ctrl-C from the first import on: a line and status 130, whichever way the command was started."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxformer.__main__ import main
from jaxformer.cli.interruption import exit_on_interrupt

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "module": ["-m", "jaxformer", "zoo"],
    "script": ["-c", f"import sys; from {main.__module__} import main; sys.exit(main())", "zoo"],
    "train": ["train.py", "configs/tiny_decoder.py", "--run-dir", "{run}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_while_importing(command, tmp_path):
    arguments = [part.format(run=tmp_path / "run") for part in COMMANDS[command]]
    for delay in (0.2, 0.2 + random.Random(command).random()):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        for line in process.stderr:  # of the module with the handler, and not before
            if line.endswith(" jaxformer.cli.interruption\n"):
                break
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        said = [line for line in errors.splitlines() if not line.startswith("import time:")]
        assert process.returncode == 130, errors
        assert said == ["error: interrupted"]
        assert not output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("other", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_of_somebody_else_stays(other):
    previous = signal.signal(signal.SIGINT, other)
    try:
        with exit_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is other
    finally:
        signal.signal(signal.SIGINT, previous)


def test_it_ends_with_the_imports():
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with exit_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
