"""Differences between the outputs and gradients of two models, ignoring padding.

Two equivalent float32 programs differ by rounding, by an amount that depends on the model and the
machine. Both are therefore compared with the same computation in float64, and our error must be at
most a small multiple of the other program's.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

TIMES = 4.0
"""Maximum error as a multiple of the other program's. Among 6,000 outputs and gradients of all
systems on two instruction sets, the worst was 1.4 times the other's, plus `FLOOR`.
"""
FLOOR = 2.0**-19
"""An error that is always allowed, relative to the largest value: 16 units in the last place."""
CEILING = 2.0**-10
"""The largest float32 error for which outputs can be compared."""

# Outputs of heads whose largest entry is the prediction: a token, a label, a position.
_SCORES = ("logits", "prediction_logits", "start_logits", "logits_per_image")


class Errors(NamedTuple):
    """The errors of two float32 programs, relative to the largest value in float64."""

    ours: float
    theirs: float


def errors(ours: Arrays, theirs: Arrays, exact: Arrays, inputs: Arrays) -> dict[str, Errors]:
    """Returns the errors of each output in both programs, ignoring padding."""
    found = {}
    for name in theirs:
        if name in ours:
            (actual, right), (other, _) = (
                real_parts(name, outputs[name], exact[name], inputs) for outputs in (ours, theirs)
            )
            found[name] = _errors(actual, other, right, _largest(right))
    return found


def gradient_errors(ours: Arrays, theirs: Arrays, exact: Arrays) -> dict[str, Errors]:
    """Returns the errors of each gradient in both programs.

    A gradient may vanish in float64 because the parameter has no effect, such as a key bias before
    a softmax. Its error is then relative to the largest gradient.
    """
    scales = {name: _largest(exact[name]) for name in theirs}
    largest = max(scales.values())
    return {
        name: _errors(ours[name], theirs[name], exact[name], scale)
        for name, scale in scales.items()
        for scale in [scale if scale > 1e-9 * largest else largest]
    }


def limit_of_rounding(found: Mapping[str, Errors]) -> float:
    r"""Returns the largest error that rounding explains.

    .. math:: \min(4 \max_n e_n + 2^{-19}, 2^{-10})

    where e_n are the errors of the other program. All outputs count, because rounding affects
    everything computed from it, and a single output may be exact by chance.
    """
    return min(TIMES * max(pair.theirs for pair in found.values()) + FLOOR, CEILING)


def beyond_rounding(found: Mapping[str, Errors]) -> dict[str, Errors]:
    """Returns the errors that rounding does not explain; empty if both programs are equivalent."""
    limit = limit_of_rounding(found)
    return {n: pair for n, pair in found.items() if pair.ours > limit or pair.theirs > CEILING}


def _errors(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray, scale: float) -> Errors:
    """Returns the errors of two arrays relative to `scale`; inf for NaN or a different shape."""

    def error(found: np.ndarray) -> float:
        if found.shape != exact.shape:
            return float("inf")
        difference = _largest(np.asarray(found, np.float64) - exact) / (scale or 1.0)
        return difference if np.isfinite(difference) else float("inf")

    return Errors(error(ours), error(theirs))


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def differences(ours: Arrays, theirs: Arrays, inputs: Arrays) -> dict[str, float]:
    r"""Returns the largest difference of each output, relative to the reference's largest value.

    .. math:: \max_i |a_i - b_i| / \max_i |b_i|

    Outputs at padding are ignored: in transformers they depend on the attention implementation.
    """
    return {
        name: relative_difference(*real_parts(name, ours[name], theirs[name], inputs))
        for name in theirs
        if name in ours
    }


def gradient_differences(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """Returns the largest difference of each gradient, relative to the reference's largest value.

    A gradient may consist of rounding errors only, because the parameter has no effect, such as a
    key bias before a softmax. If this is the case in both, they count as equal.
    """
    noise = 1e-5 * max(_largest(gradient) for gradient in theirs.values())
    found = {}
    for name, gradient in theirs.items():
        largest = np.max([_largest(x) for x in (gradient, ours[name])])
        found[name] = 0.0 if largest < noise else relative_difference(ours[name], gradient)
    return found


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the largest difference, relative to the second's largest value; inf for NaN."""
    if ours.shape != theirs.shape or np.isnan(ours).any() or np.isnan(theirs).any():
        return float("inf")
    largest = _largest(theirs)
    difference = _largest(ours - theirs)
    return difference / largest if largest else difference


def real_parts(name: str, ours: np.ndarray, theirs: np.ndarray, inputs: Arrays):
    """Returns both outputs with a name at non-padding tokens."""
    decodes = "decoder_input_ids" in inputs and not name.startswith("encoder")
    mask = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    if mask is None:
        return ours, theirs
    mask = mask.reshape(-1, mask.shape[-1])  # choices are separate rows
    for axis in range(ours.ndim - 1):
        if ours.shape[axis : axis + 2] == mask.shape:
            where = (slice(None),) * axis + (mask > 0,)
            return ours[where], theirs[where]
    return ours, theirs


def scores_name(outputs: Arrays) -> str | None:
    """Returns the name of the output with a model's predictions, or None."""
    return next((name for name in _SCORES if name in outputs), None)


def likeliest_agree(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the fraction of positions with the same largest entry in two arrays `[..., V]`."""
    return float(np.mean(ours.argmax(-1) == theirs.argmax(-1)))
