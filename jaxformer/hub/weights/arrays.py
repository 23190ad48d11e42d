"""Large arrays of weights: fast copies, and checks for values that no model has."""

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError

_ALIGNMENT = 64
"""Bytes to which a buffer must be aligned for JAX to take it as it is instead of copying it."""
_COPY_BLOCK = (32, 512)
"""Of a turned copy: rows that are read at once, a cache line of the target in 16 bits, and how much
of each, what a second cache holds easily."""
_CHECK_BLOCK = 2**16
"""Values that are looked at while they lie in the processor's cache."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array, not filled, that JAX can use on a CPU without a copy."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(count + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + count].view(dtype).reshape(shape)


@np.errstate(over="ignore")
def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """Copies an array into another of its shape, casting it; fast where the axes were turned.

    What is too large for the target's dtype becomes infinite, which `check_finite` finds.

    Args:
        target: Its last axis is contiguous.
        source: A view of a contiguous array with its axes in any order.
    """
    fastest = min(range(source.ndim), key=lambda axis: source.strides[axis], default=-1)
    last = source.ndim - 1
    if fastest == last or min(source.shape) == 0:
        np.copyto(target, source, casting="unsafe")
        return
    # NumPy goes along the target's rows, of which each element is another row of the source.
    target, source = (np.moveaxis(array, fastest, -2) for array in (target, source))
    rows, width = _COPY_BLOCK
    for place in np.ndindex(source.shape[:-2]):
        ours, theirs = target[place], source[place]
        for row in range(0, source.shape[-1], rows):
            # Cast while they lie in order, which is faster than on the way.
            read = theirs[:, row : row + rows].T.astype(target.dtype, copy=False).T
            for start in range(0, source.shape[-2], width):
                ours[start : start + width, row : row + rows] = read[start : start + width]


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
        signed[start : start + _CHECK_BLOCK].max() < top
        and unsigned[start : start + _CHECK_BLOCK].max() < bottom
        for start in range(0, array.size, _CHECK_BLOCK)
    )


def only_zeros(array: np.ndarray) -> bool:
    """Whether a contiguous array holds nothing but zeros; soon known where it does not."""
    held = array.reshape(-1).view(np.uint8)
    return not held[:_CHECK_BLOCK].any() and not held.any()


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
