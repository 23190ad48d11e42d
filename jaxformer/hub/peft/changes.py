"""The changes that a PEFT adapter makes to the weight and the bias of one module."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.peft.config import MERGE, PeftConfig

Change = Callable[[np.ndarray], np.ndarray]
"""Maps a tensor to the changed tensor, in float32."""


@dataclass(frozen=True)
class ModuleChange:
    """The adapter's tensors for one module, and their effect on it."""

    at: str
    """The adapter's file, for messages."""
    module: str
    """The name of the module."""
    config: PeftConfig
    shape: tuple[int, ...]
    """The shape of the module's weight."""
    in_out: bool
    """Whether the weight is `[inputs, outputs]`."""
    parts: Mapping[str, np.ndarray]
    """The adapter's tensors by kind: "a", "b", "magnitude", ..."""
    weight: float
    """The weight of the adapter, a factor of the scale."""

    @property
    def rank(self) -> int:
        """The rank of the factors; 0 if there are none."""
        first = self.parts.get("a", self.parts.get("embedding_a"))
        return 0 if first is None else len(first)

    @property
    def scale(self) -> np.float32:
        """The scale of the product of the low-rank factors."""
        return np.float32(self.weight * self.config.scale_of(self.module, self.rank))

    def of_weight(self) -> Change:
        """Returns the change of the module's weight."""
        if "tokens" in self.parts:
            return self._with_tokens(self.config.tokens_of(self.module))
        if "factors" in self.parts:
            return self._scaled(self.parts["factors"])
        if not self.config.has_factors or self.config.use_dora > ("magnitude" in self.parts):
            raise DataError(
                f"{self.at}: the tensors of {self.module} ({', '.join(self.parts)}) do not match "
                "peft_type and use_dora in adapter_config.json: fetch both files again"
            )
        return self._with_factors(*self._factors())

    def of_bias(self) -> Change | None:
        """Returns the change of the module's bias, or None."""
        if (bias := self.parts.get("bias")) is not None:
            return lambda value: value + self.scale * bias
        factors = self.parts.get("factors")
        if factors is None or factors.shape[0] == 1:  # scales the inputs, not the outputs
            return None
        return lambda value: value * factors[:, 0]

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the factors `[rows, r]` and `[r, columns]` of the weight."""
        pair, embeds = ("a", "b"), "embedding_a" in self.parts
        if embeds:
            pair = ("embedding_a", "embedding_b")
        a, b = (self.parts.get(name) for name in pair)
        turned = embeds or self.in_out
        rows = self.shape[0]
        columns = math.prod(self.shape[1:])
        inputs, outputs = (rows, columns) if turned else (columns, rows)
        # The inputs of a convolution are the pixels of a patch.
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
        # (1, inputs) in feed-forward layers, (outputs, 1) in others.
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
                f"must be the {len(rows)} tokens that the config names, for a table of {self.shape}"
            )

        def change(value: np.ndarray) -> np.ndarray:
            value = value.copy()
            value[list(rows)] = delta
            return value

        return change
