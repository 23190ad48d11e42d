"""Commands as a user types them."""

from jaxformer.cli.main import main


def status_of(*arguments):
    """The exit status of a command, also where its parser of options exits."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


def command(*arguments):
    """Types a command, which must succeed."""
    assert status_of(*arguments) == 0


def printed(capsys, *arguments):
    """Types a command, which must succeed; what it prints."""
    command(*arguments)
    return capsys.readouterr().out


def refused(capsys, *arguments):
    """Types a command that cannot be done; what it says."""
    assert status_of(*arguments) == 2
    return capsys.readouterr().err
