"""Tests of scripts in separate processes."""

import json
import resource
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from jaxformer.io import scripts
from jaxformer.io.scripts import run_script


def script(tmp_path, text):
    module = ModuleType("script")
    module.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text(text)
    return module


def test_it_reads_what_is_given_and_finds_the_libraries(tmp_path, monkeypatch):
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "only_here.py").write_text("WORD = 'found'")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "libraries")])
    made = script(
        tmp_path,
        "import json, sys, only_here\n"
        "print(json.dumps([sys.argv[1:], sys.stdin.read(), only_here.WORD]))\n"
        "sys.exit(3)",
    )
    done = run_script(made, "a", tmp_path, given=b"words", patience=60)
    assert json.loads(done.stdout) == [["a", str(tmp_path)], "words", "found"]
    assert done.returncode == 3


def test_it_is_stopped(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        run_script(script(tmp_path, "import time; time.sleep(60)"), patience=0.5)


def test_a_loop_ends_with_its_processor_time(tmp_path):
    made = script(tmp_path, "while True: pass")
    done = run_script(made, patience=60, cpu_seconds=1)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


def test_it_gets_no_more_memory(tmp_path):
    made = script(tmp_path, "len(bytearray(500 << 20))")
    assert run_script(made, patience=60).returncode == 0
    done = run_script(made, patience=60, megabytes=256)
    assert done.returncode == 1
    assert b"MemoryError" in done.stderr


@pytest.mark.parametrize(("most", "expected"), [(9, [(5, 5)]), (3, [(3, 5)]), (0, [])])
def test_a_stricter_limit_stays(most, expected, monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5, 5))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    scripts.limit(resource.RLIMIT_CPU, most)
    assert limits == expected
