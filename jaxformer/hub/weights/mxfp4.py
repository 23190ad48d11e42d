"""Tensors in MXFP4, four bits a number with a scale for 32 of them, read as bfloat16 (gpt-oss)."""

import math

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.weights.tensors import Tensor, Tensors

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)
_BLOCKS, _SCALES = "_blocks", "_scales"
_EXPONENT_BIAS = 127


class Mxfp4Tensors:
    """The tensors of a folder, those in MXFP4 under one name and as bfloat16, which is exact.

    `NAME_blocks` uint8 `[E, F, D / 32, 16]` and `NAME_scales` uint8 `[E, F, D / 32]` are `NAME`
    `[E, D, F]`: the lower four bits of a byte come first, and a scale is an exponent of two.

    Attributes:
        folder: The folder.
        tensors: Name -> shape and dtype.
        unused: Those of `files`.
        computed: Those of `files`.

    References:
        Open Compute Project, Microscaling Formats (MX) 1.0, sections 5.1 and 5.2.
    """

    def __init__(self, files: Tensors):
        """Finds the tensors in MXFP4 among those of `files`."""
        self._files = files
        self.folder, self.unused, self.computed = files.folder, files.unused, files.computed
        self.tensors = dict(files.tensors)
        self._packed = set()
        for blocks in [name for name in files.tensors if name.endswith(_BLOCKS)]:
            name = blocks.removesuffix(_BLOCKS)
            shape, dtype = self.tensors.pop(blocks)
            scales = self.tensors.pop(name + _SCALES, None)
            fits = len(shape) == 4 and dtype == np.uint8
            if not fits or scales != Tensor(shape[:-1], dtype):
                raise DataError(
                    f"{self.folder}: {blocks} {shape} {dtype} must be uint8 [E, F, G, 16] with "
                    f"{name}{_SCALES} uint8 [E, F, G]; fetch the model again"
                )
            experts, outputs, *packed = shape
            inputs = 2 * math.prod(packed)
            self.tensors[name] = Tensor((experts, inputs, outputs), np.dtype(jnp.bfloat16))
            self._packed.add(name)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: a new array if it is in MXFP4, a view of the file if possible."""
        if name not in self._packed:
            return self._files.read(name)
        blocks, scales = (self._files.read(name + end) for end in (_BLOCKS, _SCALES))
        experts, inputs, outputs = self.tensors[name].shape
        found = np.empty((experts, inputs, outputs), jnp.bfloat16)
        # One expert at a time: float32 of all of them would be twice the memory.
        for expert, (own, exponents) in enumerate(zip(blocks, scales, strict=True)):
            pairs = np.stack([_VALUES[own & 15], _VALUES[own >> 4]], axis=-1)
            groups = pairs.reshape(*exponents.shape, -1)
            scaled = np.ldexp(groups, exponents[..., None].astype(np.int32) - _EXPONENT_BIAS)
            found[expert] = scaled.reshape(outputs, inputs).T
        return found
