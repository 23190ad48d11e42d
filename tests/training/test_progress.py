"""The line of progress fits the screen, whatever there is to say."""

import io
import itertools
import re

import pytest
from rich.console import Console

from jaxformer.training.logging import progress
from jaxformer.training.logging.progress import Course, LineProgress, LiveProgress, describe

EVERYTHING = {
    "loss": 12.345,
    "soft_loss": 10.234,
    "cosine_loss": 0.123,
    "gradient_norm": 123.45,
    "learning_rate": 1.234e-4,
    "tokens_per_second": 123_456.0,
    "step_seconds": 1.234,
    "data_wait_seconds": 0.0123,
    "mfu": 0.4567,
    "skipped": 12.0,
}
MILLION = Course(1_000_000, epochs=lambda step: step / 1234.5)
ORDER = ("loss", "skipped", "eta", "soft", "tok/s", "epoch", "MFU", "grad", "lr", "ms/step", "data")
"""What is left out first stands last."""


@pytest.mark.parametrize("width", [20, 40, 60, 80, 116, 200])
def test_the_most_important_parts_stay(width):
    text = describe(12_345, MILLION, EVERYTHING, width, 12_345.0)
    assert len(text) <= width
    shown = [name in text for name in ORDER]
    assert shown == sorted(shown, reverse=True)
    assert shown[0]
    assert all(shown) == (width == 200)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_bar_is_one_line_of_the_terminal(width):
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system=None)
    display = LiveProgress(MILLION, 0, console)
    display.message("a line that stays")
    display.update(123_456, EVERYTHING)
    display.close()
    text = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]
    assert max(map(len, lines)) <= width
    assert {line for line in lines if "/1000000" not in line} == {"a line that stays"}
    assert "123456/1000000" in lines[-1]
    assert "loss 12.345" in lines[-1]
    assert "skipped 12" in lines[-1]
    if width >= 80:
        assert "eta 12d" in lines[-1]
    if width == 200:
        assert "MFU 45.7%" in lines[-1]


def test_a_line_of_a_log_has_80_characters(capsys):
    display = LineProgress(MILLION)
    display.update(999_999, EVERYTHING)
    (line,) = capsys.readouterr().out.splitlines()
    assert 60 < len(line) <= 80
    assert line.startswith("step 999999/1000000  loss 12.345  ")


def test_lines_away_from_a_terminal_are_rare_and_the_last_one_appears(capsys, monkeypatch):
    now = itertools.count(0.0, 2.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    display = LineProgress(Course(6))
    values = {name: x for name, x in EVERYTHING.items() if not name.endswith("_loss")}
    values["step_seconds"] = 0.25
    for step in range(1, 7):
        display.update(step, values)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/6", "4/6", "6/6"]
    assert "loss 12.345" in lines[0]
    assert "123k tok/s" in lines[0]
    assert "eta 1.2s" in lines[0]


def test_the_time_passes_while_compiling(monkeypatch):
    now = itertools.count(0.0, 30.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    display = LiveProgress(Course(10), 0, console)
    display._bar.refresh()
    display.close()
    seen = [word for word in ("compiling 30s", "compiling 1m 00s") if word in screen.getvalue()]
    assert seen == ["compiling 30s", "compiling 1m 00s"]


def test_epochs_are_counted_in_rows():
    values = {"loss": 1.0, "gradient_norm": 1.0, "learning_rate": 1.0}
    text = describe(30, Course(100, epochs=lambda step: step / 20), values, 80, 5)
    assert "epoch 1.5" in text
    assert "5.0s" in text
    assert "eta" not in text


def test_what_is_left_counts_the_work_of_the_steps_to_come():
    assert Course(100).steps_left(30) == 70
    assert Course(100).steps_left(100) == 0
    course = Course(10, work=lambda step: min(step, 4) + 3 * max(step - 4, 0))
    assert course.steps_left(3) == 1 + 6 * 3  # six of three times the work
    assert course.steps_left(5) == 5
    values = EVERYTHING | {"step_seconds": 10.0}
    assert "eta 3m 10s" in describe(3, course, values, 200, 5)
