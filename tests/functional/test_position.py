"""The one interface of the positional schemes: identity defaults, blocks, sharding, validation."""

import dataclasses
import json
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.errors import ConfigError
from jaxformer.functional.absolute import binary_code, sinusoidal_code, sinusoidal_grid_code
from jaxformer.functional.position import Bias, NoPosition, Position
from jaxformer.functional.positional_schemes import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)
from jaxformer.functional.relative import alibi_bias, alibi_slopes, t5_bias
from jaxformer.functional.rope import apply_rope, inverse_frequencies
from jaxformer.functional.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    YaRN,
)

LONGROPE = LongRoPE((1.0, 1.5), (2.0, 4.0), original_max_length=8, factor=4.0)
SCHEMES = [
    NoPosition(),
    Integer(max_length=32),
    Binary(num_bits=5),
    Sinusoidal(),
    Sinusoidal(layout="half"),
    Sinusoidal2D(grid=(5, 7)),
    Learned(max_length=32),
    RoPE(),
    RoPE(theta=5e5, fraction=0.5, layout="interleaved", scaling=LinearScaling(2.0)),
    RoPE(scaling=DynamicNTK(2.0, 8)),
    RoPE(scaling=YaRN(4.0, 16)),
    RoPE(scaling=Llama3Scaling(8.0, 1.0, 4.0, 16)),
    RoPE(fraction=0.5, scaling=LONGROPE),
    ALiBi(),
    T5Bias(bidirectional=True),
    T5Bias(num_buckets=8, max_distance=20, bidirectional=False),
]
IDS = [str(scheme)[:40] for scheme in SCHEMES]
B, T, S, N, K, H, D = 4, 6, 7, 4, 2, 8, 16


def arrays():
    keys = jax.random.split(jax.random.key(0), 5)
    return {
        "x": jax.random.normal(keys[0], (B, T, D)),
        "query": jax.random.normal(keys[1], (B, T, N, H)),
        "key": jax.random.normal(keys[2], (B, S, K, H)),
        "query_positions": jax.random.randint(keys[3], (B, T), 0, 32),
        "key_positions": jax.random.randint(keys[4], (B, S), 0, 32),
    }


def table_of(scheme: Position) -> jax.Array | None:
    declared = scheme.table(model_dim=D, num_heads=N)
    if declared is None:
        return None
    shape, axes = declared
    assert len(shape) == len(axes)
    return jax.random.normal(jax.random.key(9), shape)


def outputs(scheme: Position, table, x, query, key, query_positions, key_positions):
    """Everything a scheme does, as one differentiable function."""
    bias = scheme.bias(query_positions, key_positions, num_heads=N, table=table)
    return (
        scheme.embed(x, query_positions, table),
        scheme.rotate(query, key, query_positions, key_positions),
        None if bias is None else bias.values(),
    )


@pytest.mark.parametrize("scheme", [Position(), NoPosition()])
def test_defaults_are_the_identity(scheme):
    a = arrays()
    embedded, rotated, bias = outputs(scheme, None, **a)
    assert embedded is a["x"]
    assert rotated == (a["query"], a["key"])
    assert bias is None
    assert scheme.table(model_dim=D, num_heads=N) is None
    assert scheme.max_length is None
    scheme.validate_length(10**9)
    scheme.validate_sizes(model_dim=3, head_dim=3)


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_each_scheme_does_exactly_one_thing(scheme):
    a = arrays()
    embedded, (query, key), bias = jax.jit(partial(outputs, scheme))(table_of(scheme), **a)
    changed = [
        not np.array_equal(embedded, a["x"]),
        not (np.array_equal(query, a["query"]) and np.array_equal(key, a["key"])),
        bias is not None,
    ]
    chex.assert_equal_shape([embedded, a["x"]])
    chex.assert_equal_shape([query, a["query"]])
    chex.assert_equal_shape([key, a["key"]])
    assert sum(changed) == (0 if isinstance(scheme, NoPosition) else 1)


def test_embeddings_are_what_they_say():
    a = arrays()
    x, positions = a["x"], a["query_positions"]
    added = Integer(max_length=32).embed(x, positions) - x
    np.testing.assert_allclose(added[..., 0], positions / 32, atol=1e-6)
    np.testing.assert_array_equal(added[..., 1:], 0)
    added = Binary(num_bits=5).embed(x, positions) - x
    np.testing.assert_allclose(added[..., :5], binary_code(positions, num_bits=5), atol=1e-6)
    np.testing.assert_array_equal(added[..., 5:], 0)
    for layout in ("interleaved", "half"):
        code = sinusoidal_code(positions, model_dim=D, theta=100.0, layout=layout)
        embedded = Sinusoidal(theta=100.0, layout=layout).embed(x, positions)
        np.testing.assert_array_equal(embedded, x + code)
    scheme = Sinusoidal(theta=100.0, layout="half", endpoint=True, offset=2)
    options = {"model_dim": D, "theta": 100.0, "layout": "half", "endpoint": True}
    code = sinusoidal_code(positions + 1, **options)
    code = jnp.where(positions[..., None] == 0, 0.0, code)
    np.testing.assert_array_equal(scheme.embed(x, positions - 1), x + code)
    scheme, places = Sinusoidal2D(grid=(5, 7), theta=100.0, prefix=3), np.asarray(positions)
    code = sinusoidal_grid_code(
        jnp.asarray((places - 3) // 7), jnp.asarray((places - 3) % 7), model_dim=D, theta=100.0
    )
    code = jnp.where((places < 3)[..., None], 0.0, code)
    assert 0 < (places < 3).sum() < places.size
    np.testing.assert_array_equal(scheme.embed(x, positions), x + code)
    scheme = Learned(max_length=32)
    table = table_of(scheme)
    np.testing.assert_array_equal(scheme.embed(x, positions, table), x + table[positions])


@pytest.mark.parametrize("scheme", SCHEMES[1:7], ids=IDS[1:7])
def test_embed_keeps_bfloat16_and_takes_one_row_of_positions(scheme):
    x = arrays()["x"].astype(jnp.bfloat16)
    positions = jnp.arange(T)[None]
    embedded = scheme.embed(x, positions, table_of(scheme))
    chex.assert_shape(embedded, (B, T, D))
    chex.assert_type(embedded, jnp.bfloat16)
    tiled = scheme.embed(x, jnp.tile(positions, (B, 1)), table_of(scheme))
    np.testing.assert_array_equal(embedded, tiled)


@pytest.mark.parametrize("max_length", [2, 9, 300])
def test_embedding_codes_survive_a_layer_norm(max_length):
    """A code that shifts all channels alike would vanish, and with it the order of the words."""
    for scheme in (
        Integer(max_length),
        Binary(num_bits=max(1, (max_length - 1).bit_length())),
        Sinusoidal(),
    ):
        code = scheme.embed(jnp.zeros((1, max_length, D)), jnp.arange(max_length)[None])
        centred = np.asarray(code - code.mean(-1, keepdims=True))[0]
        assert len(np.unique(centred.round(4), axis=0)) == max_length


def test_rope_rotates_by_fraction_layout_and_scaling():
    a = arrays()
    scheme = RoPE(theta=100.0, fraction=0.5, layout="interleaved", scaling=LinearScaling(2.0))
    query, key = scheme.rotate(a["query"], a["key"], a["query_positions"], a["key_positions"])
    frequencies = inverse_frequencies(100.0, 4) / np.float32(2)
    expected = apply_rope(a["query"], a["query_positions"], frequencies, layout="interleaved")
    np.testing.assert_array_equal(query, expected)
    expected = apply_rope(a["key"], a["key_positions"], frequencies, layout="interleaved")
    np.testing.assert_array_equal(key, expected)
    assert [RoPE(fraction=0.29).rotary_dim(100), RoPE(fraction=0.25).rotary_dim(64)] == [28, 16]


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0, 8), LONGROPE])
def test_length_is_the_largest_position_of_queries_and_keys(scaling):
    scheme = RoPE(fraction=0.5, scaling=scaling)
    ones = jnp.ones((1, 1, 1, H))

    def rotated_query(query_position, key_position):
        query_at, key_at = jnp.array([[query_position]]), jnp.array([[key_position]])
        return jax.jit(scheme.rotate)(ones, ones, query_at, key_at)[0]

    short, limit, long = (rotated_query(3, k) for k in (3, 7, 8))
    np.testing.assert_array_equal(short, limit)
    assert np.abs(long - short).max() > 1e-3


@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True)])
def test_bias_is_the_pure_function(scheme):
    a = arrays()
    positions = a["query_positions"], a["key_positions"]
    table = table_of(scheme)
    bias = scheme.bias(*positions, num_heads=N, table=table)
    if table is None:
        expected = alibi_bias(alibi_slopes(N), *positions)
    else:
        expected = t5_bias(table, *positions, bidirectional=True, max_distance=128)
    np.testing.assert_array_equal(bias.values(), expected)
    assert bias.heads.shape[-1] == N


@given(
    scheme=st.sampled_from(
        [ALiBi(), T5Bias(bidirectional=True), T5Bias(8, 20, bidirectional=False)]
    ),
    query_start=st.integers(0, 7),
    key_start=st.integers(0, 9),
    rows=st.sampled_from([1, 3]),
)
def test_block_is_a_slice_of_the_values(scheme, query_start, key_start, rows):
    queries = jax.random.randint(jax.random.key(1), (rows, 10), 0, 100)
    keys = jax.random.randint(jax.random.key(2), (1, 14), 0, 100)
    bias = scheme.bias(queries, keys, num_heads=3, table=_table(scheme, 3))

    @jax.jit
    def block(bias, query_start, key_start):
        return bias.block(query_start, 3, key_start, 5).values()

    whole = bias.values()
    chex.assert_shape(whole, (rows, 3, 10, 14))
    expected = whole[:, :, query_start : query_start + 3, key_start : key_start + 5]
    np.testing.assert_array_equal(block(bias, query_start, key_start), expected)


def _table(scheme, num_heads):
    declared = scheme.table(model_dim=D, num_heads=num_heads)
    return None if declared is None else jax.random.normal(jax.random.key(4), declared[0])


def test_bias_is_a_pytree_whose_scheme_is_static():
    a = arrays()
    bias = ALiBi().bias(a["query_positions"], a["key_positions"], num_heads=N)
    leaves, treedef = jax.tree.flatten(bias)
    assert len(leaves) == 3
    rebuilt = jax.tree.unflatten(treedef, leaves)
    assert isinstance(rebuilt, Bias)
    assert rebuilt.scheme == ALiBi()
    np.testing.assert_array_equal(jax.jit(Bias.values)(bias), bias.values())


@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True)])
def test_gradients_reach_the_heads_and_blocks_add_up(scheme):
    a = arrays()
    bias = scheme.bias(
        a["query_positions"], a["key_positions"], num_heads=N, table=table_of(scheme)
    )
    weights = jax.random.normal(jax.random.key(3), (B, N, T, S))

    def whole(heads):
        return jnp.sum(jnp.sin(dataclasses.replace(bias, heads=heads).values()) * weights)

    def in_blocks(heads):
        all_of = dataclasses.replace(bias, heads=heads)
        halves = (all_of.block(start, T // 2, 0, S).values() for start in (0, T // 2))
        return jnp.sum(jnp.sin(jnp.concatenate(list(halves), axis=2)) * weights)

    gradient = jax.grad(whole)(bias.heads)
    assert float(jnp.abs(gradient).max()) > 0
    np.testing.assert_allclose(jax.grad(in_blocks)(bias.heads), gradient, rtol=1e-5, atol=1e-5)


# Sharding ------------------------------------------------------------------------------------

BATCH = ("data", "fsdp")
SPECS = {
    "x": P(BATCH, None, None),
    "query": P(BATCH, None, "tensor", None),
    "key": P(BATCH, None, "tensor", None),
    "query_positions": P(BATCH, None),
    "key_positions": P(BATCH, None),
}
TABLE_SPECS = {Learned: P(None, "fsdp"), T5Bias: P(None, "tensor")}


def summed(scheme, table, arrays):
    leaves = jax.tree.leaves(outputs(scheme, table, **arrays))
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)


@pytest.mark.parametrize("positions", ["sharded", "replicated", "one row"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_explicit_sharding_equals_no_mesh(scheme, positions):
    a, table = arrays(), table_of(scheme)
    if positions == "one row":
        a |= {"query_positions": jnp.arange(T)[None], "key_positions": jnp.arange(S)[None]}
    expected = jax.jit(partial(outputs, scheme))(table, **a)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        specs = SPECS
        if positions != "sharded":
            specs = SPECS | {"query_positions": P(None, None), "key_positions": P(None, None)}
        sharded = {
            name: jax.device_put(x, NamedSharding(mesh, specs[name])) for name, x in a.items()
        }
        if table is not None:
            table = jax.device_put(table, NamedSharding(mesh, TABLE_SPECS[type(scheme)]))
        got = jax.jit(partial(outputs, scheme))(table, **sharded)
        embedded, (query, key), bias = got
        assert jax.typeof(embedded).sharding.spec == SPECS["x"]
        assert jax.typeof(query).sharding.spec == SPECS["query"]
        assert jax.typeof(key).sharding.spec == SPECS["key"]
        if bias is not None and positions == "sharded":
            heads = "tensor" if isinstance(scheme, T5Bias) else None
            assert jax.typeof(bias).sharding.spec == P(BATCH, heads, None, None)
        chex.assert_trees_all_close(jax.device_get(got), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scheme", [Learned(32), T5Bias(bidirectional=True)])
def test_explicit_sharding_gives_the_same_table_gradient(scheme):
    a, table = arrays(), table_of(scheme)
    expected = jax.jit(jax.grad(lambda t: summed(scheme, t, a)))(table)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        sharded = {
            name: jax.device_put(x, NamedSharding(mesh, SPECS[name])) for name, x in a.items()
        }
        spec = TABLE_SPECS[type(scheme)]
        table = jax.device_put(table, NamedSharding(mesh, spec))
        gradient = jax.jit(jax.grad(lambda t, a: summed(scheme, t, a)))(table, sharded)
        assert jax.typeof(gradient).sharding.spec == spec
        np.testing.assert_allclose(jax.device_get(gradient), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True)])
def test_bias_inside_shard_map(scheme):
    """Attention in blocks runs on local heads and rows."""
    a = arrays()
    bias = scheme.bias(
        a["query_positions"], a["key_positions"], num_heads=N, table=table_of(scheme)
    )
    expected = bias.values()
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
    heads = P(*[None] * (bias.heads.ndim - 1), "tensor")
    specs = dataclasses.replace(
        bias, heads=heads, query_positions=P(BATCH, None), key_positions=P(BATCH, None)
    )
    with jax.set_mesh(mesh):
        placed = jax.tree.map(
            lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), bias, specs
        )
        values = jax.jit(
            jax.shard_map(Bias.values, in_specs=(specs,), out_specs=P(BATCH, "tensor", None, None))
        )(placed)
        np.testing.assert_array_equal(jax.device_get(values), expected)


# Config --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_schemes_are_config_objects(scheme):
    fields = json.loads(json.dumps(dataclasses.asdict(scheme)))
    assert hash(scheme) == hash(dataclasses.replace(scheme))
    assert scheme == dataclasses.replace(scheme)
    if "scaling" in fields:
        # JSON turns tuples into lists; the object turns them back.
        fields["scaling"] = type(scheme.scaling)(**fields["scaling"])
    assert type(scheme)(**fields) == scheme
    hash(type(scheme)(**fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.max_length = 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Integer(0), "Integer.max_length = 0: must be at least 1"),
        (lambda: Learned(-3), "Learned.max_length = -3"),
        (lambda: Binary(0), "Binary.num_bits = 0: must be from 1 to 31"),
        (lambda: Binary(32), "Binary.num_bits = 32"),
        (lambda: Sinusoidal(theta=1.0), "Sinusoidal.theta = 1.0"),
        (lambda: Sinusoidal(layout="both"), "Sinusoidal.layout = 'both': must be \"interleaved\""),
        (lambda: Sinusoidal2D((0, 3)), "Sinusoidal2D.grid = (0, 3): must be rows and columns"),
        (lambda: Sinusoidal2D((4,)), "Sinusoidal2D.grid = (4,)"),
        (lambda: Sinusoidal2D((2, 3), theta=1.0), "Sinusoidal2D.theta = 1.0"),
        (lambda: Sinusoidal2D((2, 3), prefix=-1), "Sinusoidal2D.prefix = -1: must be 0 or more"),
        (lambda: RoPE(theta=0.0), "RoPE.theta = 0.0"),
        (lambda: RoPE(fraction=1.5), "RoPE.fraction = 1.5"),
        (lambda: RoPE(layout="gptj"), "RoPE.layout = 'gptj': must be \"half\" or"),
        (lambda: RoPE(scaling=4.0), "RoPE.scaling = 4.0: must be a Scaling, such as"),
        (lambda: T5Bias(3, 128, bidirectional=True), "T5Bias.num_buckets = 3: must be at least 4"),
        (lambda: T5Bias(32, 8, bidirectional=True), "T5Bias.max_distance = 8: must be above 8"),
    ],
)
def test_fields_are_validated(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_lengths_beyond_the_scheme():
    for scheme, remedy in [
        (Learned(max_length=16), "set max_length to at least 17"),
        (Integer(max_length=16), "set max_length to at least 17"),
        (Binary(num_bits=4), "set num_bits to at least 5"),
        (Sinusoidal2D((3, 5)), "set grid to the rows and columns"),
    ]:
        assert scheme.max_length == 16
        scheme.validate_length(16)
        with pytest.raises(ConfigError, match=f"fewer than the sequence length 17: {remedy}"):
            scheme.validate_length(17)
    for scheme in (RoPE(), ALiBi(), Sinusoidal(), T5Bias(bidirectional=True)):
        assert scheme.max_length is None
        scheme.validate_length(10**6)


def test_grids_that_do_not_fit():
    for scheme in (
        Learned(7),
        Sinusoidal2D((2, 3)),
        Integer(9),
        Binary(3),
        Sinusoidal(),
        NoPosition(),
    ):
        scheme.validate_grid((2, 3), prefix=1)
    for scheme, prefix, message in [
        (Learned(8), 1, "Learned.max_length = 8: must be 7, for the class token and 2 x 3 patches"),
        (Learned(7), 0, "Learned.max_length = 7: must be 6, for 2 x 3 patches"),
        (Sinusoidal2D((3, 2)), 1, r"Sinusoidal2D.grid = \(3, 2\): must be \(2, 3\)"),
        (Sinusoidal2D((2, 3)), 0, "Sinusoidal2D.prefix = 1: must be 0: there is no class token"),
        (Sinusoidal2D((2, 3), prefix=0), 1, "prefix = 0: must be 1, the tokens before them"),
        (Integer(6), 1, "set max_length to at least 7"),
    ]:
        with pytest.raises(ConfigError, match=message):
            scheme.validate_grid((2, 3), prefix)


def test_sizes_of_the_model():
    for scheme in SCHEMES:
        scheme.validate_sizes(model_dim=D, head_dim=H)
    for scheme, message in [
        (Sinusoidal(), "model_dim = 7: must be even"),
        (Sinusoidal2D((2, 3)), "model_dim = 7: must be a multiple of 4"),
        (Binary(num_bits=7), "Binary.num_bits = 7: must be below model_dim = 7"),
        (RoPE(), "RoPE.fraction = 1.0: must be such that"),
        (RoPE(fraction=0.1), "is even and positive, not 0"),
        (RoPE(fraction=0.8, scaling=LONGROPE), "LongRoPE.short_factors"),
        (RoPE(fraction=0.25, scaling=DynamicNTK(2.0, 8)), "more than 2 rotating channels"),
    ]:
        head_dim = 8 if "LongRoPE" in message or "rotating" in message else 9
        with pytest.raises(ConfigError, match=message):
            scheme.validate_sizes(model_dim=7, head_dim=head_dim)


def test_a_missing_table_is_an_error():
    a = arrays()
    with pytest.raises(ValueError, match="needs its learned table"):
        Learned(32).embed(a["x"], a["query_positions"])
    with pytest.raises(ValueError, match="needs its learned table"):
        T5Bias(bidirectional=True).bias(a["query_positions"], a["key_positions"], num_heads=N)
