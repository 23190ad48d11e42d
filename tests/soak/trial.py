"""One attack and what came of it."""

import contextlib
import enum
import io
import logging
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from jaxformer.cli import main as cli
from jaxformer.errors import ArgumentError, DataError, RunError

OURS = (ArgumentError, DataError, RunError)
"""The errors whose message a user reads."""
MOST_LINES = 30
"""A refusal is a sentence, perhaps with a list of fields or tyro's box around it."""
SECONDS = 60


class Outcome(enum.Enum):
    """What came of an attack, in the order of the table."""

    SURVIVED = "survived"
    REFUSED = "refused in one sentence"
    SILENT = "silent"
    TRACEBACK = "traceback"

    @property
    def failed(self) -> bool:
        """Whether it is what must not happen."""
        return self in (Outcome.SILENT, Outcome.TRACEBACK)


@dataclass(frozen=True)
class Trial:
    """One attack."""

    part: str
    index: int
    attack: str
    """What was done."""
    outcome: Outcome
    detail: str = ""
    count: int = 1
    """How many attacks it consists of."""


class Silent(Exception):
    """A wrong result came without a word."""


class Refused(Exception):
    """A command ended with one sentence."""


class Reached(Exception):
    """What was asked for is in order: the work itself, which is left out here, would begin."""


class Hung(BaseException):
    """An attack that takes too long; no `except Exception` swallows it."""


def chance(seed: int, part: str, index: int) -> random.Random:
    """The random choices of a trial, which depend on nothing else."""
    return random.Random(f"{seed}/{part}/{index}")


def judge(
    action: Callable[[], object], names: Collection[str] = (), seconds: int = SECONDS
) -> tuple[Outcome, str]:
    """Runs an attack.

    Args:
        action: Raises `Silent` where a result is wrong.
        names: Arguments of the function under attack: a ValueError, TypeError or AssertionError
            that names one of them is a refusal as well.
        seconds: How long it may take; 0 for an attack that sees to that itself.
    """
    try:
        with _limited(seconds):
            action()
    except (Reached, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code not in (0, None):
            return Outcome.REFUSED, "usage"
        return Outcome.SURVIVED, ""
    except Silent as wrong:
        return Outcome.SILENT, str(wrong)
    except (Refused, *OURS) as error:
        return _sentence(str(error))
    except Hung:
        return Outcome.TRACEBACK, f"no end after {seconds} s"
    except (ValueError, TypeError, AssertionError) as error:
        if any(re.search(rf"\b{name}\b", str(error)) for name in names):
            return _sentence(str(error))
        return Outcome.TRACEBACK, _where(error)
    except Exception as error:
        return Outcome.TRACEBACK, _where(error)
    return Outcome.SURVIVED, ""


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collects what is printed, warned of and logged."""
    words: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: words.append(f"warning: {record.getMessage()}")
    printed, errors = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
                yield words
    finally:
        root.handlers = before
        words += [f"warning: {item.message}" for item in caught]
        words += [printed.getvalue(), errors.getvalue()]


def run_command(*arguments: str) -> str:
    """Runs a command of ours in this process; returns what it said."""
    return reporting(lambda: cli.main(list(arguments)))


def reporting(action: Callable[[], object]) -> str:
    """Runs what reports its errors as commands do; raises `Refused` with its sentence."""
    with heard() as words:
        try:
            status = action()
        except SystemExit as end:
            status = end.code
            if status not in (0, None):  # tyro draws a box around it
                words[:] = [" ".join("".join(words).split())]
    text = "\n".join(words)
    if "Traceback (most recent call last)" in text:
        raise AssertionError(f"a traceback was printed: {text[-300:]}")
    if status not in (0, None):
        if not words[-1].strip():
            raise AssertionError(f"status {status} without a word")
        raise Refused(words[-1].strip())
    return text


def announces_damage(text: str) -> bool:
    """Whether someone who reads this learns that something was wrong."""
    return "warning:" in text or "damaged" in text.lower()


def _sentence(message: str) -> tuple[Outcome, str]:
    message = message.strip()
    shown = message[:300]
    if not message or len(message.splitlines()) > MOST_LINES:
        return Outcome.TRACEBACK, f"not one sentence: {shown!r}"
    return Outcome.REFUSED, shown


def _where(error: Exception) -> str:
    """The error and the innermost place of ours that it came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/jaxformer/" in f.filename]
    place = ""
    if frames:
        place = f" at {frames[-1].filename.rpartition('/jaxformer/')[2]}:{frames[-1].lineno}"
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}{place}"


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def end(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
