"""Additional parts of protein encoders: token dropout, and contacts from attention."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import RATE, check_field, check_fields, check_types
from jaxformer.functional.arrays import assert_axes
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal


@dataclass(frozen=True)
class TokenDropout:
    r"""Zeroes the embeddings of mask tokens and rescales the others.

    .. math:: x'_t = x_t [i_t \ne m] \frac{1 - r}{1 - n / L}

    where m is the mask token, which occurs n times among the L real tokens of a sequence.

    References:
        Lin et al., 2023 (https://doi.org/10.1126/science.ade2574), the code published with it.
    """

    mask_id: int
    """The id of the mask token (m)."""
    rate: float = 0.15 * 0.8
    """The fraction of tokens that are masked in training (r)."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "mask_id", self.mask_id >= 0, "0 or more")
        check_fields(self, rate=RATE)

    def __call__(
        self,
        x: jax.Array,
        ids: jax.Array,
        valid: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Scales embeddings `[B, T, D]` of ids `[B, T]`, of which the `valid` ones are real."""
        # `segments`, int `[B, T]`, are the sequences of a packed row; None means one sequence per
        # row.
        assert_axes(x=(x, "B T D"), ids=(ids, f"B {x.shape[1]}"))
        masked = ids == self.mask_id
        real = jnp.broadcast_to(True if valid is None else valid, masked.shape)
        counted = jnp.stack([masked, real], axis=-1).astype(jnp.float32)
        if segments is None:
            sums = jnp.sum(counted, axis=1, keepdims=True)
        else:
            same = segments[:, :, None] == segments[:, None, :]
            sums = jnp.einsum("bts,bsc->btc", same.astype(jnp.float32), counted)
        # A sequence of only mask tokens has nothing to scale.
        share = jnp.minimum(sums[..., :1] / jnp.maximum(sums[..., 1:], 1.0), 1.0)
        scale = (1.0 - self.rate) / jnp.where(share < 1.0, 1.0 - share, 1.0)
        kept = jnp.where(masked[..., None], 0.0, scale)
        return x * kept.astype(x.dtype)


class ContactHead(nnx.Module):
    r"""Predicts the contact probability of two protein residues from attention weights.

    .. math:: p_{ij} = \sigma(b + \sum_c w_c F^c_{ij}), \quad
        F = A + A^\top - \frac{(A + A^\top)_{i \cdot} (A + A^\top)_{\cdot j}}
        {(A + A^\top)_{\cdot \cdot}}

    for each head c of each layer, where a dot is a sum.

    References:
        Rao et al., 2020 (https://doi.org/10.1101/2020.12.15.422761).
    """

    def __init__(self, key: jax.Array, config: TransformerConfig):
        """Declares a weight per head and layer, and the bias."""
        inputs = {"layers": config.num_layers, "heads": config.num_heads}
        self.regression = Linear(key, inputs, {"labels": 1}, normal(config.init_std), bias=True)

    def __call__(self, attentions: jax.Array, real: jax.Array) -> jax.Array:
        """Returns the contact probabilities, float32 `[B, T - 2, T - 2]`, without both ends.

        Args:
            attentions: `[L, B, N, T, T]`: the attention weights of all layers.
            real: bool `[B, T]`: the tokens that are neither padding nor the end token.
        """
        assert_axes(attentions=(attentions, "L B N T T"))
        assert_axes(real=(real, "{1} {3}".format(*attentions.shape)))
        pairs = real[:, :, None] & real[:, None, :]
        weights = jnp.where(pairs[:, None], attentions, 0.0)[..., 1:-1, 1:-1]
        both = weights + jnp.swapaxes(weights, -1, -2)
        rows, columns = (jnp.sum(both, axis=axis, keepdims=True) for axis in (-1, -2))
        features = both - rows * columns / jnp.sum(both, axis=(-1, -2), keepdims=True)
        logits = self.regression(jnp.transpose(features, (1, 3, 4, 0, 2)).astype(jnp.float32))
        return jax.nn.sigmoid(logits[..., 0])
