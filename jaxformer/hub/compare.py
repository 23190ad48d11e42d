"""How far two models' outputs and gradients lie apart, where they mean something."""

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]

# Outputs of heads, whose largest entry is an answer: a token, a label, a place.
_SCORES = ("logits", "prediction_logits", "start_logits")


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
    noise = 1e-5 * max(np.max(np.abs(gradient)) for gradient in theirs.values())
    found = {}
    for name, gradient in theirs.items():
        largest = np.max([np.max(np.abs(x)) for x in (gradient, ours[name])])
        found[name] = 0.0 if largest < noise else relative_difference(ours[name], gradient)
    return found


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference beside the largest value of the second; inf for what is no number."""
    if ours.shape != theirs.shape or np.isnan(ours).any() or np.isnan(theirs).any():
        return float("inf")
    largest = float(np.max(np.abs(theirs), initial=0.0))
    difference = float(np.max(np.abs(ours - theirs), initial=0.0))
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
