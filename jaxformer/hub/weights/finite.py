"""Weights that are NaN or infinite: no output of a model that has one can be right."""

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError

_BLOCK = 2**16
"""Values that are looked at while they lie in the processor's cache."""


def all_finite(array: np.ndarray) -> bool:
    """Whether a contiguous array of any dtype has neither NaN nor infinities.

    Several times as fast as `np.isfinite` where the dtype is not NumPy's own (bfloat16).
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return True
    bits = f"{8 * array.dtype.itemsize}"
    signed, unsigned = (array.reshape(-1).view(kind + bits) for kind in ("int", "uint"))
    top, bottom = (int(np.array(end, array.dtype).view(f"uint{bits}")) for end in (np.inf, -np.inf))
    # The bits of floats of one sign are whole numbers in the same order, infinity and NaN the last.
    return all(
        signed[start : start + _BLOCK].max() < top
        and unsigned[start : start + _BLOCK].max() < bottom
        for start in range(0, array.size, _BLOCK)
    )


def only_zeros(array: np.ndarray) -> bool:
    """Whether a contiguous array holds nothing but zeros; soon known where it does not."""
    held = array.reshape(-1).view(np.uint8)
    return not held[:_BLOCK].any() and not held.any()


def check_finite(where: str, array: np.ndarray, original: np.ndarray | None = None) -> None:
    """Checks weights, perhaps after a cast.

    Args:
        where: The file and the tensor, for messages.
        array: The weights, contiguous.
        original: What they were cast from; None: they were not.

    Raises:
        DataError: Some are NaN or infinite, or too large for what they were cast to.
    """
    if all_finite(array):
        return
    original = array if original is None else original
    nans, infinite = int(np.isnan(original).sum()), int(np.isinf(original).sum())
    if nans or infinite:
        raise DataError(
            f"{where} has {nans:,} NaN and {infinite:,} infinite values among {original.size:,}: "
            "nothing that is computed with them is right; fetch or train the model again"
        )
    largest = float(np.max(np.abs(original.astype(np.float64))))
    raise DataError(
        f"{where} has values up to {largest:.3g}, which {array.dtype} cannot hold: choose "
        "bfloat16 or float32"
    )
