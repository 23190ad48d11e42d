"""Public functions called with one argument that is wrong, written otherwise, or of another shape.

A wrong value must be refused by name; the same value written otherwise gives the same result or is
refused; from anything else that is accepted come finite numbers. The calls of functions, and what
is wrong for them, are those of `tests/functional/test_misuse.py`.
"""

import inspect
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from functional.test_misuse import ROWS
from refusals import INF, NAN, PROBABILITY, SIZE, Row

from jaxformer import forward, generate, gradients, load, score
from soak.hostile import short
from soak.runs import whole_run
from soak.trial import Silent, Trial, chance, heard, judge

PART = "calls"
Verdict = Literal["wrong", "same", "any"]


def with_numbers(row: Row) -> Row:
    """The same call with arrays of numbers that differ; those of integers are 1 and 0."""

    def filled(array: np.ndarray) -> np.ndarray:
        random = np.random.default_rng(array.size)
        is_real, places = array.dtype.kind == "f", np.arange(array.size).reshape(array.shape)
        numbers = random.normal(size=array.shape) if is_real else 1 - places % 2
        return numbers.astype(array.dtype)

    arrays = {name: filled(x) for name, x in row.good.items() if isinstance(x, np.ndarray)}
    return replace(row, good=row.good | arrays)


def others(good: Any, dice: random.Random) -> Iterator[tuple[Verdict, Any]]:
    """Values beside one that works: written otherwise, or of another shape or kind."""
    if isinstance(good, np.ndarray):
        axis = dice.randrange(good.ndim) if good.ndim else 0
        yield from (("same", jax.numpy.asarray(good)), ("same", np.asfortranarray(good)))
        yield from (("any", each) for each in (good.tolist(), good[None], good > 0, None))
        if good.dtype == np.int32:
            yield "same", good.astype(np.int64)
        if good.ndim:
            yield from (("any", np.take(good, [], axis)), ("any", good[0]), ("any", good.T))
            yield "any", np.concatenate([good, good], axis)
    elif type(good) in (int, float):
        kinds = (np.int64, np.int32) if type(good) is int else (np.float32, np.float64)
        yield from (("same", kind(good)) for kind in (*kinds, np.asarray))


def api_rows(model: Any) -> tuple[Row, ...]:
    """`forward`, `gradients`, `generate` and `score` on a small decoder."""
    size = model.config.vocab_size
    ids = (np.arange(8, dtype=np.int32) % size).reshape(2, 4)
    no_integers = [ids + 0.5, ids > 0, ids.astype(np.int64) + 2**32, None, "text"]
    no_ids = [ids + size, ids - 5, *no_integers]

    def row(function, good, wrong):
        names = {"input_ids", "attention_mask", "position_ids", "labels"}

        def call(**given):
            arrays = {name: given.pop(name) for name in names & given.keys()}
            return function(model, arrays, **given)

        # Each says by itself what is wrong: None is no value of some options.
        return Row(call, good, wrong, tuple(good), function.__name__)

    tokens, mask = {"input_ids": ids}, {"attention_mask": np.ones((2, 4), np.int32)}
    no_mask = [np.where(np.tri(2, 4), 0, -INF), np.full((2, 4), NAN), np.full((2, 4), 0.5), "text"]
    options = {"max_new_tokens": 2, "do_sample": True, "temperature": 0.5, "top_k": 3}
    options |= {"top_p": 0.5, "seed": 3, "num_return_sequences": 2, "repetition_penalty": 1.5}
    options |= {"pad_token_id": 1}
    no_number, no_count = ["text", None, NAN], [2.5, NAN, "3", None, "text"]
    no_options = {
        "max_new_tokens": [*SIZE, *no_count, 10**12],
        "temperature": [*no_number, -1.0, 1e-45],
        "top_k": [-1, *no_count],
        "top_p": [*no_number, *PROBABILITY],
        "seed": [-1, *no_count],
        "num_return_sequences": [*SIZE, *no_count],
        "repetition_penalty": [*no_number, 0.0, -1.0],
        "pad_token_id": [10**40, -1, "text"],
    }
    no_texts = [[[[]], [[1]]], [[[size]], [[1]]], [[["x"]], [[1]]], [[[1.5]], [[1]]], None, "text"]
    wrong = {"input_ids": no_ids}
    return (
        row(forward, tokens | mask, wrong | {"attention_mask": no_mask}),
        row(forward, tokens | {"position_ids": ids % 4}, wrong | {"position_ids": no_integers}),
        row(gradients, tokens | {"labels": ids}, wrong | {"labels": no_ids}),
        row(generate, tokens | mask | options, wrong | {"attention_mask": no_mask} | no_options),
        row(score, tokens | {"continuations": [[[1, 2]], [[3]]]}, {"continuations": no_texts}),
    )


class Calls:
    """Calls functions with one argument changed."""

    def __init__(self, folder: Path, seed: int):
        self.seed = seed
        with heard():
            model = load(whole_run(folder.parent, "text").folder)
        rows = [with_numbers(row) for row in ROWS]
        self.rows = (*rows, *api_rows(model) * 4)
        self._right: dict[int, Any] = {}

    def trial(self, index: int) -> Trial:
        """Changes one argument of one call."""
        dice = chance(self.seed, PART, index)
        number = dice.randrange(len(self.rows))
        row = self.rows[number]
        verdict, name, value = dice.choice(list(changes(row, dice)))
        with heard():
            if number not in self._right:
                self._right[number] = _called(row, {})
            right = self._right[number]
            outcome, detail = judge(lambda: compared(row, name, verdict, value, right), _names(row))
        return Trial(PART, index, f"{row}({name}={_short(value)})", outcome, detail)


def changes(row: Row, dice: random.Random) -> Iterator[tuple[Verdict, str, Any]]:
    """Other values for the arguments of a call."""
    for name, value in row.values():
        yield "wrong", name, value
    for name, good in row.good.items():
        for verdict, value in others(good, dice):
            yield verdict, name, value


def compared(row: Row, changed: str, verdict: Verdict, value: Any, right: Any) -> None:
    """Judges what comes of a call with one argument changed."""
    found = _called(row, {changed: value})
    if verdict == "wrong":
        raise Silent("what cannot be right is accepted")
    if not _all_finite(found) and _all_finite(right):
        raise Silent("numbers that are not finite, from such that are")
    if verdict == "same" and not _equal(found, right):
        raise Silent("the same value written otherwise gives another result")


def _called(row: Row, changes: Mapping[str, Any]) -> Any:
    return jax.tree.map(np.asarray, row.call(**row.good | changes))


def _names(row: Row) -> set[str]:
    """The arguments, of which a refusal has to name one."""
    return {*row.good, *row.wrong, *inspect.signature(row.call).parameters} - {"given"}


def _numbers(tree: Any) -> list[np.ndarray]:
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return [array for array in arrays if array.dtype.kind in "fiub"]


def _all_finite(tree: Any) -> bool:
    # -inf excludes a token.
    return not any(np.isnan(array).any() or (array == np.inf).any() for array in _numbers(tree))


def _equal(found: Any, right: Any) -> bool:
    pairs = _numbers(found), _numbers(right)
    return len(pairs[0]) == len(pairs[1]) and all(
        left.shape == other.shape and np.allclose(left, other, 1e-5, 1e-6, equal_nan=True)
        for left, other in zip(*pairs, strict=True)
    )


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"{type(value).__name__} {value.dtype} {list(value.shape)} {value.ravel()[:2]!s}"
    return short(value)
