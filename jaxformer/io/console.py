"""The console that tables are printed on."""

import sys

from rich.console import Console

_WIDTH_OF_FILES = 200


def console() -> Console:
    """Returns a console as wide as the terminal, or 200 characters where the output is a file."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
