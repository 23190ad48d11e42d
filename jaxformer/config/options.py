"""The options of a command line, each with the values that follow it."""

from collections.abc import Iterator, Sequence


def given(arguments: Sequence[str]) -> set[str]:
    """Returns the names of the fields that a command line sets; do_sample for --no-do-sample."""
    names = {".".join(path_of(option)) for option, _ in groups(arguments) if option}
    return names | {name.removeprefix("no_") for name in names}


def without(arguments: Sequence[str], *names: str) -> list[str]:
    """Returns a command line without the options of some fields, those of their parts included.

    Args:
        arguments: The command line.
        *names: The fields: "model", "help".

    Returns:
        The other options, with their values.
    """
    kept = [
        [option, *values] if option else values
        for option, values in groups(arguments)
        if option != "-h" and (not option or path_of(option)[0] not in names)
    ]
    return [word for group in kept for word in group]


def groups(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each option of a command line with the values that follow it; "" before the first."""
    option, values = "", []
    for item in arguments:
        if item.startswith("--") or item == "-h":
            if option or values:
                yield option, values
            option, equals, value = item.partition("=")
            values = [value] if equals else []
        else:
            values.append(item)
    if option or values:
        yield option, values


def path_of(option: str) -> list[str]:
    """Returns the names of the fields on the way to that of an option."""
    return option.removeprefix("--").replace("-", "_").split(".")
