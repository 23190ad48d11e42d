"""What an adapter of PEFT does to the weight and the bias of one module."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.peft.config import MERGE, PeftConfig

Change = Callable[[np.ndarray], np.ndarray]
"""From a tensor to another one, in float32."""


@dataclass(frozen=True)
class ModuleChange:
    """What an adapter has for one module."""

    at: str
    """The adapter's file, for messages."""
    module: str
    """Its name."""
    config: PeftConfig
    """What the adapter's tensors mean."""
    shape: tuple[int, ...]
    """That of its weight."""
    in_out: bool
    """Whether its weight is `[inputs, outputs]`."""
    parts: Mapping[str, np.ndarray]
    """The adapter's tensors, by what they are."""
    weight: float
    """What multiplies the product of its factors, besides their scale."""

    @property
    def rank(self) -> int:
        """The columns of the factors; 0: there are none."""
        first = self.parts.get("a", self.parts.get("embedding_a"))
        return 0 if first is None else len(first)

    @property
    def scale(self) -> np.float32:
        """What multiplies the product of the factors."""
        return np.float32(self.weight * self.config.scale_of(self.module, self.rank))

    def of_weight(self) -> Change:
        """The change of the module's weight."""
        if "tokens" in self.parts:
            return self._with_tokens(self.config.tokens_of(self.module))
        if "factors" in self.parts:
            return self._scaled(self.parts["factors"])
        if not self.config.has_factors or self.config.use_dora > ("magnitude" in self.parts):
            raise DataError(
                f"{self.at}: what it has for {self.module} ({', '.join(self.parts)}) is not what "
                "adapter_config.json says of it (peft_type, use_dora): fetch both files again"
            )
        return self._with_factors(*self._factors())

    def of_bias(self) -> Change | None:
        """The change of its bias, if there is one."""
        if (bias := self.parts.get("bias")) is not None:
            return lambda value: value + self.scale * bias
        factors = self.parts.get("factors")
        if factors is None or factors.shape[0] == 1:  # of the inputs
            return None
        return lambda value: value * factors[:, 0]

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """`[rows, r]` and `[r, columns]` of the weight."""
        pair, embeds = ("a", "b"), "embedding_a" in self.parts
        if embeds:
            pair = ("embedding_a", "embedding_b")
        a, b = (self.parts.get(name) for name in pair)
        turned = embeds or self.in_out
        rows, columns = self.shape[0], math.prod(self.shape[1:])
        inputs, outputs = (rows, columns) if turned else (columns, rows)
        # A convolution's inputs are the pixels of a patch.
        flat = [None if side is None else side.reshape(len(side), -1) for side in (a, b)]
        wanted = (self.rank, inputs), (outputs, self.rank)
        if tuple(getattr(side, "shape", None) for side in flat) != wanted:
            shapes = [getattr(side, "shape", None) for side in (a, b)]
            raise DataError(
                f"{self.at}: the factors of {self.module} have the shapes {shapes[0]} and "
                f"{shapes[1]}: must be (r, {inputs}) and ({outputs}, r) for this model"
            )
        a, b = flat
        return (a.T, b.T) if turned else (b, a)

    def _with_factors(self, left: np.ndarray, right: np.ndarray) -> Change:
        magnitude = self.parts.get("magnitude")
        axis = 0 if self.in_out or "embedding_a" in self.parts else 1

        def change(value: np.ndarray) -> np.ndarray:
            moved = value + self.scale * (left @ right).reshape(value.shape)
            if magnitude is None:
                return moved
            flat = moved.reshape(len(moved), -1)
            norm = np.linalg.norm(flat, axis=axis, keepdims=True)
            flat = flat * (np.expand_dims(magnitude.reshape(-1), axis) / norm)
            return flat.reshape(value.shape)

        return change

    def _scaled(self, factors: np.ndarray) -> Change:
        # (1, inputs) of a feed-forward layer, (outputs, 1) of others.
        by = factors.T if self.in_out else factors
        if len(self.shape) != 2 or any(
            size not in (1, whole) for size, whole in zip(by.shape, self.shape, strict=True)
        ):
            raise DataError(
                f"{self.at}: the factors of {self.module} have the shape {factors.shape}, which "
                f"do not fit a weight of {self.shape}; {MERGE}"
            )
        return lambda value: value * by

    def _with_tokens(self, rows: Sequence[int]) -> Change:
        delta = self.parts["tokens"]
        if delta.shape != (len(rows), *self.shape[1:]) or not all(
            0 <= row < self.shape[0] for row in rows
        ):
            raise DataError(
                f"{self.at}: {self.module} has {len(delta)} tokens of width {delta.shape[1:]}: "
                f"must be the {len(rows)} that the config names, of a table of {self.shape}"
            )

        def change(value: np.ndarray) -> np.ndarray:
            value = value.copy()
            value[list(rows)] = delta
            return value

        return change
