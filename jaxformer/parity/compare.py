"""How far two models' outputs and gradients lie apart, where they mean something.

Two float32 programs that compute the same differ by rounding, and by how much depends on the model
and on the machine. So neither is judged by the other: both are compared with the same computation
in float64, and ours may lie no further from it than a small multiple of where the other lies.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

TIMES = 4.0
"""How many times as far from float64 as the other program ours may lie. Of 6,000 outputs and
gradients of all systems on two instruction sets the worst lay 1.4 times as far, and `FLOOR`."""
FLOOR = 2.0**-19
"""How far ours may lie in any case, beside the largest value: 16 units in the last place."""
CEILING = 2.0**-10
"""Where float32 loses more than this, it computes nothing that could be compared."""

# Outputs of heads, whose largest entry is an answer: a token, a label, a place.
_SCORES = ("logits", "prediction_logits", "start_logits")


class Errors(NamedTuple):
    """How far two float32 programs lie from float64, beside its largest value."""

    ours: float
    theirs: float


def errors(ours: Arrays, theirs: Arrays, exact: Arrays, inputs: Arrays) -> dict[str, Errors]:
    """How far each output lies from float64 in both programs, padding left out.

    Args:
        ours: By name.
        theirs: By name; only outputs that all three have are compared.
        exact: What theirs gives in float64.
        inputs: With the masks.
    """
    found = {}
    for name in theirs:
        if name in ours:
            (actual, right), (other, _) = (
                real_parts(name, outputs[name], exact[name], inputs) for outputs in (ours, theirs)
            )
            found[name] = _errors(actual, other, right, _largest(right))
    return found


def gradient_errors(ours: Arrays, theirs: Arrays, exact: Arrays) -> dict[str, Errors]:
    """How far each gradient lies from float64 in both programs.

    One that vanishes in float64, because the parameter changes nothing (a softmax does not see the
    bias of its keys), is measured beside the largest of all.

    Args:
        ours: By the names of tensors.
        theirs: By name; all of these are compared.
        exact: What theirs gives in float64.
    """
    scales = {name: _largest(exact[name]) for name in theirs}
    largest = max(scales.values())
    return {
        name: _errors(ours[name], theirs[name], exact[name], scale)
        for name, scale in scales.items()
        for scale in [scale if scale > 1e-9 * largest else largest]
    }


def limit_of_rounding(found: Mapping[str, Errors]) -> float:
    r"""How far ours may lie from float64 for rounding alone to explain it.

    .. math:: \min(4 \max_n e_n + 2^{-19}, 2^{-10})

    where e_n are the errors of theirs: rounding anywhere reaches everything that is computed from
    it, and any one of theirs may be right by chance.
    """
    return min(TIMES * max(pair.theirs for pair in found.values()) + FLOOR, CEILING)


def beyond_rounding(found: Mapping[str, Errors]) -> dict[str, Errors]:
    """Those that rounding does not explain; none where both compute the same."""
    limit = limit_of_rounding(found)
    return {n: pair for n, pair in found.items() if pair.ours > limit or pair.theirs > CEILING}


def _errors(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray, scale: float) -> Errors:
    """Of arrays, beside that scale; inf for what is no number or of another shape."""

    def error(found: np.ndarray) -> float:
        if found.shape != exact.shape:
            return float("inf")
        difference = _largest(np.asarray(found, np.float64) - exact) / (scale or 1.0)
        return difference if np.isfinite(difference) else float("inf")

    return Errors(error(ours), error(theirs))


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def differences(ours: Arrays, theirs: Arrays, inputs: Arrays) -> dict[str, float]:
    r"""The largest difference of each output beside the largest value of the reference.

    .. math:: \max_i |a_i - b_i| / \max_i |b_i|

    Outputs at padding are left out: what transformers makes of them depends on its implementation.

    Args:
        ours: By name.
        theirs: By name; only names that both have are compared.
        inputs: With the masks.
    """
    return {
        name: relative_difference(*real_parts(name, ours[name], theirs[name], inputs))
        for name in theirs
        if name in ours
    }


def gradient_differences(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """The largest difference of each gradient beside the largest value of the reference.

    What is rounding there, because the parameter changes nothing (a softmax does not see the bias
    of its keys), counts as equal where it is rounding here too.

    Args:
        ours: By the names of tensors.
        theirs: By name; all of these are compared.
    """
    noise = 1e-5 * max(_largest(gradient) for gradient in theirs.values())
    found = {}
    for name, gradient in theirs.items():
        largest = np.max([_largest(x) for x in (gradient, ours[name])])
        found[name] = 0.0 if largest < noise else relative_difference(ours[name], gradient)
    return found


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference beside the largest value of the second; inf for what is no number."""
    if ours.shape != theirs.shape or np.isnan(ours).any() or np.isnan(theirs).any():
        return float("inf")
    largest, difference = _largest(theirs), _largest(ours - theirs)
    return difference / largest if largest else difference


def real_parts(name: str, ours: np.ndarray, theirs: np.ndarray, inputs: Arrays):
    """Both outputs of that name at the tokens that the mask calls real."""
    decodes = "decoder_input_ids" in inputs and not name.startswith("encoder")
    mask = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    if mask is None:
        return ours, theirs
    for axis in range(ours.ndim - 1):
        if ours.shape[axis : axis + 2] == mask.shape:
            where = (slice(None),) * axis + (mask > 0,)
            return ours[where], theirs[where]
    return ours, theirs


def scores_name(outputs: Arrays) -> str | None:
    """The output that says what a model answers; None of one without a head that does."""
    return next((name for name in _SCORES if name in outputs), None)


def likeliest_agree(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The share of places whose largest entry is the same; of two arrays `[..., V]`."""
    return float(np.mean(ours.argmax(-1) == theirs.argmax(-1)))
