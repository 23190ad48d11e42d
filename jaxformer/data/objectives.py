"""Training objectives: what the model is given of a row of tokens, and what it must predict."""

import abc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One row of tokens as packing lays it out; all arrays are [T].

    Attributes:
        tokens: int32, the tokens; the padding token after the last.
        following: int32, the token that comes after each in its document, be it beyond the row.
        valid: bool, False at padding.
        segments: int32, 1.. for each document in the row and 0 at padding, or None where a row is
            one stretch of text.
        positions: int32, each token's distance from the start of its segment, or None likewise.
    """

    tokens: np.ndarray
    following: np.ndarray
    valid: np.ndarray
    segments: np.ndarray | None
    positions: np.ndarray | None


class Objective(abc.ABC):
    """A pure function from a row to one row of the batch; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, row: Row, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns "inputs", "targets" and "weights" [T], and what else the row carries.

        Args:
            row: The tokens.
            rng: The row's own generator, a function of the seed and of the row's number in the
                order of training, so the result depends neither on threads nor on hosts.
        """


@dataclass(frozen=True)
class CausalLM(Objective):
    """Predict each next token.

    inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 unless t is padding
    """

    def __call__(self, row: Row, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the row as inputs and the tokens that follow as targets."""
        example = {
            "inputs": row.tokens,
            "targets": row.following,
            "weights": row.valid.astype(np.float32),
        }
        if row.segments is not None:
            example |= {"segments": row.segments, "positions": row.positions}
        return example
