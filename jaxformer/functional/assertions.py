"""Assertions about arrays, by the letters of the package docstring."""

from typing import Any

import chex


def assert_axes(**arrays: tuple[Any, str]) -> dict[str, int]:
    """Asserts that arrays have the axes that a function documents.

    A letter stands for the same size in all arrays of a call and takes its size from the first
    that has it. ``1`` is that size, ``B/1`` is B or 1, ``_`` is any size, and a leading ``...``
    any number of axes.

    Example:
      ``sizes = assert_axes(query=(query, "B T N H"), key=(key, "B S K H"))``

    Args:
      **arrays: each argument's name, with its array and the letters of its axes.

    Returns:
      The size of each letter.

    Raises:
      AssertionError: names the argument, its shape, the axes it must have and their sizes.
    """
    sizes: dict[str, int] = {}
    for name, (array, axes) in arrays.items():
        letters = axes.split()
        shape = getattr(array, "shape", None)
        known = {
            key: sizes[key] for key in (letter.split("/")[0] for letter in letters) if key in sizes
        }
        where = (
            f" with {', '.join(f'{key} = {size}' for key, size in known.items())}" if known else ""
        )
        found = f"shape {tuple(shape)}" if shape is not None else f"type {type(array).__name__}"
        message = f"{name} has {found}: must be an array [{', '.join(letters)}]{where}"
        if shape is None:
            raise AssertionError(message)
        chex.assert_shape(
            array,
            tuple(_expected(letter, sizes) for letter in letters),
            custom_message=message,
            include_default_message=False,
        )
        named = letters[1:] if letters[:1] == ["..."] else letters
        trailing = shape[len(shape) - len(named) :]
        for letter, size in zip(named, trailing, strict=True):
            if letter.isalpha():
                sizes.setdefault(letter, size)
    return sizes


def _expected(letter: str, sizes: dict[str, int]) -> Any:
    """What chex compares the size of one axis with."""
    if letter == "...":
        return ...
    letter, _, alternative = letter.partition("/")
    size = int(letter) if letter.isdecimal() else sizes.get(letter)
    return {size, int(alternative)} if alternative and size is not None else size
