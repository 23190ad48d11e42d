"""Large arrays that are computed at each start and read in places, kept on disk meanwhile."""

import tempfile

import numpy as np

_LARGE = 1 << 20


def spilled(array: np.ndarray) -> np.ndarray:
    """Moves a large array from memory into a temporary file that the process maps.

    The file has no name, so that it ends with the process. It is in the folder for temporary files,
    which the environment variable TMPDIR chooses.
    """
    if array.nbytes < _LARGE:
        return array
    with tempfile.TemporaryFile(prefix="jaxformer-") as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, mode="r", shape=array.shape)
