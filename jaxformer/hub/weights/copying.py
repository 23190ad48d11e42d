"""Fast copies of arrays whose axes were turned, and buffers that JAX takes as they are."""

import numpy as np

_ALIGNMENT = 64
"""Bytes to which a buffer must be aligned for JAX to take it as it is instead of copying it."""
_BLOCK = (32, 512)
"""Of a turned copy: rows that are read at once, a cache line of the target in 16 bits, and how much
of each, what a second cache holds easily."""


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
    rows, width = _BLOCK
    for place in np.ndindex(source.shape[:-2]):
        ours, theirs = target[place], source[place]
        for row in range(0, source.shape[-1], rows):
            # Cast while they lie in order, which is faster than on the way.
            read = theirs[:, row : row + rows].T.astype(target.dtype, copy=False).T
            for start in range(0, source.shape[-2], width):
                ours[start : start + width, row : row + rows] = read[start : start + width]
