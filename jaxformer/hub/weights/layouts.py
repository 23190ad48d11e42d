"""Layouts: how a tensor of a file stores one or several of our parameters.

They rearrange NumPy arrays, or JAX arrays under transformations.
"""

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]


class Slot(NamedTuple):
    """A parameter, or one layer of a stacked parameter."""

    shape: Shape
    inputs: int
    """The number of leading axes that are a kernel's inputs; 0 for other parameters."""

    @property
    def matrix(self) -> Shape:
        """The sizes (inputs, outputs) of a kernel."""
        return math.prod(self.shape[: self.inputs]), math.prod(self.shape[self.inputs :])


class Layout(abc.ABC):
    """How a tensor stores parameters; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def shape(self, slots: Sequence[Slot]) -> Shape:
        """Returns the shape of the tensor that stores these parameters."""

    @abc.abstractmethod
    def read(self, tensor: np.ndarray, slots: Sequence[Slot]) -> list[np.ndarray]:
        """Returns the parameters in a tensor, as views of it if possible."""

    @abc.abstractmethod
    def write(self, arrays: Sequence[np.ndarray], slots: Sequence[Slot]) -> np.ndarray:
        """Returns the tensor that stores these parameters."""


@dataclass(frozen=True)
class Constant(Layout):
    """A tensor without parameters: a table that is computed on demand."""

    sizes: Shape
    compute: Callable[[], np.ndarray]

    def shape(self, slots):
        return self.sizes

    def read(self, tensor, slots):
        return []

    def write(self, arrays, slots):
        return self.compute()


class Single(Layout):
    """A tensor with one parameter."""

    @abc.abstractmethod
    def shape_of(self, slot: Slot) -> Shape:
        """Returns the shape of the tensor."""

    def read_one(self, tensor: np.ndarray, slot: Slot) -> np.ndarray:
        """Returns the parameter in a tensor."""
        return tensor.reshape(slot.shape)

    def write_one(self, array: np.ndarray, slot: Slot) -> np.ndarray:
        """Returns the tensor of a parameter."""
        return array.reshape(self.shape_of(slot))

    def shape(self, slots):
        return self.shape_of(*slots)

    def read(self, tensor, slots):
        return [self.read_one(tensor, *slots)]

    def write(self, arrays, slots):
        return self.write_one(*arrays, *slots)


@dataclass(frozen=True)
class Same(Single):
    """The parameter unchanged, after `leading` axes of size 1."""

    leading: int = 0

    def shape_of(self, slot):
        return (1,) * self.leading + slot.shape


@dataclass(frozen=True)
class Flat(Single):
    """`[outputs]`: a bias or scale with one axis."""

    def shape_of(self, slot):
        return (math.prod(slot.shape),)


@dataclass(frozen=True)
class OutIn(Single):
    """`[outputs, inputs]`: the kernel of a PyTorch `Linear`."""

    def shape_of(self, slot):
        return slot.matrix[::-1]

    def read_one(self, tensor, slot):
        return tensor.T.reshape(slot.shape)

    def write_one(self, array, slot):
        return array.reshape(slot.matrix).T


@dataclass(frozen=True)
class InOut(Single):
    """`[inputs, outputs]`: the kernel of GPT-2's `Conv1D`."""

    def shape_of(self, slot):
        return slot.matrix


@dataclass(frozen=True)
class Convolution(Single):
    """`[outputs, inputs, *window]`: a convolution's kernel; in ours, the window comes first."""

    def shape_of(self, slot):
        *places, inputs, outputs = slot.shape
        return outputs, inputs, *places

    def read_one(self, tensor, slot):
        return tensor.transpose(*range(2, tensor.ndim), 1, 0)

    def write_one(self, array, slot):
        return array.transpose(-1, -2, *range(array.ndim - 2))


@dataclass(frozen=True)
class Codebooks(Single):
    """`[1, codebooks codes, width]`: the vectors of all codebooks (wav2vec 2.0)."""

    def shape_of(self, slot):
        books, codes, width = slot.shape
        return 1, books * codes, width


@dataclass(frozen=True)
class PixelShuffle(Single):
    """`[channels rows columns, inputs, 1, 1]`: the 1x1 convolution before PyTorch's `PixelShuffle`.

    Its bias is `[channels rows columns]`.
    """

    def shape_of(self, slot):
        outputs = math.prod(slot.shape[-3:])
        return (outputs, *slot.shape[:-3], *((1, 1) if slot.inputs else ()))

    def read_one(self, tensor, slot):
        rows, columns, channels = slot.shape[-3:]
        pixels = tensor.reshape(channels, rows, columns, *slot.shape[:-3])
        return pixels.transpose(*range(3, pixels.ndim), 1, 2, 0)

    def write_one(self, array, slot):
        others = array.ndim - 3
        order = (others + 2, others, others + 1, *range(others))
        return array.transpose(order).reshape(self.shape_of(slot))


@dataclass(frozen=True)
class Concatenated(Layout):
    """Several kernels, or their biases, concatenated along the axis of their outputs."""

    kernel: Single = OutIn()
    """The layout of each kernel."""

    def shape(self, slots):
        part, axis = self._part(slots)
        shapes = [part.shape_of(slot) for slot in slots]
        joined = list(shapes[0])
        joined[axis] = sum(shape[axis] for shape in shapes)
        return tuple(joined)

    def read(self, tensor, slots):
        part, axis = self._part(slots)
        found, start = [], 0
        for slot in slots:
            stop = start + part.shape_of(slot)[axis]
            piece = tensor[:, start:stop] if axis else tensor[start:stop]
            found.append(part.read_one(piece, slot))
            start = stop
        return found

    def write(self, arrays, slots):
        part, axis = self._part(slots)
        pieces = [part.write_one(array, slot) for array, slot in zip(arrays, slots, strict=True)]
        return _concatenated(pieces, axis)

    def _part(self, slots) -> tuple[Single, int]:
        if not slots[0].inputs:
            return Flat(), 0
        return self.kernel, 0 if isinstance(self.kernel, OutIn) else 1


@dataclass(frozen=True)
class Alternating(Layout):
    """Several parameters of one shape, interleaved along the last axis (gpt-oss)."""

    def shape(self, slots):
        *leading, last = slots[0].shape
        return (*leading, len(slots) * last)

    def read(self, tensor, slots):
        return [tensor[..., place :: len(slots)] for place in range(len(slots))]

    def write(self, arrays, slots):
        pieces = [array[..., None] for array in arrays]
        return _concatenated(pieces, -1).reshape(self.shape(slots))


@dataclass(frozen=True)
class PerHead(Layout):
    """`[(N, H + H'), inputs]`: several kernels, head by head (DeepSeek)."""

    def shape(self, slots):
        return sum(slot.matrix[1] for slot in slots), slots[0].matrix[0]

    def read(self, tensor, slots):
        widths = [slot.shape[-1] for slot in slots]
        heads = tensor.reshape(-1, sum(widths), tensor.shape[-1])
        found, start = [], 0
        for slot, width in zip(slots, widths, strict=True):
            part = heads[:, start : start + width]
            found.append(part.transpose(2, 0, 1).reshape(slot.shape))
            start += width
        return found

    def write(self, arrays, slots):
        return _concatenated(arrays, -1).reshape(slots[0].matrix[0], -1).T


@dataclass(frozen=True)
class PerKeyHead(Layout):
    """`[(K, G + 2, H), inputs]`: for each key head, its G queries, key and value.

    GPT-NeoX and BLOOM have G = 1, and Falcon's multi-query attention has K = 1.
    """

    def shape(self, slots):
        outputs = sum(math.prod(slot.shape[slot.inputs :]) for slot in slots)
        return (outputs, *self._inputs(slots))

    def read(self, tensor, slots):
        heads, groups, width = self._sizes(slots)
        view = tensor.reshape(heads, groups + 2, width, *self._inputs(slots))
        parts = (view[:, :groups], view[:, groups], view[:, groups + 1])
        single = _projection_layout(slots)
        return [
            single.read_one(part.reshape(single.shape_of(slot)), slot)
            for part, slot in zip(parts, slots, strict=True)
        ]

    def write(self, arrays, slots):
        heads, _, width = self._sizes(slots)
        single = _projection_layout(slots)
        inputs = self._inputs(slots)
        parts = [
            single.write_one(array, slot).reshape(heads, -1, width, *inputs)
            for array, slot in zip(arrays, slots, strict=True)
        ]
        return _concatenated(parts, 1).reshape(-1, *inputs)

    @staticmethod
    def _inputs(slots) -> Shape:
        return (slots[0].matrix[0],) if slots[0].inputs else ()

    @staticmethod
    def _sizes(slots) -> Shape:
        """Returns (K, G, H)."""
        (queries, width), (heads, _) = slots[0].shape[-2:], slots[1].shape[-2:]
        return heads, queries // heads, width


def _concatenated(pieces: Sequence[np.ndarray], axis: int) -> np.ndarray:
    library = jnp if isinstance(pieces[0], jax.Array) else np
    return library.concatenate(pieces, axis=axis)


def _projection_layout(slots: Sequence[Slot]) -> Single:
    return OutIn() if slots[0].inputs else Flat()


def default_layout(leaf: str) -> Single:
    """Returns the default layout of a parameter by its last name."""
    return {"kernel": OutIn(), "bias": Flat(), "scale": Flat()}.get(leaf, Same())
