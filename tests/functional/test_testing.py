"""Which schemes are relative, and that no way of not being so passes unseen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from broken_schemes import (
    AbsoluteBuckets,
    KeysLeftAlone,
    KeysTurnedBack,
    OtherFrequenciesForKeys,
    OtherLayoutForKeys,
    PenaltyByTheKey,
    QueriesLeftAlone,
    float32_angles,
)
from position_cases import SCHEMES
from test_rope import scalings

from jaxformer.errors import ArgumentError
from jaxformer.functional import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    NoPosition,
    Position,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
    assert_relative,
    assert_shift_invariant,
)
from jaxformer.functional.positions import rope

# T != S, odd, three query heads to one of keys; every scaling beyond its trained length of 64.
B, T, S, N, K, H = 2, 5, 9, 6, 2, 16
STARTS = jnp.array([[0], [90]])
ABSOLUTE = (Integer, Binary, Sinusoidal, Sinusoidal2D, Learned)
RELATIVE = {
    **{name: RoPE(scaling=scaling) for name, scaling in scalings(H).items()},
    "interleaved": RoPE(layout="interleaved"),
    "partial": RoPE(fraction=0.5),
    "partial, interleaved": RoPE(
        fraction=0.375, layout="interleaved", scaling=scalings(6)["longrope"]
    ),
    "alibi": ALiBi(),
    "alibi, falcon": ALiBi(factor=0.25),
    "t5, both ways": T5Bias(bidirectional=True),
    "t5, one way": T5Bias(num_buckets=7, max_distance=11, bidirectional=False),
    "no position": NoPosition(),
}


def check(scheme: Position, starts=STARTS, kv_heads: int = K):
    """Asserts that it is relative, of random queries and keys."""
    keys = jax.random.split(jax.random.key(0), 3)
    declared = scheme.table(model_dim=N * H, num_heads=N)
    assert_relative(
        scheme,
        jax.random.normal(keys[0], (B, T, N, H)),
        jax.random.normal(keys[1], (B, S, kv_heads, H)),
        starts + jnp.arange(S - T, S)[None],
        starts[:1] + jnp.arange(S)[None],
        table=declared and jax.random.normal(keys[2], declared[0]),
    )


@pytest.mark.first("none", "llama3", "interleaved", "alibi", "t5, both ways")
@pytest.mark.parametrize("scheme", RELATIVE.values(), ids=RELATIVE)
@pytest.mark.quick("none", "llama3", "interleaved", "alibi", "t5*", "partial")
def test_scores_depend_on_the_distance_alone(scheme):
    check(scheme)


@pytest.mark.parametrize("kv_heads", [1, N])
def test_of_one_key_head_and_of_one_for_each_query(kv_heads):
    check(RoPE(), kv_heads=kv_heads)
    check(ALiBi(), kv_heads=kv_heads)


@pytest.mark.parametrize(
    "scheme", [scheme for scheme in SCHEMES if isinstance(scheme, ABSOLUTE)], ids=str
)
def test_absolute_schemes_are_not_relative(scheme):
    with pytest.raises(AssertionError, match=rf"embed of {type(scheme).__name__}\("):
        check(scheme, starts=jnp.array([[0], [3]]))


def test_what_is_rounded_by_where_the_key_stands_is_not_relative():
    with pytest.raises(AssertionError, match=r"bias of ALiBi\(factor=1.0, rounded=True, max"):
        check(ALiBi(rounded=True))


@pytest.mark.parametrize(
    ("scheme", "part"),
    [
        (KeysLeftAlone(), "rotate"),
        (QueriesLeftAlone(), "rotate"),
        (KeysTurnedBack(), "rotate"),
        (OtherFrequenciesForKeys(), "rotate"),
        (OtherLayoutForKeys(), "rotate"),
        (PenaltyByTheKey(), "bias"),
        (AbsoluteBuckets(bidirectional=True), "bias"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_every_break_is_seen(scheme, part):
    with pytest.raises(AssertionError, match=f"{part} of {type(scheme).__name__}"):
        check(scheme)


@pytest.mark.parametrize("scheme", [RoPE(), RoPE(scaling=scalings(H)["dynamic"])])
def test_float32_angles_are_seen(scheme, monkeypatch):
    monkeypatch.setattr(rope, "rotary_angles", float32_angles)
    with pytest.raises(AssertionError, match=r"rotate of RoPE.* shifted by 1000003"):
        check(scheme)


def test_attention_that_adds_a_bias_of_its_own_is_seen(monkeypatch):
    """What only `attention()` does wrong, for the scheme's own numbers are right."""
    from jaxformer.functional import testing

    def wrong(query, key, value, *, bias, **options):
        bias = replace(bias, key_positions=jnp.arange(S)[None])
        return attention(query, key, value, bias=bias, **options)

    attention = testing.attention
    monkeypatch.setattr(testing, "attention", wrong)
    with pytest.raises(AssertionError, match="attention of ALiBi"):
        check(ALiBi())


def test_what_cannot_be_asserted_is_refused():
    with pytest.raises(ArgumentError, match=r"query_positions, key_positions = 8: must be below 8"):
        check(Learned(max_length=9), starts=jnp.array([[0], [0]]))
    query, places = jnp.ones((1, 4, 2, 8)), jnp.arange(4)[None]
    with pytest.raises(AssertionError, match="key_positions has shape"):
        assert_relative(RoPE(), query, query, places, places[:, :3])
    with pytest.raises(AssertionError, match=r"RoPE.* of unshifted positions"):
        assert_relative(RoPE(), 0 * query, query, places, places)


def test_functions_of_positions():
    places = jnp.arange(5)
    assert_shift_invariant(lambda m: {"gaps": jnp.diff(m)}, places, atol=0)
    assert_shift_invariant(lambda m, n: m[:, None] - n[None], places, 3 * places, atol=0)
    with pytest.raises(AssertionError, match="mine changes when all positions are shifted by 1"):
        assert_shift_invariant(lambda m: 1e-3 * m, places, atol=1e-4, name="mine")
    assert_shift_invariant(lambda m: 1e-3 * m, places, atol=2e-3, shifts=[1])
