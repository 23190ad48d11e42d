"""Public functions called with one argument that is wrong, written otherwise, or of another shape.

Each argument of each function says what would be wrong for it. Such a value must be refused by
name; the same value written otherwise gives the same result or is refused; from any shape that is
accepted come finite numbers.
"""

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxformer import forward, functional, generate, gradients, load, score
from jaxformer.functional.linear import lookup
from soak.hostile import TEXTS, short
from soak.runs import whole_run
from soak.trial import Silent, Trial, chance, heard, judge

PART = "calls"
V, D = 13, 8
"""Tokens and channels of the functions' arrays."""

Verdict = Literal["wrong", "same", "any"]


@dataclass(frozen=True)
class Argument:
    """A value that works, and others beside it."""

    value: Any
    others: tuple[tuple[Verdict, Any], ...] = ()

    def choose(self, dice: random.Random) -> tuple[Verdict, Any]:
        """Another value; of an array also another shape, dtype or container."""
        if not isinstance(self.value, np.ndarray) or (self.others and dice.random() < 0.5):
            return dice.choice(self.others) if self.others else ("same", self.value)
        return dice.choice(_variants(self.value, dice))


@dataclass(frozen=True)
class Call:
    """A function with arguments that work."""

    function: Callable
    arguments: Mapping[str, Argument]
    name: str = ""


NONSENSE = (("wrong", None), ("wrong", "text"))


def _variants(array: np.ndarray, dice: random.Random) -> list[tuple[Verdict, Any]]:
    axis = dice.randrange(array.ndim) if array.ndim else 0
    found: list[tuple[Verdict, Any]] = [("same", jax.numpy.asarray(array)), ("any", array.tolist())]
    found += [("wrong", "Hello"), ("any", array[None]), ("same", np.asfortranarray(array))]
    if array.ndim:
        found += [("any", np.take(array, [], axis)), ("any", array[0])]
        found += [("any", np.concatenate([array, array], axis)), ("any", array.T)]
    return found


def floats(*shape: int, optional: bool = False) -> Argument:
    """An array of numbers."""
    value = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    return Argument(value, NONSENSE[1 if optional else 0 :])


def activations(*shape: int) -> Argument:
    """An array of real numbers, which integers and bools are not."""
    value = floats(*shape).value
    return Argument(value, (("wrong", value.astype(np.int32)), ("wrong", value > 0), *NONSENSE))


def ids(*shape: int, below: int = V) -> Argument:
    """An array of tokens."""
    value = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) % below
    high, low = value.copy(), value.copy()
    high.flat[0], low.flat[-1] = below, -1
    others = [("wrong", high), ("wrong", low), ("wrong", value + 0.5), ("wrong", value > 0)]
    others += [("wrong", value.astype(np.int64) + 2**32), ("same", value.astype(np.int64))]
    return Argument(value, (*others, *NONSENSE))


def positions(*shape: int) -> Argument:
    """An array of places in a text."""
    value = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape).copy()
    others = [("wrong", value + 0.5), ("wrong", value > 0), ("same", value.astype(np.int64))]
    return Argument(value, (*others, ("wrong", value.astype(np.int64) + 2**32), *NONSENSE))


def switches(*shape: int) -> Argument:
    """An array of bools."""
    value = np.random.default_rng(sum(shape)).random(shape) < 0.7
    value[..., 0] = True
    return Argument(value, (("wrong", np.where(value, 0.0, -np.inf)), ("wrong", value * np.nan)))


def count(value: int, least: int = 1) -> Argument:
    """A whole number."""
    others = [least - 1, 2.5, float("nan"), "3"]
    same = [np.int64(value), np.int32(value), np.asarray(value)]
    wrong = [("wrong", other) for other in others] + list(NONSENSE)
    return Argument(value, (*wrong, *(("same", other) for other in same)))


def number(value: float, *wrong: float, none: bool = False) -> Argument:
    """A real number; some that it cannot be."""
    others = [("wrong", other) for other in (float("nan"), *wrong)]
    same = [("same", np.float32(value)), ("same", np.float64(value)), ("same", np.asarray(value))]
    return Argument(value, (*others, *same, *NONSENSE[1 if none else 0 :]))


def share(value: float) -> Argument:
    """A probability."""
    return number(value, -0.1, 1.5)


def choice(value: str) -> Argument:
    """A name among some."""
    return Argument(value, (*(("wrong", text) for text in TEXTS[10:20]), ("wrong", 3), *NONSENSE))


def fixed(value: Any) -> Argument:
    """What this call leaves as it is."""
    return Argument(value)


def _attention(query, key, value, allowed, scale, softcap, implementation="reference"):
    spec = functional.DenseMask(allowed)
    options = {"scale": scale, "softcap": softcap, "implementation": implementation}
    return functional.attention(query, key, value, mask=spec, **options)


def _masked(name: str) -> Callable:
    """A mask of a kind, as the pairs that it allows."""
    return lambda **fields: getattr(functional, name)(**fields).values(4, 4)


HEADS = {"query": floats(2, 4, 2, D), "key": floats(2, 4, 2, D), "value": floats(2, 4, 2, D)}
LOGITS = {"logits": floats(2, V)}
KEYS = jax.random.split(jax.random.key(0), 2)
FUNCTIONS = (
    Call(
        _attention,
        HEADS
        | {"allowed": switches(1, 4, 4), "scale": number(0.5, none=True)}
        | {"softcap": number(5.0, 0.0, -1.0, none=True)},
    ),
    Call(functional.attention, HEADS | {"implementation": choice("blockwise")}),
    Call(_masked("KeyPadding"), {"valid": switches(2, 4)}, "KeyPadding"),
    Call(_masked("DenseMask"), {"allowed": switches(1, 4, 4)}, "DenseMask"),
    Call(_masked("Prefix"), {"lengths": positions(2)}, "Prefix"),
    Call(_masked("Segments"), {"query": positions(2, 4), "key": positions(2, 4)}, "Segments"),
    Call(
        lambda size: functional.sliding_window(size).values(4, 4),
        {"size": count(2)},
        "sliding_window",
    ),
    Call(functional.layer_norm, {"x": activations(2, D), "eps": number(1e-5, -1.0)}
         | {"scale": floats(D, optional=True), "bias": floats(D, optional=True)}),
    Call(functional.rms_norm, {"x": activations(2, D), "scale": floats(D, optional=True)}
         | {"eps": number(1e-5, -1.0), "unit_offset": fixed(False)}),
    Call(functional.cross_entropy, {"logits": floats(2, 4, V), "targets": ids(2, 4)}
         | {"weights": floats(2, 4, optional=True), "label_smoothing": number(0.1, -0.1, 2.0)}
         | {"z_loss": number(0.1, -1.0)}),
    Call(functional.chunked_cross_entropy, {"hidden": floats(2, 4, D), "head": floats(D, V)}
         | {"targets": ids(2, 4), "chunk_size": count(2), "softcap": number(5.0, 0.0, none=True)}
         | {"label_smoothing": number(0.1, -0.1, 2.0)}),
    Call(lookup, {"table": floats(V, D), "ids": ids(2, 4)}),
    Call(functional.linear, {"x": floats(2, D), "kernel": floats(D, 3)}
         | {"bias": floats(3, optional=True), "contract": count(1)}),
    Call(functional.feed_forward, {"x": floats(2, D), "up": floats(D, 6), "down": floats(6, D)}
         | {"activation": fixed(jax.nn.gelu)}),
    Call(functional.dropout, {"x": floats(2, D), "rate": share(0.5), "key": fixed(KEYS[0])}),
    Call(functional.activation, {"name": choice("gelu")}),
    Call(functional.patches, {"images": floats(2, 4, 4, 1), "size": fixed((2, 2))}),
    Call(functional.inverse_frequencies, {"theta": number(100.0, 0.0, -1.0)}
         | {"rotary_dim": Argument(D, (*count(D).others, ("wrong", 7)))}),
    Call(functional.rotary_angles, {"positions": positions(1, 4)}
         | {"inverse_frequencies": floats(4)}),
    Call(functional.apply_rope, {"x": floats(2, 4, 2, D), "positions": positions(1, 4)}
         | {"inverse_frequencies": floats(4), "layout": choice("half")}),
    Call(functional.alibi_slopes, {"num_heads": count(4)}),
    Call(functional.alibi_bias, {"slopes": floats(2), "query_positions": positions(1, 4)}
         | {"key_positions": positions(1, 4)}),
    Call(functional.t5_bias, {"table": floats(8, 2), "query_positions": positions(1, 4)}
         | {"key_positions": positions(1, 4), "bidirectional": fixed(False)}
         | {"max_distance": count(16)}),
    Call(functional.t5_bucket, {"relative_position": positions(4), "bidirectional": fixed(True)}
         | {"num_buckets": count(8, 2), "max_distance": count(16)}),
    Call(functional.integer_code, {"positions": positions(1, 4), "max_length": count(8)}),
    Call(functional.binary_code, {"positions": positions(1, 4), "num_bits": count(4)}),
    Call(functional.sinusoidal_code, {"positions": positions(1, 4), "model_dim": count(D)}
         | {"theta": number(100.0, 0.0), "layout": choice("half")}),
    Call(functional.learned_code, {"table": floats(8, D), "positions": ids(1, 4, below=8)}),
    Call(functional.greedy, LOGITS),
    Call(functional.sample, {"keys": fixed(KEYS), **LOGITS}),
    Call(functional.scale_temperature, LOGITS | {"temperature": number(0.5, 0.0, -1.0, 1e-45)}),
    Call(functional.top_k_filter, LOGITS | {"top_k": count(3)}),
    Call(functional.top_p_filter, LOGITS | {"top_p": share(0.5)}),
    Call(functional.min_p_filter, LOGITS | {"min_p": share(0.5)}),
    Call(functional.typical_filter, LOGITS | {"typical_p": share(0.5)}),
    Call(functional.token_log_probabilities, LOGITS | {"tokens": ids(2)}),
    Call(functional.ban_tokens, LOGITS | {"tokens": Argument(
        (1, 2), (("wrong", (V,)), ("wrong", (-1,)), ("wrong", (1.5,)), ("wrong", "12")))}),
    Call(functional.force_token, LOGITS | {"token": Argument(
        1, (("wrong", V), ("wrong", -1), ("wrong", 1.5), ("same", np.int64(1)), *NONSENSE))}),
    Call(functional.token_counts, {"tokens": positions(2, 4), "counted": switches(2, 4)}
         | {"vocab_size": count(V)}),
    Call(functional.repetition_penalty, LOGITS | {"seen": switches(2, V)}
         | {"penalty": number(1.5, 0.0, -1.0)}),
    Call(functional.presence_penalty, LOGITS | {"seen": switches(2, V), "penalty": number(1.5)}),
    Call(functional.frequency_penalty, LOGITS | {"counts": positions(2, V)}
         | {"penalty": number(1.5)}),
    Call(functional.no_repeat_ngram, LOGITS | {"tokens": positions(2, 4)}
         | {"lengths": fixed(jax.numpy.full(2, 4)), "ngram_size": count(2)}),
)  # fmt: skip


def api_calls(model: Any) -> tuple[Call, ...]:
    """`forward`, `gradients`, `generate` and `score` on a small decoder."""
    size = model.config.vocab_size
    tokens = {"input_ids": ids(2, 4, below=size)}

    def inputs(function, names=("input_ids", "attention_mask", "position_ids", "labels")):
        def call(**given):
            arrays = {name: given.pop(name) for name in names if name in given}
            return function(model, arrays, **given)

        return call

    mask = Argument(np.ones((2, 4), np.int32), (
        ("wrong", np.where(np.tri(2, 4), 0, -np.inf)), ("wrong", np.full((2, 4), np.nan)),
        ("wrong", np.full((2, 4), 0.5)), ("same", np.ones((2, 4), bool)),
        *NONSENSE[1:]))  # fmt: skip
    options = {
        "max_new_tokens": Argument(2, (*count(2).others, ("wrong", 10**12))),
        "do_sample": fixed(True),
        "temperature": number(0.5, -1.0, 1e-45),
        "top_k": count(3, 0),
        "top_p": share(0.5),
        "seed": count(3, 0),
        "num_return_sequences": count(2),
        "repetition_penalty": number(1.5, 0.0, -1.0),
        "pad_token_id": Argument(1, (("wrong", 10**40), ("wrong", -1), *NONSENSE[1:])),
    }
    labels = {"labels": ids(2, 4, below=size)}
    return (
        Call(inputs(forward), tokens | {"attention_mask": mask}, "forward"),
        Call(inputs(forward), tokens | {"position_ids": positions(2, 4)}, "forward"),
        Call(inputs(gradients), tokens | labels, "gradients"),
        Call(inputs(generate), tokens | {"attention_mask": mask, **options}, "generate"),
        Call(inputs(score), tokens | {"continuations": Argument(
            [[[1, 2]], [[3]]], (("wrong", [[[]], [[1]]]), ("wrong", [[[size]], [[1]]]),
                                ("wrong", [[["x"]], [[1]]]), ("wrong", [[[1.5]], [[1]]]), *NONSENSE)
        )}, "score"),
    )  # fmt: skip


class Calls:
    """Calls functions with one argument changed."""

    def __init__(self, folder: Path, seed: int):
        self.seed = seed
        with heard():
            self.model = load(whole_run(folder.parent, "text").folder)
        self.calls = (*FUNCTIONS, *api_calls(self.model) * 4)
        self._right: dict[int, Any] = {}

    def trial(self, index: int) -> Trial:
        """Changes one argument of one call."""
        dice = chance(self.seed, PART, index)
        number = dice.randrange(len(self.calls))
        call = self.calls[number]
        changeable = [
            name
            for name, argument in call.arguments.items()
            if argument.others or isinstance(argument.value, np.ndarray)
        ]
        changed = dice.choice(changeable)
        verdict, value = call.arguments[changed].choose(dice)
        with heard():
            right = self._result(number)
            outcome, detail = judge(
                lambda: compared(call, changed, verdict, value, right), tuple(_names(call))
            )
        name = call.name or call.function.__name__.lstrip("_")
        return Trial(PART, index, f"{name}({changed}={_short(value)})", outcome, detail)

    def _result(self, number: int) -> Any:
        if number not in self._right:
            self._right[number] = _called(self.calls[number], {})
        return self._right[number]


def compared(call: Call, changed: str, verdict: Verdict, value: Any, right: Any) -> None:
    """Judges what comes of a call with one argument changed."""
    found = _called(call, {changed: value})
    if verdict == "wrong":
        raise Silent("what cannot be right is accepted")
    if not _all_finite(found) and _all_finite(right):
        raise Silent("numbers that are not finite, from such that are")
    if verdict == "same" and not _equal(found, right):
        raise Silent("the same value written otherwise gives another result")


def _called(call: Call, changes: Mapping[str, Any]) -> Any:
    arguments = {name: argument.value for name, argument in call.arguments.items()} | changes
    return jax.tree.map(np.asarray, call.function(**arguments))


def _names(call: Call) -> list[str]:
    parameters = inspect.signature(call.function).parameters
    return [*call.arguments, *(name for name in parameters if name != "given")]


def _numbers(tree: Any) -> list[np.ndarray]:
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return [array for array in arrays if array.dtype.kind in "fiub"]


def _all_finite(tree: Any) -> bool:
    # -inf excludes a token.
    return not any(np.isnan(array).any() or (array == np.inf).any() for array in _numbers(tree))


def _equal(found: Any, right: Any) -> bool:
    pairs = _numbers(found), _numbers(right)
    return len(pairs[0]) == len(pairs[1]) and all(
        left.shape == other.shape and np.allclose(left, other, 1e-5, 1e-6)
        for left, other in zip(*pairs, strict=True)
    )


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"{type(value).__name__} {value.dtype} {list(value.shape)} {value.ravel()[:2]!s}"
    return short(value)
