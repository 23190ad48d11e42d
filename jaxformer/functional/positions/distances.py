"""Distance embeddings, which disentangled attention multiplies with queries and keys."""

from dataclasses import dataclass, field

import jax
import numpy as np

from jaxformer.checks import at_least, between, check_field, check_fields
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import assert_integers, static
from jaxformer.functional.norms import Norm
from jaxformer.functional.positions.base import Position


def log_bucket(
    distance: jax.Array | np.ndarray, *, num_buckets: int, max_distance: int
) -> jax.Array | np.ndarray:
    r"""Returns the bucket of a distance: exact for near distances, logarithmically wider beyond.

    .. math:: b(d) = \mathrm{sign}(d) \left(\frac n2 + \left\lceil
              \frac{\ln (2 |d| / n)}{\ln (2 (m - 1) / n)} \left(\frac n2 - 1\right)
              \right\rceil\right), \qquad |d| > \frac n2

    with n buckets in a direction and m the largest distance; b(d) = d for nearer ones. The result
    is clipped to -n and n - 1.

    Args:
        distance: [...] integers, query position minus key position.
        num_buckets: n, an even number.
        max_distance: m.

    Returns:
        [...] int32 in [-n, n), a NumPy array if `distance` is one.

    Raises:
        AssertionError: `distance` is not an array of integers.
        ArgumentError: n is odd or below 4, or m is not above n / 2 + 1.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654), its code for models of version
        2 and 3.
    """
    assert_integers(distance=distance)
    num_buckets = static("num_buckets", num_buckets, at_least(4))
    max_distance = static("max_distance", max_distance, at_least(2))
    if num_buckets % 2 or max_distance <= num_buckets // 2 + 1:
        raise ArgumentError(
            f"num_buckets = {num_buckets}, max_distance = {max_distance}: needs an even number of "
            "buckets, and max_distance above the number of exact buckets, which is half of them"
        )
    # Comparisons are exact on every backend, unlike logarithms at a boundary.
    starts = _bucket_starts(num_buckets, max_distance).reshape((1,) * distance.ndim + (-1,))
    size = (abs(distance)[..., None] >= starts).sum(axis=-1, dtype=np.int32)
    signed = size * (1 - 2 * (distance < 0).astype(np.int32))
    return signed.clip(-num_buckets, num_buckets - 1)


def _bucket_starts(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the smallest distance in each of the buckets 1 .. num_buckets of one direction."""
    half = num_buckets // 2
    # float32 and this order of operations decide which side of a boundary a distance falls on.
    distances = np.arange(2 * max_distance + 1)
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(half))
    ratio = ratio / np.log(np.float32((max_distance - 1) / half)) * np.float32(half - 1)
    far = np.ceil(ratio).astype(np.int64) + half
    buckets = np.where(distances <= half, distances, far)
    return np.searchsorted(buckets, np.arange(1, num_buckets + 1)).astype(np.int32)


@dataclass(frozen=True)
class DistanceEmbedding(Position):
    """A learned vector for each distance or bucket of distances, shared by all layers.

    It does not add a bias itself: `nn.DisentangledAttention` projects the vectors and multiplies
    them with queries and keys.
    """

    max_distance: int
    """The distance in either direction beyond which all distances share a vector."""
    num_buckets: int | None = None
    """Number of buckets per direction, even, see `log_bucket`; None uses a separate vector for each
    distance.
    """
    norm: Norm | None = field(default=None, kw_only=True)
    """The norm applied to the vectors."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, max_distance=between(1, 2**30 - 1))
        if self.num_buckets is None:
            return
        even = self.num_buckets >= 4 and self.num_buckets % 2 == 0
        check_field(self, "num_buckets", even, "an even number, at least 4, or None")
        least = self.num_buckets // 2 + 2
        beyond = self.max_distance >= least
        check_field(self, "max_distance", beyond, f"at least {least}, beyond the exact buckets")

    @property
    def reach(self) -> int:
        """The number of vectors per direction."""
        return self.max_distance if self.num_buckets is None else self.num_buckets

    def table(self, *, model_dim, num_heads):
        del num_heads
        return (2 * self.reach, model_dim), ("buckets", "vocab_embed")

    def vectors(self, table):
        return self._required(table)

    def rows(self, num_queries: int, num_keys: int) -> np.ndarray:
        """Returns the row of the table for each distance from -(T - 1) to S - 1, key minus query.

        Args:
            num_queries: T.
            num_keys: S.

        Returns:
            [T + S - 1] int32, non-increasing.
        """
        distance = np.arange(num_queries - 1, -num_keys, -1, dtype=np.int32)
        if self.num_buckets is not None:
            sizes = {"num_buckets": self.num_buckets, "max_distance": self.max_distance}
            distance = log_bucket(distance, **sizes)
        return distance.clip(-self.reach, self.reach - 1) + self.reach
