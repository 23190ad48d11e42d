import importlib
import importlib.util
import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BATCH, assert_trees_close, quick_jit
from jax.sharding import AxisType, PartitionSpec

from jaxformer.functional import (
    ALiBi,
    Band,
    DenseMask,
    KeyPadding,
    Mask,
    Prefix,
    Segments,
    attention,
    block_sparse,
    causal,
    sliding_window,
)
from jaxformer.functional.attention import blockwise as attention_blockwise
from jaxformer.functional.attention import cudnn as attention_cudnn
from jaxformer.functional.attention import reference as attention_reference
from jaxformer.functional.attention import splash as attention_splash
from jaxformer.functional.attention.reference import Request

pytestmark = pytest.mark.optimized

# The package exports the function under the module's name.
choosing = importlib.import_module("jaxformer.functional.attention.api")


def arrays(length, num_keys, heads=(4, 2), width=8, dtype=jnp.float32):
    random = np.random.default_rng(0)
    shapes = [(length, heads[0]), (num_keys, heads[1]), (num_keys, heads[1])]
    return [jnp.asarray(random.normal(size=(BATCH, *shape, width)), dtype) for shape in shapes]


def request_for(mask=None, scale=0.3, softcap=None):
    return Request(Mask() if mask is None else mask, None, None, scale, softcap)


@quick_jit
def value_and_gradients(attend, inputs, request):
    value, pull = jax.vjp(lambda *inputs: attend(*inputs, request), *inputs)
    return value, pull(jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape))


def assert_equal_to_reference(attend, inputs, request, reference=attention_reference.attend):
    actual = value_and_gradients(attend, tuple(inputs), request)
    expected = value_and_gradients(reference, tuple(inputs), request)
    assert_trees_close(actual, expected, 1e-5)


def key_padding(num_keys):
    real = jnp.arange(num_keys)[None] < jnp.array([[num_keys - 3], [0]])
    return KeyPadding(real)


def documents(length, num_keys):
    ids = np.sort(np.random.default_rng(1).integers(0, 4, (BATCH, max(length, num_keys))))
    return Segments(jnp.asarray(ids[:, :length]), jnp.asarray(ids[:, -num_keys:]))


# Which implementation runs ---------------------------------------------------------------------


@pytest.fixture
def on(monkeypatch):
    """Pretends that computations are traced for another platform."""

    def pretend(platform, capability=(9, 0)):
        for module in (choosing, attention_cudnn, attention_splash):
            monkeypatch.setattr(module, "platform", lambda: platform)
        if platform == "gpu":
            monkeypatch.setattr(attention_cudnn, "_compute_capability", lambda: capability)

    return pretend


@pytest.mark.parametrize(
    ("platform", "length", "request_", "expected"),
    [
        ("cpu", 8, request_for(causal()), attention_blockwise),
        ("cpu", 1, request_for(causal(7)), attention_reference),
        ("gpu", 8, request_for(causal()), attention_cudnn),
        ("gpu", 1, request_for(causal(7)), attention_reference),
        ("gpu", 8, request_for(block_sparse(8, 2)), attention_cudnn),
        ("tpu", 8, request_for(block_sparse(8, 2)), attention_blockwise),
        ("tpu", 8, request_for(causal()), attention_splash),
        ("tpu", 1, request_for(causal(7)), attention_reference),
    ],
)
def test_auto_takes_the_kernel_of_the_platform_where_it_can(
    on, platform, length, request_, expected
):
    on(platform)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = choosing._choose("auto", *arrays(length, 8, dtype=jnp.bfloat16), request_)
    assert chosen is expected.attend


def test_a_kernel_that_cannot_run_here_says_so_once_per_call_site():
    inputs = arrays(8, 8)
    expected = attention(*inputs, mask=causal(), implementation="blockwise")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            actual = attention(*inputs, mask=causal(), implementation="cudnn")
        attention(*inputs, mask=causal(), implementation="splash")
    np.testing.assert_array_equal(actual, expected)
    assert [str(warning.message) for warning in caught] == [
        "attention: cudnn cannot run here (it needs an NVIDIA GPU of compute capability 8.0 or "
        "later); using blockwise",
        "attention: splash cannot run here (it needs a TPU, not a cpu); using blockwise",
    ]
    assert {warning.filename for warning in caught} == {__file__}


# cuDNN -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "inputs", "capability", "reason"),
    [
        (request_for(causal()), arrays(9, 7, dtype=jnp.bfloat16), (8, 0), None),
        (request_for(sliding_window(3)), arrays(8, 8, dtype=jnp.float16), (8, 0), None),
        (request_for(documents(8, 8)), arrays(8, 8, dtype=jnp.bfloat16), (8, 0), None),
        (request_for(), arrays(8, 8, width=256, dtype=jnp.bfloat16), (9, 0), None),
        (request_for(), arrays(8, 8, width=256, dtype=jnp.bfloat16), (8, 0), "head dim"),
        (request_for(), arrays(8, 8, width=12, dtype=jnp.bfloat16), (9, 0), "head dim"),
        (request_for(), arrays(8, 8, dtype=jnp.bfloat16), (7, 5), "NVIDIA GPU"),
        (request_for(documents(9, 8)), arrays(9, 8, dtype=jnp.bfloat16), (9, 0), "even lengths"),
    ],
)
def test_cudnn_says_why_it_cannot(on, request_, inputs, capability, reason):
    on("gpu", capability)
    actual = attention_cudnn.unsupported(*inputs, request_)
    assert actual is None if reason is None else reason in actual


@pytest.fixture
def xla_for_cudnn(monkeypatch):
    """XLA in cuDNN's place, for the meaning of the arguments; with what cuDNN is known to want."""
    real, calls = jax.nn.dot_product_attention, []

    def stand_in(query, key, value, *, mask, is_causal, implementation, **options):
        assert implementation == "cudnn"
        length, num_keys = query.shape[1], key.shape[1]
        if (window := options.get("local_window_size")) is not None:
            assert is_causal
            assert window[1] == 0
            assert mask is None
            assert length <= num_keys
        if mask is not None:
            assert mask.shape[2:] == (length, num_keys)
        calls.append((is_causal, window, mask is not None))
        return real(query, key, value, mask=mask, is_causal=is_causal, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    return calls


@pytest.mark.more
@pytest.mark.parametrize(
    ("mask", "lengths", "call"),
    [
        (None, (6, 8), (False, None, False)),
        (causal(), (8, 8), (True, None, False)),
        (causal(), (8, 6), (True, None, False)),
        (sliding_window(3), (6, 8), (True, (2, 0), False)),
        (sliding_window(1), (8, 8), (True, (0, 0), False)),
        (sliding_window(3), (8, 6), (True, None, True)),
        (causal() & Band(before=2), (6, 8), (True, (2, 0), False)),
        (causal() & Band(before=2), (8, 6), (True, None, True)),
        (Band(4, 3) & sliding_window(3) & Band(5, 0), (8, 8), (True, (2, 0), False)),
        (Band(4, 3) & Band(before=2), (8, 8), (False, None, True)),
        (causal() & causal(2), (6, 8), (True, None, False)),
        (causal(2), (6, 8), (False, None, True)),
        (causal(jnp.array([2, -3])), (6, 8), (False, None, True)),
        (Band(2, 1), (8, 8), (False, None, True)),
        (causal() & key_padding(8), (8, 8), (True, None, True)),
        (causal() & sliding_window(3) & documents(8, 8), (8, 8), (True, None, True)),
        (Prefix(jnp.array([3, 5])), (8, 8), (False, None, True)),
        (Prefix(jnp.array([3, 5])) & Band(before=2), (8, 8), (False, None, True)),
        (DenseMask(jnp.eye(8, dtype=bool)[None].at[:, 3].set(False)), (8, 8), (False, None, True)),
    ],
)
def test_cudnn_is_asked_for_what_the_mask_means(xla_for_cudnn, mask, lengths, call):
    def attend(*arguments):
        # A separate function: what is traced with another stand-in must not be reused.
        return attention_cudnn.attend(*arguments)

    assert_equal_to_reference(attend, arrays(*lengths), request_for(mask))
    assert set(xla_for_cudnn) == {call}


def packed(*lengths, padding=0):
    """Rows of documents of these lengths, one after another, with padding before and after."""
    ids = np.zeros((BATCH, 2 * padding + sum(lengths)), np.int32)
    for row in range(BATCH):
        # The second row has half as many documents.
        numbers = 3 + np.arange(len(lengths)) // (1 + row)
        ids[row, padding : padding + sum(lengths)] = np.repeat(numbers, lengths)
    return Segments(jnp.asarray(ids), jnp.asarray(ids))


@pytest.fixture
def xla_for_packed_cudnn(monkeypatch):
    """XLA in the place of cuDNN's kernel for documents, which leaves padding undefined."""
    module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    calls = []

    def stand_in(query, key, value, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, **options):
        assert q_seqlen is kv_seqlen
        assert q_offsets is kv_offsets
        most = q_seqlen.shape[1]
        assert q_offsets.shape == (BATCH, most + 1)
        index = jnp.arange(query.shape[1])[None, :, None]
        start, size = q_offsets[:, None, :most], q_seqlen[:, None]
        is_of = (start >= 0) & (index >= start) & (index < start + size)
        ids = jnp.sum(is_of * jnp.arange(1, most + 1)[None, None], axis=2)
        mask = Segments(ids, ids)
        window = options["sliding_window_length"]
        if options["mask_type"] is module.MaskType.CAUSAL:
            mask = mask & causal()
        if window is not None:
            mask = mask & Band(before=window - 1)
        calls.append((most, window))
        y = attention_reference.attend(query, key, value, request_for(mask, options["scale"]))
        return jnp.where((ids > 0)[:, :, None, None], y, jnp.nan)

    monkeypatch.setattr(module, "dot_product_attention", stand_in)
    monkeypatch.setattr(attention_cudnn, "_compute_capability", lambda: (9, 0))
    monkeypatch.setattr(attention_cudnn, "_FEW_DOCUMENTS", 2)
    monkeypatch.setattr(attention_cudnn, "_MANY_DOCUMENTS", 4)
    return calls


_AGAIN = Segments(jnp.array([[1, 1, 2, 2, 1, 1]] * BATCH), jnp.array([[1, 1, 2, 2, 1, 1]] * BATCH))


@pytest.mark.parametrize(
    "documents",
    [
        packed(6),
        packed(3, 1, padding=2),
        packed(1, 2, 1, 2, padding=1),
        packed(1, 1, 1, 1, 1, 3),
        _AGAIN,
        Segments(_AGAIN.query, _AGAIN.key[:, ::-1]),
        Segments(jnp.zeros((BATCH, 4), int), jnp.zeros((BATCH, 4), int)),
    ],
)
@pytest.mark.parametrize(
    "other", [Mask(), pytest.param(causal(), marks=pytest.mark.slow), sliding_window(2)]
)
@pytest.mark.quick("other0-*")
def test_cudnn_gets_the_documents_of_rows(xla_for_packed_cudnn, xla_for_cudnn, documents, other):
    def attend(*arguments):
        return attention_cudnn.attend(*arguments)

    length = documents.query.shape[1]
    assert_equal_to_reference(attend, arrays(length, length), request_for(documents & other))
    assert {most for most, _ in xla_for_packed_cudnn} == {2, 4}
    assert all(given for _, _, given in xla_for_cudnn)


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize(
    "mask",
    [
        None,
        causal(),
        sliding_window(70),
        causal() & key_padding(256),
        documents(256, 256),
        causal() & packed(100, 1, 55, 40, padding=30),
        sliding_window(9) & packed(*[8] * 32),
        packed(*[2] * 128),
        causal() & Segments(documents(256, 256).query, documents(256, 256).key[:, ::-1]),
    ],
)
def test_cudnn_on_a_gpu(mask):
    inputs = arrays(256, 256, width=64, dtype=jnp.bfloat16)
    request = request_for(mask)
    assert attention_cudnn.unsupported(*inputs, request) is None
    actual = value_and_gradients(attention_cudnn.attend, tuple(inputs), request)
    exact = tuple(x.astype(jnp.float32) for x in inputs)
    expected = value_and_gradients(attention_reference.attend, exact, request)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x.astype(y.dtype), y, atol=2e-2 * float(jnp.abs(y).max()))


# Splash ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (request_for(sliding_window(3, 2) & key_padding(8) & documents(8, 8)), None),
        (request_for(causal(jnp.array(3))), None),
        (request_for(causal(jnp.array(3)) & causal()), "known while tracing"),
        (request_for(documents(8, 8) & documents(8, 8)), "one set of segments"),
    ],
)
def test_splash_says_why_it_cannot(on, request_, reason):
    on("tpu")
    actual = attention_splash.unsupported(*arrays(8, 8), request_)
    assert actual is None if reason is None else reason in actual


@pytest.mark.first("mask0-*")
@pytest.mark.parametrize(
    ("mask", "lengths", "heads", "softcap"),
    [
        (causal(), (37, 37), (4, 1), 2.0),
        (causal(-20) & causal(3), (130, 257), (2, 1), None),
        (causal(-150), (260, 257), (2, 1), None),
        (None, (256, 128), (4, 2), None),
        (Band(30, 140) & key_padding(257), (130, 257), (2, 2), 1.0),
        (causal() & documents(257, 130) & key_padding(130), (257, 130), (2, 2), None),
    ],
)
@pytest.mark.quick("mask0-*", "mask1-*")
def test_splash_equals_the_reference_when_interpreted(mask, lengths, heads, softcap):
    inputs = arrays(*lengths, heads)
    assert_equal_to_reference(attention_splash.attend, inputs, request_for(mask, 0.3, softcap))


@pytest.mark.parametrize("mask", [causal(), Band(200, 60)])
@pytest.mark.quick("mask0")
def test_splash_computes_a_block_in_parts(monkeypatch, mask):
    monkeypatch.setattr(attention_splash, "_AT_ONCE", 128)
    inputs = arrays(512, 512, (2, 1))
    assert_equal_to_reference(attention_splash.attend, inputs, request_for(mask))


@pytest.mark.parametrize(
    ("kind", "pairs", "mask", "size"),
    [
        ("TPU v6 lite", (8192, 8192), causal(), 1024),
        ("TPU7x", (4096, 6144), Band(), 1024),
        ("TPU v5e", (8192, 8192), causal(), 512),
        ("TPU v6 lite", (2048, 2048), causal(), 512),
        ("TPU v6 lite", (8192, 8192), sliding_window(1024), 512),
        ("TPU v6 lite", (8192 + 128, 8192 + 128), causal(), 128),
    ],
)
def test_long_rows_have_large_blocks_where_they_are_faster(monkeypatch, kind, pairs, mask, size):
    monkeypatch.setattr(attention_splash, "device_kind", lambda: kind)
    kernel = attention_splash._kernel(pairs, mask, None, False)
    sizes = kernel.kwargs["block_sizes"]
    assert (sizes.block_q, sizes.block_kv, sizes.block_q_dkv, sizes.block_kv_dq) == (size,) * 4
    assert sizes.block_kv_compute == sizes.block_kv_dkv_compute == min(size, 512)


@pytest.mark.parametrize("mask", [causal() & key_padding(130), sliding_window(9)])
@pytest.mark.quick("mask0")
def test_splash_has_the_gradient_of_sinks_when_interpreted(mask):
    inputs = (*arrays(130, 130, (6, 2)), jnp.linspace(-2.0, 3.0, 6))

    def with_sinks(attend, query, key, value, sinks, request):
        return attend(query, key, value, replace(request, sinks=sinks))

    splash, reference = (
        partial(with_sinks, each.attend) for each in (attention_splash, attention_reference)
    )
    assert_equal_to_reference(splash, inputs, request_for(mask), reference)


@pytest.mark.parametrize("offset", [0, 70, -200])
@pytest.mark.parametrize(
    ("lengths", "low", "high"),
    [
        ((512, 512), None, 0),
        ((384, 512), None, None),
        ((640, 384), None, 100),
        ((384, 640), -128, 127),
        ((512, 512), -300, -1),
        ((512, 384), 200, None),
        ((256, 768), 511, 511),
    ],
)
def test_splash_visits_the_blocks_with_an_allowed_pair(lengths, low, high, offset):
    size = 128
    rows, columns = (np.arange(length) for length in lengths)
    distance = columns[None] - rows[:, None] - offset
    allowed = (distance >= (low or -9999)) & (distance <= (9999 if high is None else high))
    shape = lengths[0] // size, size, lengths[1] // size, size
    expected = allowed.reshape(shape).any((1, 3))
    for known in (offset, jnp.asarray(offset)):
        block, computes = attention_splash._visits(lengths, (size, size), known, low, high)
        assert block.min() >= 0
        assert block.max() < shape[2]
        row, visit = np.nonzero(computes)
        visits = np.zeros(expected.shape, int)
        np.add.at(visits, (row, np.asarray(block)[row, visit]), 1)
        np.testing.assert_array_equal(visits, expected)


@pytest.mark.parametrize("mask", [Band(40, 0), Band(30, 140), causal()])
@pytest.mark.quick("mask0")
def test_splash_starts_at_a_query_that_is_known_at_run_time_alone(mask):
    inputs = arrays(257, 400, (4, 2))
    for start in (0, 130, 300):
        shifted = replace(mask, query_offset=jnp.asarray(start))
        assert_equal_to_reference(attention_splash.attend, inputs, request_for(shifted))


@pytest.mark.parametrize(("time", "num_heads"), [(None, 4), ("sequence", 6)])
@pytest.mark.parametrize(
    "mask", [causal() & documents(40, 40), sliding_window(9) & key_padding(40), None]
)
@pytest.mark.quick("mask1-None-4", "mask0-sequence-6")
def test_splash_over_a_mesh(monkeypatch, mask, time, num_heads):
    monkeypatch.setattr(attention_splash, "unsupported", lambda *arguments: None)
    inputs = arrays(40, 40, heads=(num_heads, 2))

    def loss(inputs, mask):
        return jnp.sum(attention(*inputs, mask=mask, implementation="splash") ** 2)

    run = jax.jit(jax.value_and_grad(loss))
    expected = run(inputs, mask)
    axes = ("data", "sequence", "tensor")
    mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        over = jax.NamedSharding(mesh, PartitionSpec("data", time, "tensor", None))
        actual = run([jax.device_put(x, over) for x in inputs], mask)
    assert all(x.sharding == over for x in actual[1])
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * float(jnp.abs(y).max()))


@pytest.mark.tpu_compiler
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize(
    ("chip", "width", "dtype", "bias", "time", "num_heads", "kernels"),
    [
        ("v5e", 64, jnp.bfloat16, False, None, 4, 3),
        ("v5e", 80, jnp.float32, False, None, 4, 3),
        ("v5e", 128, jnp.bfloat16, True, None, 4, 0),
        ("v5e", 128, jnp.bfloat16, False, "sequence", 4, 3),
        # An early and a late part of the queries.
        ("v5e", 128, jnp.bfloat16, False, "sequence", 6, 6),
        ("v6e", 128, jnp.bfloat16, False, None, 4, 3),
        ("v6e", 256, jnp.float32, False, None, 4, 3),
    ],
)
def test_auto_compiles_for_a_tpu(chip, width, dtype, bias, time, num_heads, kernels):
    from jax.experimental import topologies

    length = 4096
    devices = topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:2x2").devices
    mesh = jax.sharding.Mesh(
        np.array(devices).reshape(2, 2),
        (time or "data", "tensor"),
        axis_types=(AxisType.Explicit,) * 2,
    )
    with jax.set_mesh(mesh):

        def shape(dtype, *sizes, spec):
            return jax.ShapeDtypeStruct(sizes, dtype, sharding=jax.NamedSharding(mesh, spec))

        spec = PartitionSpec(None if time else "data", time, "tensor", None)
        inputs = [
            shape(dtype, BATCH, length, heads, width, spec=spec) for heads in (num_heads, 2, 2)
        ]
        ids = shape(jnp.int32, BATCH, length, spec=PartitionSpec(*spec[:2]))

        def loss(inputs, ids):
            added = ALiBi().bias(ids, ids, num_heads=num_heads) if bias else None
            mask = causal() & Segments(ids, ids)
            return attention(*inputs, mask=mask, bias=added).astype(jnp.float32).sum()

        compiled = jax.jit(jax.grad(loss)).lower(inputs, ids).compile()
    assert compiled.as_text().count('custom_call_target="tpu_custom_call"') == kernels
    # One row and a few heads a device, and no array of all pairs among its temporaries.
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * length**2
