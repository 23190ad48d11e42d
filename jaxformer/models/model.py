"""What all families share: hidden states of a batch, handed to one or several heads."""

import jax
from flax import nnx

from jaxformer.errors import check_argument
from jaxformer.functional.assertions import assert_axes, assert_ids, assert_integers
from jaxformer.functional.dropout import split
from jaxformer.functional.losses import LossSums
from jaxformer.functional.masks import Mask
from jaxformer.models.heads.base import (
    DEFAULT_OPTIONS,
    Batch,
    LossOptions,
    ModelOutput,
    Predictions,
)


def assert_tokens(
    vocab_size: int,
    inputs: jax.Array,
    *,
    positions: jax.Array | None = None,
    mask: Mask | None = None,
    **per_token: jax.Array | None,
) -> None:
    """Asserts that the tokens of a family and what belongs to them fit together.

    Args:
        vocab_size: V.
        inputs: int `[B, T]`.
        positions: int `[B or 1, T]` or None.
        mask: A mask or None.
        **per_token: Other int arrays `[B, T]`, by their names, or None.

    Raises:
        AssertionError: Names the array, its shape or dtype, and what is right.
        ArgumentError: Names the argument, its value and what is right.
    """
    sizes = assert_axes(inputs=(inputs, "B T"))
    assert_ids(vocab_size, inputs=inputs)
    wanted = "a mask such as KeyPadding(valid), for an array DenseMask(array), or None"
    check_argument("mask", mask, mask is None or isinstance(mask, Mask), wanted)
    if positions is not None:
        assert_axes(sizes, positions=(positions, "B/1 T"))
        assert_integers(positions=positions)
    for name, array in per_token.items():
        if array is not None:
            assert_axes(sizes, **{name: (array, "B T")})
            assert_integers(**{name: array})


class Model(nnx.Module):
    """A model with heads. A subclass sets `heads`, by name, and says how it reads a batch."""

    heads: nnx.Dict
    segments = "segments"
    """Where a batch says which of the tokens whose states the heads read are real."""

    def states(self, batch: Batch, key: jax.Array | None = None) -> ModelOutput:
        """The hidden states of a batch, and what else the heads need.

        Args:
            batch: Arrays by name; those that the family does not know are left alone.
            key: The dropout key; None in evaluation.
        """
        raise NotImplementedError

    def valid(self, batch: Batch) -> jax.Array | None:
        """Which tokens, among those whose states the heads read, are real: bool `[B, T]`.

        None: all are.
        """
        return batch[self.segments] > 0 if self.segments in batch else None

    def scores(self, batch: Batch) -> dict[str, jax.Array]:
        """Every head's float32 scores, without dropout."""
        states = self.states(batch)
        return {name: head.scores(states) for name, head in self.heads.items()}

    def losses(
        self, batch: Batch, options: LossOptions = DEFAULT_OPTIONS, key: jax.Array | None = None
    ) -> dict[str, LossSums]:
        """Every head's summed losses."""
        states, keys = self.states_and_keys(batch, key)
        return self.losses_of(states, keys, batch, options)

    def states_and_keys(
        self, batch: Batch, key: jax.Array | None
    ) -> tuple[ModelOutput, dict[str, jax.Array | None]]:
        """The hidden states of a batch, and every head's own dropout key."""
        states_key, *keys = split(key, 1 + len(self.heads))
        return self.states(batch, states_key), dict(zip(self.heads, keys, strict=True))

    def losses_of(
        self,
        states: ModelOutput,
        keys: dict[str, jax.Array | None],
        batch: Batch,
        options: LossOptions = DEFAULT_OPTIONS,
    ) -> dict[str, LossSums]:
        """Every head's summed losses, from what `states_and_keys` gave for the batch."""
        return {
            name: head.sums(states, batch, options, keys[name]) for name, head in self.heads.items()
        }

    def evaluation(
        self, batch: Batch, options: LossOptions = DEFAULT_OPTIONS
    ) -> tuple[dict[str, LossSums], dict[str, Predictions]]:
        """Every head's summed losses, and the predictions of those that make any; no dropout."""
        states, keys = self.states_and_keys(batch, None)
        outcomes = {name: head.outcome(states, batch) for name, head in self.heads.items()}
        made = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
        return self.losses_of(states, keys, batch, options), made

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every head's total weight, from the batch alone."""
        return {name: head.weight(batch) for name, head in self.heads.items()}
