import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from jaxformer.functional.attention import attention
from jaxformer.functional.attention_request import Dropout
from jaxformer.functional.masks import (
    Band,
    Dense,
    KeyPadding,
    Mask,
    Prefix,
    Segments,
    causal,
    sliding_window,
)
from jaxformer.functional.position import Bias
from jaxformer.functional.positional_schemes import ALiBi, T5Bias

BOTH = pytest.mark.parametrize("implementation", ["reference", "blockwise"])
BATCH = 2
# Half the time to compile, and arithmetic is what is tested here.
quick_jit = partial(
    jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)


def arrays(length, num_keys, heads=(2, 2), widths=(4, 4), seed=0, dtype=np.float32):
    """Random query, key, value and output cotangent."""
    (num_heads, num_kv_heads), (width, value_width) = heads, widths
    random = np.random.default_rng(seed)
    shapes = [
        (BATCH, length, num_heads, width),
        (BATCH, num_keys, num_kv_heads, width),
        (BATCH, num_keys, num_kv_heads, value_width),
        (BATCH, length, num_heads, value_width),
    ]
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def random_mask(kind, length, num_keys, seed=0):
    """A mask of some kind, with padding, documents and prefixes at random places."""
    random = np.random.default_rng(seed)
    real = random.integers(1, num_keys + 1, (BATCH, 1))
    index = np.arange(num_keys)

    def documents(size):
        ends = np.sort(random.integers(0, max(length, num_keys), (BATCH, 3)))
        ids = 1 + np.sum(np.arange(size)[None, :, None] >= ends[:, None], axis=-1)
        return jnp.asarray(np.where(ids > 3, 0, ids))

    offsets = jnp.asarray(random.integers(-3, num_keys, BATCH))
    return {
        "none": lambda: Mask(),
        "causal": lambda: causal(),
        "shifted": lambda: causal(num_keys - length),
        "rows": lambda: causal(offsets),
        "window": lambda: sliding_window(9, 5),
        "window rows": lambda: sliding_window(50, offsets),
        "band": lambda: Band(before=3, after=20),
        "prefix": lambda: Prefix(jnp.asarray(real[:, 0])),
        "right padding": lambda: KeyPadding(jnp.asarray(index < real)),
        "left padding": lambda: KeyPadding(jnp.asarray(index >= num_keys - real)),
        "segments": lambda: Segments(documents(length), documents(num_keys)),
        "dense": lambda: Dense(jnp.asarray(random.random((BATCH, length, num_keys)) < 0.3)),
        "dense one": lambda: Dense(jnp.asarray(random.random((1, length, num_keys)) < 0.01)),
    }[kind]()


KINDS = (
    "none",
    "causal",
    "shifted",
    "rows",
    "window",
    "window rows",
    "band",
    "prefix",
    "left padding",
    "right padding",
    "segments",
    "dense",
    "dense one",
)


def make_bias(kind, length, num_keys, num_heads, shape=None):
    random = np.random.default_rng(1)
    # Positions that restart, as those of packed documents.
    positions = [jnp.asarray(np.arange(size)[None] % 60) for size in (length, num_keys)]
    if kind is None:
        return None
    if kind == "array":
        shape = (BATCH, num_heads) if shape is None else shape
        return jnp.asarray(random.normal(size=(*shape, length, num_keys)))
    if kind == "alibi":
        return ALiBi().bias(*positions, num_heads=num_heads)
    table = jnp.asarray(random.normal(size=(8, num_heads)), jnp.float32)
    scheme = T5Bias(num_buckets=8, max_distance=20, bidirectional=True)
    return scheme.bias(*positions, num_heads=num_heads, table=table)


def value_and_gradients(implementation, inputs, cotangent, bias=None, mask=None, **options):
    """The output and the gradients of query, key, value and the bias's array."""
    key = options.pop("dropout_key", None)
    static = (implementation, tuple(options.items()))
    inputs = tuple(map(jnp.asarray, inputs))
    return _value_and_gradients(static, inputs, jnp.asarray(cotangent), bias, mask, key)


@quick_jit
def _value_and_gradients(static, inputs, cotangent, bias, mask, key):
    implementation, options = static

    def output(inputs, array):
        whole = replace(bias, heads=array) if isinstance(bias, Bias) else array
        choices = {"mask": mask, "bias": whole, "dropout_key": key, **dict(options)}
        return attention(*inputs, implementation=implementation, **choices)

    array = bias.heads if isinstance(bias, Bias) else bias
    value, pull = jax.vjp(output, inputs, array)
    return value, pull(cotangent)


@quick_jit
def written_out(static, mask, bias, key):
    """The pairs that a mask allows, a bias's values and dropout's factors, as arrays."""
    (batch, num_heads, length, num_keys), rate = static
    allowed = None if mask is None else mask.values(length, num_keys)[:, None]
    values = bias.values() if isinstance(bias, Bias) else bias
    if not rate:
        return allowed, values, None
    drop = Dropout.create(key, rate, batch, num_heads)
    return allowed, values, drop.factors(0, length, 0, num_keys)


@quick_jit
def of_heads(static, bias, of_values):
    """The gradient of a bias's heads, given that of its values."""
    _, pull = jax.vjp(lambda heads: replace(bias, heads=heads).values(), bias.heads)
    return pull(of_values.astype(jnp.float32))[0]


def exact(
    inputs, cotangent, mask=None, bias=None, scale=None, softcap=None, dropout_rate=0.0, **keys
):
    """What `value_and_gradients` should give, as the definition says, by PyTorch in float64."""
    import torch

    query, key, value = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs)
    group = query.shape[2] // key.shape[2]
    key_repeated, value_repeated = (x.repeat_interleave(group, dim=2) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = scale * torch.einsum("btnh,bsnh->bnts", query, key_repeated)
    static = (tuple(logits.shape), dropout_rate)
    allowed, added, factors = (
        None if x is None else torch.tensor(np.array(x))
        for x in written_out(static, mask, bias, keys.get("dropout_key"))
    )
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if added is not None:
        added = added.double().requires_grad_()
        logits = logits + added
    if allowed is not None:
        some = allowed.any(-1, keepdim=True)
        logits = torch.where(some, logits.masked_fill(~allowed, -torch.inf), 0.0)
    weights = torch.softmax(logits, -1)
    if allowed is not None:
        weights = torch.where(some, weights, 0.0)
    if factors is not None:
        weights = weights * factors
    output = torch.einsum("bnts,bsnh->btnh", weights, value_repeated)
    output.backward(torch.tensor(cotangent, dtype=torch.float64))
    of_bias = None if added is None else added.grad.numpy()
    if isinstance(bias, Bias):
        of_bias = of_heads((), bias, of_bias)
    return output.detach().numpy(), (tuple(x.grad.numpy() for x in (query, key, value)), of_bias)


def assert_trees_close(actual, expected, tolerance):
    """Largest difference relative to the largest entry, for every array of the tree."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(a, np.float64) for a in (x, y))
        scale = max(1.0, np.max(np.abs(y), initial=0.0))
        difference = np.max(np.abs(x - y), initial=0.0)
        assert difference <= tolerance * scale, (x.shape, difference, scale)


# Values and gradients against PyTorch ----------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "lengths", "heads", "options"),
    [
        ("none", (5, 9), (2, 2), {}),
        ("causal", (9, 9), (6, 2), {"scale": 0.3}),
        ("rows", (5, 9), (4, 1), {"softcap": 1.5}),
        ("window", (9, 5), (2, 2), {"bias": (BATCH, 2)}),
        ("segments", (9, 9), (4, 2), {"bias": (1, 4), "softcap": 2.0}),
        ("left padding", (9, 5), (4, 2), {"dropout_rate": 0.4}),
        ("dense one", (7, 8), (4, 2), {"bias": (1, 1), "dropout_rate": 0.2}),
    ],
)
def test_reference(kind, lengths, heads, options):
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(*lengths, heads, (4, 6), dtype=np.float64)
        options = {"mask": random_mask(kind, *lengths), "dropout_key": jax.random.key(7), **options}
        if "bias" in options:
            options["bias"] = make_bias("array", *lengths, heads[0], options["bias"])
        actual = value_and_gradients("reference", inputs, cotangent, **options)
        assert_trees_close(actual, exact(inputs, cotangent, **options), 1e-12)


LENGTHS = [(130, 257), (257, 130), (37, 37)]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "lengths"), list(zip(KINDS, itertools.cycle(LENGTHS), strict=False))
)
def test_blockwise_with_every_mask(kind, lengths):
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(*lengths, heads=(4, 2), dtype=np.float64)
        mask = random_mask(kind, *lengths)
        actual = value_and_gradients("blockwise", inputs, cotangent, mask=mask)
        assert_trees_close(actual, exact(inputs, cotangent, mask=mask), 1e-12)


@pytest.mark.torch
@settings(max_examples=8)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
    lengths=st.sampled_from([(130, 257), (37, 37), (1, 130)]),
    heads=st.sampled_from([(2, 2), (6, 2), (8, 1)]),
    scale=st.sampled_from([None, 0.1, 3.0]),
    softcap=st.sampled_from([None, 2.0]),
    bias=st.sampled_from([None, "array", "alibi", "t5"]),
    dropout_rate=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
def test_blockwise_with_everything(kinds, lengths, heads, scale, softcap, bias, dropout_rate, seed):
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(*lengths, heads, (3, 5), seed, np.float64)
        mask = Mask()
        for kind in kinds:
            mask &= random_mask(kind, *lengths, seed)
        options = {
            "mask": mask,
            "scale": scale,
            "softcap": softcap,
            "bias": make_bias(bias, *lengths, heads[0]),
            "dropout_rate": dropout_rate,
            "dropout_key": jax.random.key(seed),
        }
        output, (gradients, of_bias) = value_and_gradients(
            "blockwise", inputs, cotangent, **options
        )
        expected, (expected_gradients, expected_of_bias) = exact(inputs, cotangent, **options)
        assert_trees_close((output, gradients), (expected, expected_gradients), 1e-12)
        # The gradient of a scheme passes through its float32 arithmetic.
        assert_trees_close(of_bias, expected_of_bias, 1e-12 if bias == "array" else 1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": 0.2}])
def test_both_equal_pytorch_scaled_dot_product_attention(options):
    import torch

    with jax.enable_x64(True):
        *inputs, cotangent = arrays(37, 37, (6, 2), dtype=np.float64)
        leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
        output = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in leaves), enable_gqa=True, **options
        ).transpose(1, 2)
        output.backward(torch.tensor(cotangent))
        expected = (output.detach().numpy(), [x.grad.numpy() for x in leaves])
        mask = causal() if options.pop("is_causal", False) else None
        for implementation in ("reference", "blockwise"):
            actual = value_and_gradients(implementation, inputs, cotangent, mask=mask, **options)
            assert_trees_close(actual, expected, 1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (BATCH, 1), (BATCH, 4)])
def test_bias_arrays_of_every_broadcast_shape(shape):
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(37, 130, heads=(4, 2), dtype=np.float64)
        options = {"bias": make_bias("array", 37, 130, 4, shape), "mask": causal(90)}
        actual = value_and_gradients("blockwise", inputs, cotangent, **options)
        assert actual[1][1].shape == (*shape, 37, 130)
        assert_trees_close(actual, exact(inputs, cotangent, **options), 1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@BOTH
def test_lower_precision_stays_near_float64(implementation, dtype):
    *inputs, cotangent = (
        jnp.asarray(x, dtype) for x in arrays(130, 257, heads=(4, 2), widths=(16, 16))
    )
    options = {"mask": causal(100), "softcap": 5.0, "bias": make_bias("t5", 130, 257, 4)}
    output, (gradients, of_bias) = value_and_gradients(implementation, inputs, cotangent, **options)
    assert [x.dtype for x in (output, *gradients)] == [dtype] * 4
    assert of_bias.dtype == jnp.float32
    *inputs, cotangent = (np.asarray(x, np.float64) for x in (*inputs, cotangent))
    expected = exact(inputs, cotangent, **options)
    # float32 rounds to 2^-24 and bfloat16 to 2^-9; a few of these add up.
    tolerance = 5e-6 if dtype == jnp.float32 else 1e-2
    assert_trees_close((output, (gradients, of_bias)), expected, tolerance)


@BOTH
def test_the_same_bits_every_time(implementation):
    *inputs, cotangent = arrays(130, 130, heads=(4, 2))
    options = {"mask": causal(), "dropout_rate": 0.1, "dropout_key": jax.random.key(1)}
    one, two = (value_and_gradients(implementation, inputs, cotangent, **options) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)


# Blockwise: memory and work --------------------------------------------------------------------


def sizes(jaxpr):
    """The number of elements of every array that a program makes."""
    for equation in jaxpr.eqns:
        yield from (np.prod(v.aval.shape) for v in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from sizes(inner)


@pytest.mark.parametrize("bias", [None, "alibi", "t5"])
def test_blockwise_makes_no_array_of_all_pairs(bias):
    length = 2048
    *inputs, cotangent = arrays(length, length, heads=(1, 1))
    documents = jnp.asarray(np.arange(length)[None] // 700 + 1)
    mask = causal() & Segments(documents, documents) & KeyPadding(documents > 1)
    bias = make_bias(bias, length, length, 1)

    def size(implementation):
        def run(*inputs):
            output, pull = jax.vjp(
                lambda *x: attention(*x, mask=mask, bias=bias, implementation=implementation),
                *inputs,
            )
            return output, pull(jnp.asarray(cotangent))

        return max(sizes(jax.make_jaxpr(run)(*inputs).jaxpr))

    assert size("reference") >= length**2
    assert size("blockwise") < BATCH * length**2 / 4


def test_a_bias_that_nobody_differentiates_has_no_gradient_in_memory():
    length = 512
    *inputs, _ = arrays(length, length, heads=(1, 1))
    bias = jnp.ones((1, 1, length, length))

    def loss(query, key, value, bias):
        return jnp.sum(attention(query, key, value, bias=bias, implementation="blockwise"))

    def as_large_as_the_bias(function):
        made = sizes(jax.make_jaxpr(function)(*inputs, bias).jaxpr)
        return sum(size >= bias.size for size in made)

    forward = as_large_as_the_bias(loss)
    assert as_large_as_the_bias(jax.grad(loss, (0, 1, 2))) == forward
    assert as_large_as_the_bias(jax.grad(loss, (0, 1, 2, 3))) > forward


@pytest.mark.parametrize(
    ("mask", "poison"),
    [
        (causal(), slice(1040, None)),
        (sliding_window(30, 560), slice(60)),
        (Prefix(jnp.full(BATCH, 500)), slice(1040, None)),
        (KeyPadding(jnp.arange(1100)[None] < 500), slice(1040, None)),
        (Dense(jnp.ones((1, 500, 1100), bool).at[:, :, 500:].set(False)), slice(1040, None)),
        (
            Segments(jnp.full((BATCH, 500), 2), jnp.where(jnp.arange(1100) < 500, 2, 3)[None]),
            slice(1040, None),
        ),
    ],
    ids=["causal", "window", "prefix", "padding", "dense", "segments"],
)
def test_blockwise_never_reads_the_blocks_that_a_mask_excludes(mask, poison):
    *inputs, cotangent = arrays(500, 1100)
    for x in inputs[1:]:
        x[:, poison] = np.nan
    results = value_and_gradients("blockwise", inputs, cotangent, mask=mask)
    assert all(jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(results))


# Properties of both ----------------------------------------------------------------------------


@BOTH
def test_a_query_that_may_attend_to_nothing_gives_zeros_and_no_gradient(implementation):
    *inputs, cotangent = arrays(37, 130, heads=(4, 2))
    allowed = np.ones((BATCH, 37, 130), bool)
    allowed[0] = False
    allowed[1, 5] = False
    bias = make_bias("array", 37, 130, 4).astype(jnp.float32)
    options = {"mask": Dense(jnp.asarray(allowed)), "bias": bias, "dropout_rate": 0.5}
    output, (gradients, of_bias) = value_and_gradients(
        implementation, inputs, cotangent, dropout_key=jax.random.key(0), **options
    )
    of_query, of_key, of_value = gradients
    assert all(jnp.all(jnp.isfinite(x)) for x in (*gradients, of_bias))
    for x in (output[0], output[1, 5], of_query[0], of_query[1, 5], of_key[0], of_value[0]):
        assert jnp.all(x == 0)
    assert jnp.all(of_bias[0] == 0)
    assert jnp.all(of_bias[1, :, 5] == 0)
    assert jnp.any(of_key[1] != 0)


@BOTH
def test_a_bias_of_minus_infinity_excludes_a_key(implementation):
    *inputs, cotangent = arrays(5, 130)
    allowed = np.random.default_rng(2).random((1, 5, 130)) < 0.5
    allowed[0, 3] = False
    bias = jnp.where(allowed[:, None], 0.0, -jnp.inf)
    by_mask = value_and_gradients(
        implementation, inputs, cotangent, mask=Dense(jnp.asarray(allowed))
    )
    by_bias = value_and_gradients(implementation, inputs, cotangent, bias=bias)
    assert jnp.all(jnp.isfinite(by_bias[1][1]))
    assert_trees_close((by_bias[0], by_bias[1][0]), (by_mask[0], by_mask[1][0]), 1e-6)


@BOTH
def test_the_future_has_no_influence_at_all(implementation):
    mask = sliding_window(5)
    query, key, value, _ = map(jnp.asarray, arrays(9, 9, heads=(2, 1)))

    def output(key, value):
        return attention(query, key, value, mask=mask, implementation=implementation)[0].sum((1, 2))

    jacobians = jax.jit(jax.jacrev(output, argnums=(0, 1)))(key, value)
    allowed = np.asarray(mask.values(9, 9)[0])
    for jacobian_TBSKH in jacobians:
        influence = np.abs(jacobian_TBSKH).sum((1, 3, 4))
        assert np.all(influence[~allowed] == 0)
    assert np.all(influence[allowed] > 0)


@BOTH
def test_grouped_heads_are_repeated_heads(implementation):
    query, key, value, cotangent = arrays(37, 37, heads=(6, 2))
    repeated = [np.repeat(x, 3, axis=2) for x in (key, value)]
    output, (gradients, _) = value_and_gradients(
        implementation, (query, key, value), cotangent, mask=causal()
    )
    expected, (whole, _) = value_and_gradients(
        implementation, (query, *repeated), cotangent, mask=causal()
    )
    summed = [x.reshape(BATCH, 37, 2, 3, -1).sum(3) for x in whole[1:]]
    assert_trees_close((output, gradients), (expected, [whole[0], *summed]), 1e-6)


@BOTH
def test_a_window_of_everything_is_causal(implementation):
    inputs = [jnp.asarray(x) for x in arrays(130, 130)[:3]]
    windowed = forward(implementation, inputs, sliding_window(130))
    np.testing.assert_array_equal(windowed, forward(implementation, inputs, causal()))


@BOTH
def test_packed_documents_are_separate_documents(implementation):
    inputs = [jnp.asarray(x) for x in arrays(137, 137)[:3]]
    ids = np.repeat([1, 2, 0], [50, 77, 10])
    segments = jnp.asarray(np.tile(ids, (BATCH, 1)))
    packed = forward(implementation, inputs, causal() & Segments(segments, segments))
    for document in (1, 2):
        alone = forward(implementation, [x[:, ids == document] for x in inputs], causal())
        assert_trees_close(packed[:, ids == document], alone, 1e-6)
    assert jnp.all(packed[:, ids == 0] == 0)


@quick_jit
def forward(implementation, inputs, mask):
    return attention(*inputs, mask=mask, implementation=implementation)


@BOTH
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(implementation, side):
    inputs = [jnp.asarray(x) for x in arrays(20, 20)[:3]]
    amount = ((0, 0), (9, 0) if side == "left" else (0, 9), (0, 0), (0, 0))
    padded = [jnp.pad(x, amount, constant_values=7.0) for x in inputs]
    real = np.pad(np.ones((1, 20), bool), amount[:2])
    actual = forward(implementation, padded, causal() & KeyPadding(jnp.asarray(real)))
    assert_trees_close(actual[:, real[0]], forward(implementation, inputs, causal()), 1e-6)


@BOTH
def test_without_positions_the_order_of_tokens_means_nothing(implementation):
    query, key, value, _ = map(jnp.asarray, arrays(37, 130, heads=(4, 2)))
    random = np.random.default_rng(5)
    queries, keys = random.permutation(37), random.permutation(130)
    expected = forward(implementation, (query, key, value), None)
    actual = forward(implementation, (query[:, queries], key[:, keys], value[:, keys]), None)
    assert_trees_close(actual, expected[:, queries], 1e-6)


@BOTH
def test_one_query_at_a_time_equals_all_at_once(implementation):
    query, key, value, _ = map(jnp.asarray, arrays(6, 6, heads=(4, 2)))
    expected = forward(implementation, (query, key, value), causal())
    for index in range(6):
        step = (query[:, index : index + 1], key, value)
        actual = forward(implementation, step, causal(jnp.asarray(index)))
        assert_trees_close(actual, expected[:, index : index + 1], 1e-6)


def test_returned_weights_are_the_probabilities():
    query, key, value, _ = map(jnp.asarray, arrays(7, 9, heads=(4, 2), dtype=np.float32))
    mask = Dense(jnp.ones((1, 7, 9), bool).at[:, 4].set(False)) & causal(1)
    output, weights = attention(query, key, value, mask=mask, return_weights=True)
    assert weights.shape == (BATCH, 4, 7, 9)
    assert weights.dtype == jnp.float32
    sums = weights.sum(-1)
    np.testing.assert_allclose(sums, jnp.ones_like(sums).at[:, :, 4].set(0.0), atol=1e-6)
    assert jnp.all(jnp.where(mask.values(7, 9)[:, None], 0.0, weights) == 0)
    repeated = jnp.repeat(value, 2, axis=2)
    np.testing.assert_allclose(output, jnp.einsum("bnts,bsnh->btnh", weights, repeated), atol=1e-6)


# Dropout ---------------------------------------------------------------------------------------


def test_dropout_drops_at_its_rate_and_keeps_the_mean():
    query, key, value, _ = map(jnp.asarray, arrays(200, 300, heads=(4, 2)))
    plain = attention(query, key, value, return_weights=True)[1]

    def gone(seed):
        options = {"dropout_rate": 0.25, "dropout_key": jax.random.key(seed)}
        weights = attention(query, key, value, return_weights=True, **options)[1]
        gone = np.asarray(weights == 0)
        np.testing.assert_allclose(weights[~gone], plain[~gone] / 0.75, rtol=1e-5)
        return gone

    one, two = gone(1), gone(2)
    assert abs(one.mean() - 0.25) < 5 * (0.25 * 0.75 / one.size) ** 0.5
    # Independent between calls, rows, heads, queries and keys: agreement is left to chance.
    chance = 0.25**2 + 0.75**2
    for other in (two, *(np.roll(one, 1, axis) for axis in range(4))):
        difference = (one == other).mean() - chance
        assert abs(difference) < 5 * (2 * chance * (1 - chance) / one.size) ** 0.5


def test_dropout_needs_a_key_and_a_rate():
    query, key, value, _ = map(jnp.asarray, arrays(5, 5))
    expected = attention(query, key, value)
    np.testing.assert_array_equal(attention(query, key, value, dropout_rate=0.5), expected)
    unused = attention(query, key, value, dropout_rate=0.0, dropout_key=jax.random.key(0))
    np.testing.assert_array_equal(unused, expected)
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match="dropout_rate must be in"):
            attention(query, key, value, dropout_rate=rate)


# Transformations and mistakes ------------------------------------------------------------------


@BOTH
def test_attention_maps_over_a_new_axis(implementation):
    stacked = [jnp.asarray(np.stack([x, 2 * x])) for x in arrays(20, 20)[:3]]
    mapped = jax.vmap(lambda *inputs: forward(implementation, inputs, causal()))(*stacked)
    for index in range(2):
        alone = forward(implementation, [x[index] for x in stacked], causal())
        assert_trees_close(mapped[index], alone, 1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"mask": KeyPadding(jnp.ones((BATCH, 10), bool))},
        {"mask": KeyPadding(jnp.ones((3, 9), bool))},
        {"mask": Dense(jnp.ones((1, 9, 5), bool))},
        {"bias": jnp.zeros((1, 1, 5, 1))},
        {"bias": jnp.zeros((1, 3, 5, 9))},
        {"bias": ALiBi().bias(jnp.zeros((1, 5), int), jnp.zeros((1, 8), int), num_heads=2)},
        {"key": jnp.zeros((BATCH, 8, 2, 4))},
        {"query": jnp.zeros((BATCH, 5, 3, 4))},
        {"query": jnp.zeros((BATCH, 5, 2, 6))},
        {"query": jnp.zeros((1, 5, 2, 4))},
    ],
)
def test_shapes_that_do_not_fit_are_an_error(change):
    names = ("query", "key", "value")
    right = dict(zip(names, map(jnp.asarray, arrays(5, 9)[:3]), strict=True))
    with pytest.raises(AssertionError):
        attention(**(right | change))


def test_an_unknown_implementation_is_an_error():
    with pytest.raises(ValueError, match="one of auto, reference, blockwise, cudnn, splash"):
        attention(*map(jnp.asarray, arrays(5, 5)[:3]), implementation="flash")


@pytest.mark.parametrize("length", [1, 5, 130])
def test_bfloat16_gradients_of_few_and_of_many_blocks(length):
    # XLA's CPU backend has no kernel for some layouts of a bfloat16 product.
    *inputs, cotangent = arrays(length, length, heads=(6, 2), widths=(8, 8), dtype=jnp.bfloat16)

    @jax.jit
    def gradients(*inputs):
        run = partial(attention, mask=causal(), implementation="blockwise")
        return jax.vjp(run, *inputs)[1](cotangent)

    wide = [np.asarray(x, np.float32) for x in inputs]
    run = partial(attention, mask=causal(), implementation="reference")
    expected = jax.vjp(run, *wide)[1](jnp.asarray(cotangent, jnp.float32))
    for actual, reference in zip(gradients(*inputs), expected, strict=True):
        scale = np.abs(reference).max()
        np.testing.assert_allclose(np.asarray(actual, np.float32), reference, atol=0.03 * scale)
