"""Large arrays of weights: fast copies and checks of their values."""

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError

_ALIGNMENT = 64
"""The alignment in bytes of buffers that JAX uses without a copy."""
_COPY_BLOCK = (32, 512)
"""Rows and columns per block of a transposing copy: a cache line of 16-bit values, and as many as
fit in the second-level cache.
"""
_CHECK_BLOCK = 2**16
"""The number of values per check, which fit in the processor's cache."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array that JAX can use on a CPU without a copy."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(count + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + count].view(dtype).reshape(shape)


@np.errstate(over="ignore")
def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """Copies and casts an array into another of the same shape, fast even if axes are permuted.

    The last axis of `target` must be contiguous. Values too large for its dtype become infinite,
    which `check_finite` detects.
    """
    fastest = min(range(source.ndim), key=lambda axis: source.strides[axis], default=-1)
    last = source.ndim - 1
    if fastest == last or min(source.shape) == 0:
        np.copyto(target, source, casting="unsafe")
        return
    # NumPy would iterate over the target's rows, whose elements are in different source rows.
    target, source = (np.moveaxis(array, fastest, -2) for array in (target, source))
    rows, width = _COPY_BLOCK
    for place in np.ndindex(source.shape[:-2]):
        ours, theirs = target[place], source[place]
        for row in range(0, source.shape[-1], rows):
            # Casting contiguous values first is faster.
            read = theirs[:, row : row + rows].T.astype(target.dtype, copy=False).T
            for start in range(0, source.shape[-2], width):
                ours[start : start + width, row : row + rows] = read[start : start + width]


def all_finite(array: np.ndarray) -> bool:
    """Returns whether a contiguous array has neither NaN nor infinities.

    For dtypes that NumPy lacks (bfloat16), this is several times faster than `np.isfinite`.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return True
    bits = f"{8 * array.dtype.itemsize}"
    signed, unsigned = (array.reshape(-1).view(kind + bits) for kind in ("int", "uint"))
    top, bottom = (int(np.array(end, array.dtype).view(f"uint{bits}")) for end in (np.inf, -np.inf))
    # Floats of one sign have the same order as their bits; infinity and NaN come last.
    return all(
        signed[start : start + _CHECK_BLOCK].max() < top
        and unsigned[start : start + _CHECK_BLOCK].max() < bottom
        for start in range(0, array.size, _CHECK_BLOCK)
    )


def only_zeros(array: np.ndarray) -> bool:
    """Whether a contiguous array has only zeros; returns early if it does not."""
    raw = array.reshape(-1).view(np.uint8)
    return not raw[:_CHECK_BLOCK].any() and not raw.any()


def check_finite(where: str, array: np.ndarray, original: np.ndarray | None = None) -> None:
    """Refuses weights that are NaN or infinite, or became so in a cast from `original`."""
    if all_finite(array):
        return
    original = array if original is None else original
    nans = int(np.isnan(original).sum())
    infinite = int(np.isinf(original).sum())
    if nans or infinite:
        raise DataError(
            f"{where} has {nans:,} NaN and {infinite:,} infinite values among {original.size:,}: "
            "results would be wrong; fetch or train the model again"
        )
    largest = float(np.max(np.abs(original.astype(np.float64))))
    raise DataError(
        f"{where} has values up to {largest:.3g}, which {array.dtype} cannot hold: choose "
        "bfloat16 or float32"
    )
