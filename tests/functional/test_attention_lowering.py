"""What accelerators would be given: attention lowered here for machines that are not here."""

import importlib
import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.functional import (
    ALiBi,
    Band,
    DenseMask,
    KeyPadding,
    Prefix,
    Segments,
    arrays,
    attention,
    causal,
    sliding_window,
)
from jaxformer.functional.attention import cudnn as attention_cudnn
from jaxformer.functional.attention import splash as attention_splash

pytestmark = [pytest.mark.optimized, pytest.mark.more]

BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 8, 256, 4, 2, 64
PLATFORMS = {"cuda": "gpu", "tpu": "tpu"}
KERNELS = {"cuda": "cudnn", "tpu": "splash"}
# What the gradient calls: a forward and a backward kernel; on a TPU two backward ones. What cuDNN
# has no word for is given to it as an array, and another kernel adds it to the logits.
CALLS = {
    "cuda": ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"],
    "tpu": ["tpu_custom_call"] * 3,
}
CALLS_WITH_ARRAY = ["__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"]
# The package exports the function under the module's name.
choosing = importlib.import_module("jaxformer.functional.attention.api")


@pytest.fixture
def pretend(monkeypatch):
    """Makes the CPU devices of this machine pass for the target's while tracing."""

    def pretend(target):
        for module in (choosing, attention_cudnn, attention_splash):
            monkeypatch.setattr(module, "platform", lambda: PLATFORMS[target])
        # What is asked of a GPU itself: a Hopper, and a cuDNN that is recent enough.
        capability = {"cuda": (9, 0), "tpu": (0, 0)}[target]
        monkeypatch.setattr(attention_cudnn, "_compute_capability", lambda: capability)
        monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
        monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)

    return pretend


def mesh_of(sizes):
    return jax.make_mesh(sizes, ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)


def text_for(target, make_options=dict, dtype=jnp.bfloat16, width=WIDTH, sizes=(4, 2)):
    """The gradient of attention, lowered for a mesh of the target's devices.

    `make_options` makes the arguments of attention from traced ids `[B, T]`.
    """

    @jax.jit
    def gradients(query, key, value, ids):
        def total(*arrays):
            output = attention(*arrays, **make_options(ids))
            return jnp.sum(output.astype(jnp.float32))

        return jax.grad(total, (0, 1, 2))(query, key, value)

    mesh = mesh_of(sizes)
    with jax.set_mesh(mesh):

        def shape(dtype, *sizes, spec):
            return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))

        spec = P("data", None, "tensor", None)
        heads = (HEADS, KV_HEADS, KV_HEADS)
        arrays = [shape(dtype, BATCH, LENGTH, n, width, spec=spec) for n in heads]
        ids = shape(jnp.int32, BATCH, LENGTH, spec=P("data", None))
        return gradients.trace(*arrays, ids).lower(lowering_platforms=(target,)).as_text()


def custom_calls(text):
    return sorted(re.findall(r"stablehlo.custom_call @([\w$]*(?:cudnn|tpu_custom)[\w$]*)\(", text))


def packed(ids):
    return {"mask": causal() & Segments(ids, ids)}


def padded(ids):
    return {"mask": causal() & KeyPadding(ids > 0)}


# For each target what its kernel can do, by name: the arguments of attention, others of `traced`.
EXPRESSIBLE = {
    "everything": (lambda ids: {}, {}),
    "causal": (lambda ids: {"mask": causal()}, {}),
    "window": (lambda ids: {"mask": sliding_window(100)}, {}),
    "two bands": (lambda ids: {"mask": causal() & Band(before=99)}, {}),
    "packed": (packed, {}),
    "padded": (padded, {}),
    "scaled": (lambda ids: {"mask": causal(), "scale": 0.3}, {}),
    "one device": (lambda ids: {"mask": causal()}, {"sizes": (1, 1)}),
}
ON = {
    "cuda": EXPRESSIBLE
    | {
        "half": (packed, {"dtype": jnp.float16}),
        "prefix": (lambda ids: {"mask": Prefix(ids[:, 0])}, {}),
        "wide": (packed, {"width": 256}),
    },
    "tpu": EXPRESSIBLE
    | {
        "single": (packed, {"dtype": jnp.float32}),
        "softcap": (lambda ids: packed(ids) | {"softcap": 30.0}, {}),
        "sinks": (lambda ids: packed(ids) | {"sinks": jnp.zeros(HEADS)}, {}),
        "odd width": (packed, {"width": 80}),
    },
}


def alibi(ids):
    return {"mask": causal(), "bias": ALiBi().bias(ids, ids, num_heads=HEADS)}


def dropped(ids):
    return {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}


NOT_ON = {
    "cuda": {
        "it does not support a bias": (alibi, {}),
        "its dropout differs": (dropped, {}),
        "it does not support a soft-cap": (lambda ids: {"softcap": 30.0}, {}),
        "it does not support sinks": (lambda ids: {"sinks": jnp.zeros(HEADS)}, {}),
        "not float32": (packed, {"dtype": jnp.float32}),
        "a multiple of 8": (packed, {"width": 60}),
    },
    "tpu": {
        "it does not support a bias": (alibi, {}),
        "it does not support dropout": (dropped, {}),
        "mask Prefix": (lambda ids: {"mask": Prefix(ids[:, 0])}, {}),
        "mask DenseMask": (
            lambda ids: {"mask": DenseMask(jnp.ones((1, LENGTH, LENGTH), bool))},
            {},
        ),
        "offset for all rows": (lambda ids: {"mask": causal(ids[:, 0])}, {}),
        "not float16": (packed, {"dtype": jnp.float16}),
    },
}


def cases(table):
    return pytest.mark.parametrize(
        ("target", "case"), [(target, case) for target in table for case in table[target]]
    )


@cases(ON)
@pytest.mark.quick("*-packed", "*-window", "*-half", "*-everything")
def test_auto_lowers_to_the_kernel(pretend, target, case):
    pretend(target)
    options, others = ON[target][case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = text_for(target, options, **others)
    known = target == "tpu" or case not in ("packed", "padded", "half", "prefix", "wide")
    calls = custom_calls(text)
    if target == "cuda" and options is packed:
        # A kernel for few documents, one for many, and that with an array for all others.
        assert set(calls) == {*CALLS[target], *CALLS_WITH_ARRAY}
    else:
        assert calls == (CALLS[target] if known else CALLS_WITH_ARRAY)
    assert known != (f"{LENGTH}x{LENGTH}x" in text)  # an array with an element for every pair


@cases(NOT_ON)
@pytest.mark.quick("cuda-*")
def test_what_a_kernel_cannot_express_falls_back_with_one_warning(pretend, target, case):
    pretend(target)
    options, others = NOT_ON[target][case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asked = text_for(
            target, lambda ids: options(ids) | {"implementation": KERNELS[target]}, **others
        )
    (warning,) = caught
    assert str(warning.message).startswith(f"attention: {KERNELS[target]} cannot run here (")
    assert case in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = text_for(target, options, **others)
    assert custom_calls(asked) == custom_calls(chosen) == []


@pytest.mark.parametrize("target", PLATFORMS)
def test_one_query_a_row_needs_no_kernel(pretend, target):
    pretend(target)
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    query, cache = shape((BATCH, 1, HEADS, WIDTH)), shape((BATCH, LENGTH, KV_HEADS, WIDTH))
    step = jax.jit(lambda *arrays: attention(*arrays, mask=causal(LENGTH - 1)))
    text = step.trace(query, cache, cache).lower(lowering_platforms=(target,)).as_text()
    assert custom_calls(text) == []


@pytest.mark.parametrize("target", PLATFORMS)
def test_an_export_for_an_accelerator_holds_its_kernel(pretend, target):
    pretend(target)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    shapes = [jax.ShapeDtypeStruct((BATCH, LENGTH, n, WIDTH), jnp.bfloat16) for n in heads]
    call = CALLS[target][:1]
    exported = jax.export.export(
        jax.jit(partial(attention, mask=causal())),
        platforms=[target],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(call[0])],
    )(*shapes)
    assert exported.platforms == (target,)
    assert custom_calls(exported.mlir_module()) == call
    assert [x.shape for x in exported.out_avals] == [(BATCH, LENGTH, HEADS, WIDTH)]


@pytest.mark.parametrize("target", PLATFORMS)
def test_the_devices_of_a_mesh_that_is_not_here_decide(target):
    kind = {"cuda": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5p"}[target]
    device = AbstractDevice(kind, None, PLATFORMS[target])
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert arrays.platform() == PLATFORMS[target]
