"""Scores of queries and keys with vectors of the distance between them: disentangled attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.assertions import assert_axes, assert_floating


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("keys", "queries"),
    meta_fields=("num_queries",),
)
@dataclass(frozen=True)
class DistanceTerms:
    r"""What the distance of a query and a key adds to their product.

    .. math:: R_{ij} = q_i \cdot \kappa_{j - i} + k_j \cdot \rho_{j - i}

    The first term is content-to-position, the second position-to-content. `attention` evaluates
    them block by block, so that only the vectors are in memory.

    Attributes:
        keys: `[T + S - 1, K, H]`: the vectors kappa of the distances from -(T - 1) to S - 1; None:
            there is no first term.
        queries: `[T + S - 1, N, H]`: the vectors rho of the same distances; None: there is no
            second term.
        num_queries: T.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654), section 3.1;
        Shaw et al., 2018 (https://arxiv.org/abs/1803.02155), whose keys are the first term.
    """

    keys: jax.Array | None
    queries: jax.Array | None
    num_queries: int

    def check(self, sizes: dict[str, int]) -> None:
        """Raises AssertionError where the vectors do not fit queries and keys of these sizes."""
        lengths = {"T": self.num_queries, "C": sizes["T"] + sizes["S"] - 1}
        if self.num_queries != sizes["T"]:
            raise AssertionError(
                f"distances has num_queries = {self.num_queries}, query T = {sizes['T']}"
            )
        for name, array, axes in (("keys", self.keys, "C K H"), ("queries", self.queries, "C N H")):
            if array is not None:
                assert_axes(sizes | lengths, **{f"distances.{name}": (array, axes)})
                assert_floating(**{f"distances.{name}": array})

    def scaled(self, factor: float) -> DistanceTerms:
        """The terms where the queries were multiplied by a factor."""
        return self if self.queries is None else replace(self, queries=self.queries * factor)

    def padded(self, query_padding: int, key_padding: int) -> DistanceTerms:
        """The terms with more queries and keys at the end, whose vectors are zeros."""

        def pad(x):
            return jnp.pad(x, ((query_padding, key_padding), (0, 0), (0, 0)))

        return replace(jax.tree.map(pad, self), num_queries=self.num_queries + query_padding)

    def block(self, query_start, query_size: int, key_start, key_size: int) -> DistanceTerms:
        """The terms of a window of queries and keys, see `Bias.block`."""
        start = self.start(query_start, query_size, key_start)
        size = query_size + key_size - 1
        found = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), self)
        return replace(found, num_queries=query_size)

    def start(self, query_start, query_size: int, key_start):
        """The index of the first vector that a window of queries and keys has."""
        return key_start - query_start + self.num_queries - query_size

    def partition_specs(self, heads) -> DistanceTerms:
        """The partition specs of the vectors, from that of the heads."""

        def of(x):
            return PartitionSpec(None, heads if x.shape[1] > 1 else None, None)

        return jax.tree.map(of, self)

    def scores(self, query_BKGTH: jax.Array, key_BKSH: jax.Array) -> jax.Array:
        """Both terms, `[B, K, G, T, S]` in the dtype of the accumulator."""
        accumulator = jnp.promote_types(query_BKGTH.dtype, jnp.float32)
        product = partial(jnp.einsum, preferred_element_type=accumulator)
        *_, groups, length, _ = query_BKGTH.shape
        shape = (*query_BKGTH.shape[:-1], key_BKSH.shape[2])
        scores = jnp.zeros(shape, accumulator)
        if self.keys is not None:
            keys_CKH = self.keys.astype(query_BKGTH.dtype)
            of_distance = product("bkgth,ckh->bkgtc", query_BKGTH, keys_CKH)
            scores += _of_pairs(of_distance, shape[-1])
        if self.queries is not None:
            queries_CKGH = _backwards(self.queries, groups).astype(key_BKSH.dtype)
            of_distance = product("bksh,ckgh->bkgsc", key_BKSH, queries_CKGH)
            scores += _of_pairs(of_distance, length).mT
        return scores

    def gradients(
        self, query_BKGTH: jax.Array, key_BKSH: jax.Array, of_scores: jax.Array
    ) -> tuple[jax.Array, jax.Array, DistanceTerms]:
        """The gradients of `scores`.

        Args:
            query_BKGTH: The queries.
            key_BKSH: The keys.
            of_scores: The cotangent, `[B, K, G, T, S]` in the dtype of the queries.

        Returns:
            Those of the queries, the keys and the vectors, in the dtype of the accumulator.
        """
        accumulator = jnp.promote_types(query_BKGTH.dtype, jnp.float32)
        product = partial(jnp.einsum, preferred_element_type=accumulator)
        of_query = jnp.zeros(query_BKGTH.shape, accumulator)
        of_key = jnp.zeros(key_BKSH.shape, accumulator)
        of_keys = of_queries = None
        if self.keys is not None:
            of_distance = _of_distances(of_scores)
            keys_CKH = self.keys.astype(query_BKGTH.dtype)
            of_query = product("bkgtc,ckh->bkgth", of_distance, keys_CKH)
            of_keys = product("bkgtc,bkgth->ckh", of_distance, query_BKGTH)
        if self.queries is not None:
            of_distance = _of_distances(of_scores.mT)
            queries_CKGH = _backwards(self.queries, query_BKGTH.shape[2]).astype(key_BKSH.dtype)
            of_key = product("bkgsc,ckgh->bksh", of_distance, queries_CKGH)
            of_backwards = product("bkgsc,bksh->ckgh", of_distance, key_BKSH)
            of_queries = of_backwards[::-1].reshape(self.queries.shape)
        return of_query, of_key, replace(self, keys=of_keys, queries=of_queries)


def distance_scores(
    query: jax.Array,
    key: jax.Array,
    position_keys: jax.Array | None = None,
    position_queries: jax.Array | None = None,
) -> jax.Array:
    r"""The terms of disentangled attention that depend on the distance, before scaling.

    .. math:: R_{ij} = q_i \cdot \kappa_{j - i} + k_j \cdot \rho_{j - i}

    so that `q k + R` are the scores of DeBERTa. No vector is gathered for each pair: the product
    of a query with the vectors of all its distances is a row of R, shifted by the query's index.

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
    terms.check(sizes)
    batch, length, num_heads, width = query.shape
    grouped = (batch, length, sizes["K"], num_heads // sizes["K"], width)
    query_BKGTH = query.reshape(grouped).transpose(0, 2, 3, 1, 4)
    scores_BKGTS = terms.scores(query_BKGTH, key.transpose(0, 2, 1, 3))
    return scores_BKGTS.reshape(batch, num_heads, length, sizes["S"])


def _backwards(queries_CNH: jax.Array, groups: int) -> jax.Array:
    """The vectors `[C, K, G, H]` as a key sees the distances: from the last to the first."""
    return queries_CNH[::-1].reshape(queries_CNH.shape[0], -1, groups, queries_CNH.shape[-1])


def _of_pairs(x: jax.Array, num_columns: int) -> jax.Array:
    """`[..., T, T + S - 1] -> [..., T, S]`: element (i, j) is that of the distance j - i.

    A row begins one place further left than the row above. So with one column more, flattened, the
    rows of the result are as wide as those given, and follow one another.

    Args:
        x: An element for each row and distance.
        num_columns: S.

    Returns:
        An element for each pair.
    """
    *batch, rows, width = x.shape
    flat = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*batch, rows * (width + 1))
    flat = jax.lax.slice_in_dim(flat, rows - 1, rows - 1 + rows * width, axis=-1)
    return flat.reshape(*batch, rows, width)[..., :num_columns]


def _of_distances(of_pairs: jax.Array) -> jax.Array:
    """The transpose of `_of_pairs`: `[..., T, S] -> [..., T, T + S - 1]`."""
    *batch, rows, columns = of_pairs.shape
    shape = jax.ShapeDtypeStruct((*batch, rows, rows + columns - 1), of_pairs.dtype)
    return jax.linear_transpose(lambda x: _of_pairs(x, columns), shape)(of_pairs)[0]
