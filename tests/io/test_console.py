"""The width of what is printed."""

import os
import pty
import sys

from jaxformer.io.console import console


def test_a_file_has_200_characters_whatever_the_terminal_has(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "57")
    assert console().width == 200


def test_a_terminal_has_its_own_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "57")
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert console().width == 57
    os.close(main)
