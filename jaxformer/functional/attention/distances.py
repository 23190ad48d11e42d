"""Disentangled attention: scores of queries and keys with vectors for their distance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.arrays import assert_axes, assert_floating
from jaxformer.functional.linear import dot


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("keys", "queries"),
    meta_fields=("num_queries",),
)
@dataclass(frozen=True)
class DistanceTerms:
    r"""The contribution of the distance between a query and a key to their score.

    .. math:: R_{ij} = q_i \cdot \kappa_{j - i} + k_j \cdot \rho_{j - i}

    The first term is content-to-position, the second position-to-content. `attention` evaluates the
    terms block by block, so that only the vectors are in memory.

    Attributes:
        keys: `[T + S - 1, K, H]`: the vectors kappa of the distances from -(T - 1) to S - 1; None
            omits the first term.
        queries: `[T + S - 1, N, H]`: the vectors rho of the same distances; None omits the second
            term.
        num_queries: T.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654), section 3.1;
        Shaw et al., 2018 (https://arxiv.org/abs/1803.02155), whose keys are the first term.
    """

    keys: jax.Array | None
    queries: jax.Array | None
    num_queries: int

    def check(self, sizes: dict[str, int], keys: str, queries: str) -> None:
        """Raises AssertionError, with these names, unless the vectors fit T, S, N, K and H."""
        lengths = {"T": self.num_queries, "C": sizes["T"] + sizes["S"] - 1}
        if self.num_queries != sizes["T"]:
            raise AssertionError(
                f"distances: num_queries = {self.num_queries}: must be T = {sizes['T']}"
            )
        for name, array, axes in ((keys, self.keys, "C K H"), (queries, self.queries, "C N H")):
            if array is not None:
                assert_axes(sizes | lengths, **{name: (array, axes)})
                assert_floating(**{name: array})

    def scaled(self, factor: float) -> DistanceTerms:
        """Returns the terms for queries that were multiplied by a factor."""
        return self if self.queries is None else replace(self, queries=self.queries * factor)

    def padded(self, query_padding: int, key_padding: int) -> DistanceTerms:
        """Pads the terms with zero vectors for additional queries and keys at the end."""

        def pad(x):
            return jnp.pad(x, ((query_padding, key_padding), (0, 0), (0, 0)))

        return replace(jax.tree.map(pad, self), num_queries=self.num_queries + query_padding)

    def block(self, query_start, query_size: int, key_start, key_size: int) -> DistanceTerms:
        """Returns the terms of a window of queries and keys, see `Bias.block`."""
        start = self.start(query_start, query_size, key_start)
        size = query_size + key_size - 1
        found = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), self)
        return replace(found, num_queries=query_size)

    def start(self, query_start, query_size: int, key_start):
        """Returns the index of the first vector of a window of queries and keys."""
        return key_start - query_start + self.num_queries - query_size

    def partition_specs(self, heads) -> DistanceTerms:
        """Returns the partition specs of the vectors, given the spec of the heads."""

        def of(x):
            return PartitionSpec(None, heads if x.shape[1] > 1 else None, None)

        return jax.tree.map(of, self)

    def scores(self, query_BKGTH: jax.Array, key_BKSH: jax.Array) -> jax.Array:
        """Returns the sum of both terms, `[B, K, G, T, S]` in the accumulator dtype."""
        shape = (*query_BKGTH.shape[:-1], key_BKSH.shape[2])
        batch, kv_heads, groups, length, num_keys = shape
        scores = jnp.zeros(shape, jnp.promote_types(query_BKGTH.dtype, jnp.float32))
        if self.keys is not None:
            query_BKXH = query_BKGTH.reshape(batch, kv_heads, groups * length, -1)
            keys_BKCH = _in_rows(self.keys, query_BKGTH)
            of_distance = dot(query_BKXH, keys_BKCH, _LAST_AXES)
            of_distance = of_distance.reshape(*shape[:-1], -1)
            scores += _of_pairs(of_distance, num_keys)
        if self.queries is not None:
            key_BNSH = jnp.repeat(key_BKSH, groups, axis=1)
            queries_BNCH = _in_rows(self.queries[::-1], key_BKSH)
            of_distance = dot(key_BNSH, queries_BNCH, _LAST_AXES)
            scores += _of_pairs(of_distance, length).mT.reshape(shape)
        return scores

    def gradients(
        self, query_BKGTH: jax.Array, key_BKSH: jax.Array, of_scores: jax.Array
    ) -> tuple[jax.Array, jax.Array, DistanceTerms]:
        """Returns the gradients of queries, keys `[B, K, H, S]` and vectors `[N, H, C]`."""
        # XLA's CPU backend has no bfloat16 kernels for products with transposed results, so the
        # gradients of the keys and vectors keep the layout of the products: columns of a matrix.
        batch, kv_heads, groups, length, width = query_BKGTH.shape
        accumulator = jnp.promote_types(query_BKGTH.dtype, jnp.float32)
        of_query = jnp.zeros(query_BKGTH.shape, accumulator)
        of_key = jnp.zeros(key_BKSH.mT.shape, accumulator)
        of_keys = of_queries = None
        if self.keys is not None:
            folded = (batch, kv_heads, groups * length, -1)
            of_distance = _of_distances(of_scores).reshape(folded)
            keys_BKCH = _in_rows(self.keys, query_BKGTH)
            of_query = dot(of_distance, keys_BKCH, _ROWS).reshape(query_BKGTH.shape)
            query_BKHX = _transposed(query_BKGTH.reshape(folded))
            of_keys = jnp.sum(dot(query_BKHX, of_distance, _ROWS), axis=0)
        if self.queries is not None:
            by_head = (batch, kv_heads * groups, length, -1)
            of_distance = _of_distances(of_scores.reshape(by_head).mT)
            queries_BNHC = _transposed(_in_rows(self.queries[::-1], key_BKSH))
            of_key_BNHS = dot(queries_BNHC, of_distance, _LAST_AXES)
            of_key = jnp.sum(of_key_BNHS.reshape(batch, kv_heads, groups, width, -1), axis=2)
            key_BNHS = _transposed(jnp.repeat(key_BKSH, groups, axis=1))
            of_queries = jnp.sum(dot(key_BNHS, of_distance, _ROWS), axis=0)[..., ::-1]
        return of_query, of_key, replace(self, keys=of_keys, queries=of_queries)


# Dimension numbers for matrices [B, N, ., .]: contracting both last axes, or the rows of the
# second.
_LAST_AXES = ((3,), (3,)), ((0, 1), (0, 1))
_ROWS = ((3,), (2,)), ((0, 1), (0, 1))


def _in_rows(vectors_CNH: jax.Array, x: jax.Array) -> jax.Array:
    """Broadcasts the vectors to `[B, N, C, H]` for the rows of `x`, in its dtype."""
    vectors_NCH = vectors_CNH.astype(x.dtype).transpose(1, 0, 2)
    return jnp.broadcast_to(vectors_NCH[None], (x.shape[0], *vectors_NCH.shape))


def _transposed(x: jax.Array) -> jax.Array:
    """Transposes without fusing into the product that reads the result."""
    return jax.lax.optimization_barrier(x.mT)


def distance_scores(
    query: jax.Array,
    key: jax.Array,
    position_keys: jax.Array | None = None,
    position_queries: jax.Array | None = None,
) -> jax.Array:
    r"""Computes the distance terms of disentangled attention, before scaling.

    .. math:: R_{ij} = q_i \cdot \kappa_{j - i} + k_j \cdot \rho_{j - i}

    so that `q k + R` are the scores of DeBERTa. Vectors are not gathered per pair: the product of a
    query with the vectors of all its distances is a row of R, shifted by the query's index.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, S, K, H]` with N a multiple of K.
        position_keys: kappa, `[T + S - 1, K, H]`, of the distances from -(T - 1) to S - 1; None
            leaves out the first term, content-to-position.
        position_queries: rho, `[T + S - 1, N, H]`, of the same distances; None leaves out the
            second term, position-to-content.

    Returns:
        `[B, N, T, S]`, at least float32.

    Raises:
        AssertionError: The arrays have shapes that do not fit together, or the wrong dtype.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654), equations 2 to 4.
    """
    sizes = assert_axes(query=(query, "B T N H"), key=(key, "B S K H"))
    assert_floating(query=query, key=key)
    terms = DistanceTerms(position_keys, position_queries, sizes["T"])
    terms.check(sizes, "position_keys", "position_queries")
    batch, length, num_heads, width = query.shape
    grouped = (batch, length, sizes["K"], num_heads // sizes["K"], width)
    query_BKGTH = query.reshape(grouped).transpose(0, 2, 3, 1, 4)
    scores_BKGTS = terms.scores(query_BKGTH, key.transpose(0, 2, 1, 3))
    return scores_BKGTS.reshape(batch, num_heads, length, sizes["S"])


def _of_pairs(x: jax.Array, num_columns: int) -> jax.Array:
    """`[..., T, T + S - 1] -> [..., T, S]`: element (i, j) belongs to the distance j - i."""
    # Each row is shifted left by one relative to the row above. With one more column, the flattened
    # rows of the result are contiguous.
    *batch, rows, width = x.shape
    flat = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*batch, rows * (width + 1))
    flat = jax.lax.slice_in_dim(flat, rows - 1, rows - 1 + rows * width, axis=-1)
    return flat.reshape(*batch, rows, width)[..., :num_columns]


def _of_distances(of_pairs: jax.Array) -> jax.Array:
    """The transpose of `_of_pairs`: `[..., T, S] -> [..., T, T + S - 1]`."""
    *batch, rows, columns = of_pairs.shape
    shape = jax.ShapeDtypeStruct((*batch, rows, rows + columns - 1), of_pairs.dtype)
    return jax.linear_transpose(lambda x: _of_pairs(x, columns), shape)(of_pairs)[0]
