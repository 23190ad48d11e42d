"""Limits for a tokenizer's file: a bounded growth of texts and a bounded time for a match."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, normalizers

from jaxformer.errors import DataError

MOST_GROWTH = 1000
"""The maximum number of characters that replacements may make from one."""


class _Step(NamedTuple):
    """A step of a normalizer, or of a decoder."""

    apply: Callable[[str], str]
    inserted: str
    """The text that a replacement inserts; empty for other steps."""
    replaced: str
    """The text that it replaces, or a regular expression."""


def check_growth(tokenizer: Tokenizer, where: str) -> None:
    """Raises an error if replacements make texts long enough to fill the memory.

    Each character and text that a replacement names goes through the whole chain, because later
    steps multiply the insertions of earlier ones.
    """
    parts = {"normalizer": _normalizer(tokenizer), "decoder": _decoder(tokenizer)}
    for part, steps in parts.items():
        named = {text for step in steps for text in (step.inserted, step.replaced)}
        if any(_grows(start, steps) for start in named | set("".join(named))):
            raise DataError(
                f"{where}: the replacements of its {part} make a text more than {MOST_GROWTH} "
                "times as long, which would fill the memory"
            )


@contextmanager
def bounded_matches() -> Iterator[None]:
    """Turns the library's panic about a match that does not end into our error."""
    try:
        yield
    except BaseException as error:
        # The Rust library panics, and does not export the class of the panic.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizer has given up on a text: {error}; a regular expression of its "
            "tokenizer.json tries too many ways to match it"
        ) from None


def _normalizer(tokenizer: Tokenizer) -> list[_Step]:
    if tokenizer.normalizer is None:
        return []
    states = _flat(json.loads(tokenizer.normalizer.__getstate__()), "normalizers")
    if not any(state["type"] == "Replace" for state in states):
        return []
    whole = tokenizer.normalizer
    steps = whole if isinstance(whole, normalizers.Sequence) else [whole]
    return [_step(step.normalize_str, state) for step, state in zip(steps, states, strict=True)]


def _decoder(tokenizer: Tokenizer) -> list[_Step]:
    if tokenizer.decoder is None:
        return []
    states = _flat(json.loads(tokenizer.decoder.__getstate__()), "decoders")
    found = [state for state in states if state["type"] == "Replace"]
    return [_step(_replacement(state).normalize_str, state) for state in found]


def _replacement(state: dict[str, Any]) -> normalizers.Replace:
    ((kind, text),) = state["pattern"].items()
    return normalizers.Replace(Regex(text) if kind == "Regex" else text, state["content"])


def _flat(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [inner for part in state[name] for inner in _flat(part, name)]


def _step(apply: Callable[[str], str], state: dict[str, Any]) -> _Step:
    if state["type"] != "Replace":
        return _Step(apply, "", "")
    (text,) = state["pattern"].values()
    return _Step(apply, state["content"], text)


def _grows(start: str, steps: list[_Step]) -> bool:
    most, text = MOST_GROWTH * max(1, len(start)), start
    with bounded_matches():
        for step in steps:
            # Before each character and at the end: no replacement can insert more.
            if len(text) > most or (len(text) + 1) * len(step.inserted) > most * MOST_GROWTH:
                return True
            text = step.apply(text)
    return len(text) > most
