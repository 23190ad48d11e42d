"""The console that tables are printed on."""

import sys

from rich.console import Console

_WIDTH_OF_FILES = 200


class _Console(Console):
    """A console that lets the command report that its reader is gone, where rich would exit."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError that rich caught."""
        raise BrokenPipeError


def console() -> Console:
    """Returns a console as wide as the terminal, or 200 characters where the output is a file."""
    return _Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
