"""Large arrays that are recomputed at each start and kept in a memory-mapped temporary file."""

import tempfile

import numpy as np

_LARGE = 1 << 20


def spilled(array: np.ndarray) -> np.ndarray:
    """Moves a large array from memory into a memory-mapped temporary file.

    The file is unlinked, so it disappears with the process. Set the environment variable TMPDIR to
    choose its folder.
    """
    if array.nbytes < _LARGE:
        return array
    with tempfile.TemporaryFile(prefix="jaxformer-") as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, mode="r", shape=array.shape)
