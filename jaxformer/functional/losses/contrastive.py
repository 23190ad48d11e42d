"""Contrastive losses, where each text belongs to exactly one image of the batch."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.arrays import assert_axes, assert_floating, assert_numbers, place, spec_of
from jaxformer.functional.losses.cross_entropy import LossSums, cross_entropy

_NEVER = -1e9


def contrastive_loss(logits: jax.Array, weights: jax.Array | None = None) -> LossSums:
    r"""Symmetric cross-entropy of matching texts to images and images to texts (InfoNCE).

    .. math::
      \ell_i = -\tfrac12 \log \frac{e^{x_{ii}}}{\sum_j e^{x_{ij}}}
               -\tfrac12 \log \frac{e^{x_{ii}}}{\sum_j e^{x_{ji}}}

    A pair of weight 0 is ignored and is not a candidate for other pairs. `correct` is the mean of
    both directions.

    Args:
        logits: x, `[B, B]`: how well text i fits image j; pair i is on the diagonal.
        weights: `[B]`, the weight of each pair; None weighs every pair 1.

    Returns:
        The sums over all pairs; the weight is the sum of the pairs' weights.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), figure 3; van den Oord et al., 2018
        (https://arxiv.org/abs/1807.03748), for InfoNCE.
    """
    logits, weights = _checked(logits, weights)
    targets = jnp.arange(len(logits))
    logits = jnp.where(weights[None, :] != 0, logits, _NEVER)
    # `where` masks columns; the columns of the transpose are the rows.
    rows = jnp.where(weights[:, None] != 0, logits, _NEVER)
    sides = cross_entropy(logits, targets, weights), cross_entropy(rows.T, targets, weights)
    return jax.tree.map(lambda text, image: (text + image) / 2, *sides)


def sigmoid_contrastive_loss(logits: jax.Array, weights: jax.Array | None = None) -> LossSums:
    r"""Binary cross-entropy of classifying all text-image combinations as pairs or not (SigLIP).

    .. math::
      \ell_i = -\sum_j \log \sigma(z_{ij} x_{ij}), \qquad
      z_{ij} = \begin{cases} 1 & i = j \\ -1 & i \ne j \end{cases}

    A pair of weight 0 is ignored. As in `contrastive_loss`, `correct` counts pairs with the largest
    logit, averaged over both directions.

    Args:
        logits: x, `[B, B]`: how well text i fits image j, with a bias; pair i is on the diagonal.
        weights: `[B]`, the weight of each pair; None weighs every pair 1.

    Returns:
        The sums over all pairs; the weight is the sum of the pairs' weights.

    References:
        Zhai et al., 2023 (https://arxiv.org/abs/2303.15343), equation 1.
    """
    logits, weights = _checked(logits, weights)
    own = jnp.arange(len(logits))[:, None] == jnp.arange(len(logits))[None, :]
    there = (weights[:, None] != 0) & (weights[None, :] != 0)
    own, there = (place(mask, spec_of(logits)) for mask in (own, there))
    losses = jax.nn.softplus(jnp.where(own, -logits, logits))
    counted = jnp.where(there, losses, 0.0)
    ranked = jax.lax.stop_gradient(contrastive_loss(logits, weights))
    return ranked._replace(loss=jnp.sum(jnp.sum(counted, axis=1) * weights))


def _checked(logits: jax.Array, weights: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Returns the logits in at least float32, and the weights, which default to 1."""
    sizes = assert_axes(logits=(logits, "B _"))
    assert_axes(sizes, logits=(logits, f"B {sizes['B']}"))
    assert_floating(logits=logits)
    if weights is None:
        weights = jnp.ones(len(logits), jnp.float32)
    assert_axes(sizes, weights=(weights, "B"))
    assert_numbers(weights=weights)
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), everywhere(weights)


def everywhere(array: jax.Array) -> jax.Array:
    """Replicates an array on every device of the mesh, if there is one."""
    spec = spec_of(array)
    return array if spec is None else place(array, PartitionSpec(*[None] * array.ndim))
