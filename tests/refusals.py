"""Wrong values for arguments and fields, and what the refusal of one looks like.

A refusal is an error of `REFUSALS` whose message is one line that names the argument or field and
shows the value. `tests/test_refusals.py` tries the fields of every configuration, and the
`test_misuse.py` of a package its functions, modules or models.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxformer.errors import ArgumentError, DataError, shortened
from jaxformer.io.components import all_types, is_library

NAN, INF, HUGE = math.nan, math.inf, 10**40
REFUSALS = (ArgumentError, AssertionError, DataError)

# Numbers out of range.
SIZE = [0, -1]
POSITIVE = [0.0, -1.0, INF]
NOT_NEGATIVE = [-1e-6, INF]
PROBABILITY = [-0.1, 1.1]
RATE = [-0.1, 1.0]

# One value of each kind: those that an annotation does not allow are wrong.
POOL = (None, True, 3, 2.5, "no such", (), ("no such",), object())


def refusal(call: Callable[[], Any], name: str, value: Any = None) -> str:
    """The message with which a call refuses the value of an argument or field."""
    with pytest.raises(REFUSALS) as error:
        jax.block_until_ready(call())
    message = str(error.value)
    assert message.splitlines() == [message], f"not one line: {message}"
    assert len(message) < 400, message
    assert name in message, f"{name} is not named: {message}"
    if isinstance(value, bool | int | float):
        shown = shortened(value) in message or type(value).__name__ in message
        assert shown, f"{value!r} is not shown: {message}"
    return message


# Arguments --------------------------------------------------------------------------------------


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.zeros(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


def keys(*shape):
    return jax.random.split(jax.random.key(0), shape)


def wrong_like(good: Any) -> list[Any]:
    """Values of another kind than one that is right: what no argument of its kind may be."""
    if isinstance(good, np.ndarray):
        other = floats if good.dtype.kind in "ib" else ints
        return [other(*good.shape), good.tolist(), "no such"]
    if isinstance(good, jax.Array):  # random keys
        return [0, floats(2), keys(*good.shape, 3)]
    if isinstance(good, bool):
        return [1, "no", None]
    if isinstance(good, int):
        return [2.5, True, "3", NAN, None]
    if isinstance(good, float):
        return [NAN, True, "1"]
    if isinstance(good, str):
        return ["no such", 3, None]
    return [3, "no such"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A call that works, and what its arguments must not be."""

    call: Callable[..., Any]
    good: dict[str, Any]
    """Arguments with which it works."""
    wrong: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    """Wrong values besides those of `wrong_like`; a tuple is the shape of an array."""
    free: tuple[str, ...] = ()
    """Arguments that may be of another kind than the right ones given here."""
    name: str = ""
    """What is called, where the callable has no name."""

    def __str__(self) -> str:
        return self.name or self.call.__name__

    def values(self) -> Iterator[tuple[str, Any]]:
        """The wrong values, each with the argument."""
        for name in self.good | self.wrong:
            good = self.good.get(name)
            for value in self.wrong.get(name, ()):
                shape = isinstance(good, np.ndarray) and isinstance(value, tuple)
                yield name, np.ones(value, good.dtype) if shape else value
            if name in self.good and name not in self.free:
                yield from ((name, value) for value in wrong_like(good))

    def check(self) -> None:
        """Checks that the right arguments work and that each wrong one is refused."""
        if self.good:
            jax.block_until_ready(self.call(**self.good))
        for name, value in self.values():
            arguments = self.good | {name: value}
            refusal(lambda arguments=arguments: self.call(**arguments), name, value)


def each_row(rows: Iterable[Row]) -> pytest.MarkDecorator:
    """The decorator of a test of each row."""
    return pytest.mark.parametrize("row", rows, ids=str)


# Fields -----------------------------------------------------------------------------------------


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type; any is of an unknown annotation."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(parts) and all(map(fits, value, parts))
    if annotation is float:
        return type(value) in (int, float)
    if annotation in (int, bool, str, type(None)):
        return type(value) is annotation
    return not isinstance(annotation, type) or isinstance(value, annotation)


def members(annotation: Any) -> tuple[Any, ...]:
    """The types in a union, or the one type."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def fields_of(kind: type) -> dict[str, Any]:
    """The annotations of the fields that the constructor takes."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _classes_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and is_library(annotation.__module__):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _classes_in(part)


def kinds_below(roots: Iterable[type]) -> list[type]:
    """The classes of configurations, and all that their fields and those of these may hold.

    Options of commands, which tyro checks, are left out.
    """
    found: dict[type, None] = {}
    left = list(roots)
    while left:
        for kind in all_types(left.pop()):
            ours = is_library(kind.__module__) and ".cli." not in kind.__module__
            if kind not in found and ours:
                found[kind] = None
                left += [part for hint in fields_of(kind).values() for part in _classes_in(hint)]
    return list(found)
