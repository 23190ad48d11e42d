"""CPU seconds of each file of tests: `PYTHONPATH=tests pytest -p cpu_seconds`.

Unlike durations, they hardly change when the machine has other work. Processes that a test starts
and waits for count too.
"""

import os
from collections import Counter

import pytest

SECONDS, TESTS = Counter(), Counter()
_so_far = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Says in each report what was used since the last one."""
    global _so_far
    report = yield
    now = sum(os.times()[:4])
    report.cpu_seconds = now - _so_far
    _so_far = now
    return report


def pytest_runtest_logreport(report):
    file = report.nodeid.partition("::")[0]
    SECONDS[file] += report.cpu_seconds
    TESTS[file] += report.when == "call"


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("CPU seconds, tests, file")
    for file, seconds in SECONDS.most_common():
        terminalreporter.write_line(f"{seconds:8.1f} {TESTS[file]:5d} {file}")
    terminalreporter.write_line(f"{SECONDS.total():8.1f} {TESTS.total():5d}")
