"""Schemes that look relative and are not: in their scores more than the distance counts."""

from dataclasses import replace

import jax.numpy as jnp

from jaxformer.functional import ALiBi, RoPE, T5Bias


class KeysLeftAlone(RoPE):
    """The keys do not rotate."""

    def rotate(self, query, key, *positions):
        return super().rotate(query, key, *positions)[0], key


class QueriesLeftAlone(RoPE):
    def rotate(self, query, key, *positions):
        return query, super().rotate(query, key, *positions)[1]


class KeysTurnedBack(RoPE):
    def rotate(self, query, key, query_positions, key_positions, lengths=None):
        return super().rotate(query, key, query_positions, -key_positions, lengths)


class OtherFrequenciesForKeys(RoPE):
    def rotate(self, query, key, *positions):
        other = replace(self, theta=1.01 * self.theta)
        return super().rotate(query, key, *positions)[0], RoPE.rotate(
            other, query, key, *positions
        )[1]


class OtherLayoutForKeys(RoPE):
    def rotate(self, query, key, *positions):
        other = replace(self, layout="interleaved")
        return super().rotate(query, key, *positions)[0], RoPE.rotate(
            other, query, key, *positions
        )[1]


class PenaltyByTheKey(ALiBi):
    def bias(self, query_positions, key_positions, **options):
        return super().bias(0 * query_positions, key_positions, **options)


class AbsoluteBuckets(T5Bias):
    def bias(self, query_positions, key_positions, **options):
        return super().bias(query_positions // 2, key_positions // 2, **options)


def float32_angles(positions, frequencies):
    """`rotary_angles` without its exact reduction."""
    return jnp.einsum("bt,f->btf", positions.astype(jnp.float32), frequencies)
